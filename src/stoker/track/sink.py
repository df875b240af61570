"""What a tracker is to a follower: the sink of points.

Invariants: a sink says at `open` up to where it has the curve, so a follower that was killed goes
on there. `write` returns when the values are safe in its hands. Sinks are used in a process of
their own (track/process.py), so whatever their libraries do, the follower goes on.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Protocol, cast

from stoker.history.metrics import MetricPoint
from stoker.text import one_line, printable
from stoker.track.curve import CurvePosition

FINISHED, STOPPED, FAILED, FOLLOWING = "finished", "stopped", "failed", "following"
"""How a run has ended when its sink is closed; `following` where it goes on."""
SECRETS = re.compile(r"TOKEN|SECRET|PASSWORD|API_KEY|CREDENTIAL", re.IGNORECASE)
"""Names of environment variables whose values are never shown."""
_USER_INFO = re.compile(r"(?<=://)[^/@\s]*@")
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")


class Refusal(Exception):
    """A sink does not take values now, or not at all. The message says why."""


@dataclass(frozen=True)
class SinkOptions:
    """What a sink needs to know. All of it is plain data."""

    run_id: str
    """Names the run: two trackers of one run have the same."""
    name: str
    """The name of the run's folder, as it is shown."""
    out: str = ""
    """The folder for what the sink writes."""
    uri: str = ""
    project: str = "stoker"
    offline: bool = False
    parameters: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)


class Sink(Protocol):
    """A tracker. Each method raises an exception where it fails; then the process is ended."""

    def __init__(self, options: SinkOptions) -> None: ...

    def open(self) -> CurvePosition:
        """Up to where the sink has the curve."""

    def write(self, points: Sequence[MetricPoint], position: CurvePosition) -> None:
        """Add points, after which the curve is copied up to this position."""

    def back(self, step: int, attempt: int) -> CurvePosition:
        """Forget the values at this step and later ones, because an attempt replaces them. Returns
        up to where the sink has the curve then."""

    def close(self, outcome: str) -> None:
        """Finish what is under way. The run has ended so."""


@dataclass(frozen=True)
class SinkKind:
    """A sink as it is named on the command line."""

    module: str
    title: str
    package: str = ""
    """The Python package that it needs."""
    takes_back: bool = False
    """Whether it can forget values. One that cannot gets them when a checkpoint covers them."""
    has_folder: bool = True
    """Whether it writes to a folder of its own."""
    rest: str = "The same command copies the rest."
    """What to do where it did not take everything."""

    @property
    def is_installed(self) -> bool:
        return not self.package or find_spec(self.package) is not None

    def make(self, options: SinkOptions) -> Sink:
        """Imports the package. Raises ImportError where it is not installed."""
        module = import_module(self.module)
        return cast(Sink, module.SINK(options))


KINDS: Mapping[str, SinkKind] = {
    "csv": SinkKind("stoker.track.csv_files", "CSV", takes_back=True),
    "tensorboard": SinkKind(
        "stoker.track.tensorboard", "TensorBoard", "tensorboard", takes_back=True
    ),
    "mlflow": SinkKind("stoker.track.mlflow", "MLflow", "mlflow", has_folder=False),
    "wandb": SinkKind(
        "stoker.track.wandb",
        "W&B",
        "wandb",
        rest="What W&B has on this machine is sent by 'wandb sync'; the same command copies the "
        "rest.",
    ),
}


def public_text(text: str, environment: Mapping[str, str] | None = None) -> str:
    """One line of a message, without the secrets of this process and without the user name and
    password in a URL."""
    environment = os.environ if environment is None else environment
    secrets = [value for name, value in environment.items() if SECRETS.search(name)]
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) > 3:
            text = text.replace(secret, "***")
    return printable(one_line(_USER_INFO.sub("***@", text)))


def plain_key(text: str, most: int = 100) -> str:
    """Text as a key that every tracker takes: letters, digits and `_ . -`."""
    return _UNSAFE.sub("_", text)[:most] or "_"


def plain_value(text: str, most: int = 500) -> str:
    """Text of any kind as one line of printable text."""
    return printable(text)[:most]
