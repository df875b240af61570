"""Rows: the steps, or the probes, of about ten seconds in one event.

Invariants: a row never reaches over another event, nor over the position from which on a later
attempt repeated the steps, so what is counted over rows is exactly what the steps add up to. Its
numbers are sums over steps, or means over probes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from stoker.run.kinds import Event, is_number

ROW_S = 10.0
"""Seconds of events in a row."""
MOST_STEPS = 2000
"""Steps in a row at most, so that no line becomes too long."""
SINGLE_STEPS = 3
"""So many first steps of an attempt have a row each: verdicts leave them out."""
GROUPS = ("parts", "on_cpu", "work", "sent", "cores")
"""Groups of numbers in a `step` event; each number is summed."""
NOT_OWN = ("exchange", "checkpoint", "compile", "measuring")
"""Parts in which a rank waits for others, or that belong to no step."""
NOT_TRAINING = ("checkpoint", "evaluation", "compile", "measuring")
"""Parts between two steps."""
NO_SUMS = (0.0, 0.0, 0.0)
MOST_THREADS = 20
"""Threads that a row of probes names at most."""
NEVER = 1 << 62
"""A position that no run reaches."""

Span = tuple[int, int]


class RowFolder:
    """Folds steps and probes into rows. Other events pass, in their place."""

    def __init__(self, cut: int = NEVER, row_s: float = ROW_S) -> None:
        self._cut, self._row_s = cut, row_s
        self._steps: list[Event] = []
        self._probes: list[Event] = []
        self._begin = self._end = 0
        self._began = 0.0
        self._made = 0
        """Steps of the attempt that were taken."""

    def take(self, event: Event, span: Span) -> list[Event]:
        """The lines that are complete, now that this event has come. A step that begins at the cut
        has a row of its own."""
        kind = event["kind"]
        if kind not in ("step", "probe"):
            self._made = 0 if kind == "attempt" else self._made
            return [*self.close(), {**event, "span": list(span)}]
        lines = self.close() if self._is_full(event) else []
        if not self._steps and not self._probes:
            self._begin, self._began = span[0], time_of(event)
        self._end = span[1]
        if kind == "step":
            self._steps.append(event)
            self._made += 1
        else:
            self._probes.append(event)
        return lines

    def close(self) -> list[Event]:
        """The rows of what was taken last."""
        steps = row_of_steps(self._steps) if self._steps else None
        probes = row_of_probes(self._probes) if self._probes else None
        self._steps, self._probes = [], []
        rows = sorted(filter(None, (steps, probes)), key=lambda row: row["time"])
        for row in rows:
            # The probes between steps are in the bytes of the steps, so their own span is empty.
            is_within = row is probes and steps is not None
            begin = self._end if is_within and row is rows[-1] else self._begin
            row["span"] = [begin, begin if is_within else self._end]
        return rows

    def _is_full(self, event: Event) -> bool:
        """Whether an event belongs to the next row."""
        if not self._steps and not self._probes:
            return False
        if not 0 <= time_of(event) - self._began < self._row_s:  # also where the clock was set
            return True
        if event["kind"] == "probe" or not self._steps:
            return False
        last = self._steps[-1]
        is_next = event["step"] == last["step"] + 1 and self._side(event) == self._side(last)
        return not is_next or self._made <= SINGLE_STEPS or len(self._steps) >= MOST_STEPS

    def _side(self, event: Event) -> int:
        """Whether a step comes before the cut, begins there, or comes later."""
        position: int = event["position"]
        return (position > self._cut) - (position < self._cut)


def row_of_steps(steps: Sequence[Event]) -> Event:
    """The row of some steps."""
    first, last = steps[0], steps[-1]
    groups = {group: [step.get(group, {}) for step in steps] for group in GROUPS}
    norms = [step["norm"] for step in steps if is_number(step.get("norm"))]
    row = {
        "kind": "steps",
        "time": time_of(last),
        "step": first["step"],
        "last": last["step"],
        "position": first["position"],
        "until": last["position"] + last.get("batch", 0),
        "count": len(steps),
        "batch": sum([step.get("batch", 0) for step in steps]),
        "images": sum([step.get("images", 0) for step in steps]),
        "sums": [
            sum(column) for column in zip(*(s.get("sums", NO_SUMS) for s in steps), strict=True)
        ],
        "norm": max(norms, default=None),
        "longest_s": max(seconds_without(NOT_TRAINING, parts) for parts in groups["parts"]),
        "own_s": [round(seconds_without(NOT_OWN, parts), 6) for parts in groups["parts"]],
        **{group: totals(numbers) for group, numbers in groups.items()},
    }
    return row | {name: last[name] for name in ("epoch", "lr") if is_number(last.get(name))}


def seconds_without(left_out: Sequence[str], parts: Mapping[str, float]) -> float:
    """Seconds of all parts but some. Called for every step of a run, so it is kept quick."""
    return sum(parts.values()) - sum([parts[part] for part in left_out if part in parts])


def totals(groups: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The sum of each number over some groups."""
    first = list(groups[0])
    if all(list(group) == first for group in groups):  # nearly always, and twice as quick
        columns = zip(*[group.values() for group in groups], strict=True)
        return {name: round(sum(own), 6) for name, own in zip(first, columns, strict=True)}
    names = dict.fromkeys(chain.from_iterable(groups))
    return {name: round(sum([g[name] for g in groups if name in g]), 6) for name in names}


def row_of_probes(probes: Sequence[Event]) -> Event:
    """The row of some probes."""
    values: dict[str, list[float]] = {}
    for name, number in chain.from_iterable(map(leaves, probes)):
        values.setdefault(name, []).append(number)
    threads = [thread for probe in probes for thread in probe.get("threads", ())]
    return {
        "kind": "probes",
        "time": time_of(probes[-1]),
        "step": probes[-1]["step"],
        "count": len(probes),
        "means": {name: round(sum(own) / len(own), 6) for name, own in values.items()},
        "threads": threads[-MOST_THREADS:],
    }


def leaves(event: Event) -> Iterator[tuple[str, float]]:
    """The measured numbers of a probe, each with its path, such as `cpu.busy` or `gpus.0.busy`."""
    for name, value in event.items():
        if name not in ("kind", "time", "step", "threads"):
            yield from _leaves(name, value)


def _leaves(path: str, value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from _leaves(f"{path}.{name}", part)
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from _leaves(f"{path}.{number}", part)
    elif is_number(value):
        yield path, value


def time_of(event: Event) -> float:
    """When an event was written, in seconds since 1970; 0 where it does not say."""
    at = event.get("time")
    return float(at) if isinstance(at, int | float) and 0 < at < 1e11 else 0.0
