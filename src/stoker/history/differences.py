"""What differs between runs, and what came of it.

Invariants: pure functions of what was read of each run. What is equal, or known of one run alone,
is no difference. Two sets with the same fingerprint are one set, wherever they are; the same holds
for weights with the same hash.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from stoker.history.history import RunHistory, history_of
from stoker.history.verdict import verdict_of_run
from stoker.intervals import Share, ShareDifference, share_difference, share_of
from stoker.measure.verdict import Verdict
from stoker.price.hourly import HourlyPrice
from stoker.price.ledger.cost import cost_of
from stoker.recipe.recipe import SPECS, dump_value
from stoker.run.directory import Run
from stoker.run.kinds import Event, is_number

RECIPE, DATA, WEIGHTS, MACHINE, SOFTWARE = "recipe", "data set", "weights", "machine", "software"
Key = tuple[str, str]
"""A group of settings, and the name of one."""
FINGERPRINT: Key = (DATA, "fingerprint")
IDENTITIES: Mapping[Key, Key] = {
    (DATA, "name"): FINGERPRINT,
    (WEIGHTS, "source"): (WEIGHTS, "sha256"),
}
"""Names of what another setting identifies: the name counts only where that differs."""
NOT_SOFTWARE = ("host", "process", "command", "device", "threads", "cores", "isa")
"""What the environment of an attempt says of the machine or the process."""
SHOWN_HASH = 12
"""Letters of a hash that tell two apart."""
MOST_SETTINGS = 200
"""Settings of a group at most."""


@dataclass(frozen=True)
class RunTraits:
    """What is compared of a run."""

    run: Run
    model: str
    state: str
    settings: Mapping[Key, Any]
    """None for what is not known."""
    epochs_done: float | None = None
    """None before the first attempt."""
    epochs: float = 0.0
    """How many are planned."""
    evaluation: Event | None = None
    """The latest one."""
    total_s: float = 0.0
    """In all attempts."""
    images_per_s: float | None = None
    """In training, over all ranks."""
    epoch_s: float | None = None
    """Seconds of an epoch with its saves and evaluations, without start-up and repeated steps."""
    limit: str = ""
    """What limits training; empty where there is no verdict."""

    @property
    def top1(self) -> Share | None:
        """The accuracy of the latest evaluation."""
        last = self.evaluation
        return share_of(last["top1"], last["images"]) if last else None

    def epoch_dollars(self, price: HourlyPrice | None = None) -> float | None:
        """What an epoch costs with everything around it, at the recorded prices or at a stated one;
        None where no price is known."""
        cost = cost_of(self.run, price)
        return cost.total / self.epochs_done if self.epochs_done and cost.prices else None


def traits_of(run: Run) -> RunTraits:
    """What is compared of a run. Raises BadRequest where its record cannot be read."""
    history = history_of(run)
    _ = history.record
    return traits_from(history, verdict_of_run(run) if history.start else None)


def traits_from(history: RunHistory, verdict: Verdict | None) -> RunTraits:
    """What is compared of a run whose history and verdict were read. Raises BadRequest where its
    record cannot be read."""
    run = history.run
    model, start = str(history.record["values"]["model"]), history.start
    settings, state = settings_of(history), history.state()
    if start is None:
        return RunTraits(run, model, state, settings)
    ledger = history.ledger
    done = history.points[-1].position / max(start["samples"], 1) if history.points else 0.0
    if history.steps >= start["steps"] > 0:  # what is left is less than a batch
        done = max(done, float(start["epochs"]))
    return RunTraits(
        run,
        model,
        state,
        settings,
        epochs_done=done,
        epochs=start["epochs"],
        evaluation=history.evaluations[-1] if history.evaluations else None,
        total_s=ledger.total_s,
        images_per_s=ledger.images_per_s,
        epoch_s=sum(ledger.parts.values()) / done if done else None,
        limit=verdict.limit if verdict else "",
    )


def settings_of(history: RunHistory) -> dict[Key, Any]:
    """The settings of a run, group by group: those that change the result come first."""
    record, values, begin = history.record, history.run.values, history.run.start
    groups = {
        RECIPE: {"name": record["recipe"], **recipe_values(values)},
        DATA: {
            "name": PurePath(record["data"]).name,
            FINGERPRINT[1]: record["fingerprint"],
            "classes": len(record["classes"]),
        },
        WEIGHTS: {
            "source": begin.get("source", "random"),
            "sha256": str(begin.get("sha256", "random"))[:SHOWN_HASH],
            "masks": str(record["masks"]["digest"])[:SHOWN_HASH] if "masks" in record else "none",
        },
    }
    if history.evaluations:
        groups[DATA]["evaluated images"] = history.evaluations[-1]["images"]
    if history.start:
        groups[DATA]["images"] = history.start["samples"] or None
        groups |= place_of(history, history.start)
    return {
        (group, str(name)): value
        for group, settings in groups.items()
        for name, value in list(settings.items())[:MOST_SETTINGS]
    }


def recipe_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a recipe; a key newer than the run has its default. Keys that only say how to
    run on a machine come last."""
    known = {name: dump_value(spec.default) for name, spec in SPECS.items()} | dict(values)
    if isinstance(code := known.get("model_code"), str):
        known["model_code"] = code[:SHOWN_HASH]
    places = {name for name, spec in SPECS.items() if spec.metadata["place"]}
    return dict(sorted(known.items(), key=lambda item: item[0] in places))


def place_of(history: RunHistory, start: Event) -> dict[str, dict[str, Any]]:
    """The machine and the software of the newest attempt that began to train."""
    environment = start["environment"]
    hosts = sorted({rank.host for rank in history.ranks.values()} - {""})
    machine = {
        "device": environment.get("device") or None,
        "ranks": start["world"],
        "machines": max(start["world"] // start["local_world"], 1),
        "hosts": ", ".join(hosts) or environment.get("host") or None,
        "threads": environment.get("threads"),
        "loading threads": start["loading_threads"],
        "cores": environment.get("cores") or None,
        "instructions": environment.get("isa"),
        "dollars an hour": start.get("per_hour"),
    }
    software = {name: v for name, v in environment.items() if name not in NOT_SOFTWARE}
    return {MACHINE: machine, SOFTWARE: software}


@dataclass(frozen=True)
class RunDifference:
    """A setting that differs between runs."""

    group: str
    name: str
    values: tuple[Any, ...]
    """Of each run; None where it is not known."""
    groups: tuple[tuple[int, ...], ...] = field(default=())
    """The places of the runs that have the same known value."""


def differences(runs: Sequence[RunTraits]) -> list[RunDifference]:
    """The settings that differ between runs, group by group, in the order of the first run."""
    keys = dict.fromkeys(key for run in runs for key in run.settings)
    order = (RECIPE, DATA, WEIGHTS, MACHINE, SOFTWARE)
    rows = {key: difference_of(key, runs) for key in sorted(keys, key=lambda k: order.index(k[0]))}
    for name, identity in IDENTITIES.items():
        if len(rows[identity].groups) < 2:
            rows.pop(name)
        elif len(rows[name].groups) == len(rows[identity].groups):
            rows.pop(identity)  # the names tell them apart
    return [row for row in rows.values() if len(row.groups) > 1]


def difference_of(key: Key, runs: Sequence[RunTraits]) -> RunDifference:
    values = tuple(run.settings.get(key) for run in runs)
    places: dict[str, list[int]] = {}
    for place, value in enumerate(values):
        if value is not None:
            places.setdefault(identity_of(value), []).append(place)
    return RunDifference(*key, values, tuple(map(tuple, places.values())))


def identity_of(value: Any) -> str:
    """A text that equal values share, also 2 and 2.0."""
    if is_number(value):
        return repr(float(value))
    return value_text(value)


def value_text(value: Any) -> str:
    """A value as a recipe has it, in one line."""
    if isinstance(value, str):
        return value or "none"
    try:
        return json.dumps(value, sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        return "?"


def accuracy_difference(one: RunTraits, other: RunTraits) -> ShareDifference | None:
    """How much better the second run is in its latest evaluation; None without two of them."""
    if one.top1 is None or other.top1 is None:
        return None
    return share_difference(one.top1, other.top1)
