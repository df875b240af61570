"""Checks become rows: what was measured, the limit, and the verdict.

Invariants: a check yields one row. One that raises is a row that FAILED, one that this machine
cannot run is a row that says why; neither ends the selftest. No check begins after the time is
over. A check leaves nothing in memory that the next one could notice.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from stoker.data.dataset import Dataset
from stoker.doctor.selftest.photos import pack_photos
from stoker.errors import BadRequest
from stoker.recipe.resolve import nearest
from stoker.text import one_line
from stoker.train.process_group import Ranks

OK, FAILED, NOT_RUN = "ok", "FAILED", "not run"
NO_LIMIT = "none"


class NotRun(Exception):
    """This machine, or these flags, do not allow the check. The message says why."""


@dataclass(frozen=True)
class Measured:
    """What a check has measured."""

    value: str
    """With its unit, as people read it."""
    limit: str = NO_LIMIT
    holds: bool = True
    figures: dict[str, Any] = field(default_factory=dict)
    """The same as plain data."""


@dataclass(frozen=True)
class Row:
    """One check and its verdict. The names are keys of `selftest --json`."""

    name: str
    value: str
    limit: str
    verdict: str
    reason: str
    """Why it was not run, or the error that ended it."""
    seconds: float
    figures: dict[str, Any]

    def as_data(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Sizes:
    """How much is measured: all that a GPU needs, little on a CPU."""

    model: str
    """What a CPU trains; a GPU trains what the check names."""
    photos: int
    side: int
    """Pixels of the longer side of a photograph."""
    image_size: int
    batch_size: int
    steps: int
    """Steps of each comparison of loops."""
    hashed_steps: int
    seconds: float
    """For each rate."""


ON_GPU = Sizes("", 768, 500, 224, 256, 200, 500, 5.0)
ON_CPU = Sizes("resnet9_w16", 160, 160, 48, 32, 60, 500, 2.0)
QUICK = Sizes("resnet9_w4", 80, 96, 32, 16, 20, 100, 0.4)


@dataclass
class Setup:
    """What all checks share: the device, a folder that is removed at the end, sizes and time."""

    ranks: Ranks
    folder: Path
    sizes: Sizes
    ends_at: float
    quick: bool = False
    gpus: int = 0
    clock: Callable[[], float] = time.monotonic

    @property
    def on_gpu(self) -> bool:
        return self.ranks.device.type == "cuda"

    @property
    def left_s(self) -> float:
        return self.ends_at - self.clock()

    @cached_property
    def dataset(self) -> Dataset:
        """A packed set of pictures that look like photographs to a decoder."""
        return Dataset(pack_photos(self.folder / "photos", self.sizes.photos, self.sizes.side))

    def finish(self) -> None:
        """Wait until the device has finished its work."""
        if self.on_gpu:
            torch.cuda.synchronize(self.ranks.device)

    def tidy(self) -> None:
        """Forget compiled models and free the memory of the device."""
        if "torch._dynamo" in sys.modules:  # it takes seconds to import
            torch.compiler.reset()
        if self.on_gpu:
            torch.cuda.empty_cache()


@dataclass(frozen=True)
class Check:
    """A name, and a function that measures. `gpus`: how many of them it needs."""

    name: str
    measure: Callable[[Setup], Measured]
    gpus: int = 0


def chosen(checks: Sequence[Check], names: Sequence[str]) -> list[Check]:
    """The checks of these names; a name stands also for all that begin with it and a hyphen. All
    checks if there are no names. Raises BadRequest for a name of none."""
    for name in names:
        if not any(is_named(check, name) for check in checks):
            near = nearest(name, {check.name: check for check in checks})
            hint = f"did you mean '{near}'?" if near else f"the checks are {names_of(checks)}"
            raise BadRequest(f"--only: no check called '{name}': {hint}")
    return [c for c in checks if not names or any(is_named(c, name) for name in names)]


def is_named(check: Check, name: str) -> bool:
    return check.name == name or check.name.startswith(f"{name}-")


def names_of(checks: Iterable[Check]) -> str:
    return ", ".join(check.name for check in checks)


def rows(checks: Iterable[Check], setup: Setup) -> Iterator[Row]:
    """The row of each check, in order, as soon as it is known."""
    for check in checks:
        began = setup.clock()
        measured, verdict, reason = outcome(check, setup)
        setup.tidy()
        seconds = round(setup.clock() - began, 1)
        limit, value, figures = measured.limit, measured.value, measured.figures
        yield Row(check.name, value, limit, verdict, reason, seconds, figures)


def outcome(check: Check, setup: Setup) -> tuple[Measured, str, str]:
    """What a check has measured, its verdict, and the reason where it has measured nothing."""
    nothing = Measured("", "")
    try:
        if reason := obstacle(check, setup):
            return nothing, NOT_RUN, reason
        measured = check.measure(setup)
    except NotRun as reason:
        return nothing, NOT_RUN, str(reason)
    except Exception as error:
        return nothing, FAILED, f"{type(error).__name__}: {one_line(str(error))}"
    return measured, OK if measured.holds else FAILED, ""


def obstacle(check: Check, setup: Setup) -> str:
    """Why a check cannot begin; empty if it can."""
    if check.gpus > setup.gpus:
        if not setup.gpus:
            return "no GPU" if check.gpus == 1 else f"no GPU; needs {check.gpus}"
        return f"needs {check.gpus} GPUs, and there is {setup.gpus}"
    return "the time is over: raise --minutes" if setup.left_s <= 0 else ""
