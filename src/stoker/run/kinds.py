"""The kinds of events and the record of a run: which fields they have, and of what type.

Invariants: everything that is read from a run directory is checked here, once, so that readers need
no checks of their own. A line with a field of a wrong type counts as damaged. Unknown kinds and
fields are kept: a newer version may have written them. A field that an older version did not write
is filled in where a reader needs it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Event = dict[str, Any]
Check = Callable[[Any], bool]
Table = Mapping[str, "Field"]

LARGEST = 2**53
"""The largest number in an event: sums of many such numbers are still finite."""


class Required:
    """Stands for a default: the field has none and must be present."""


class Absent:
    """Stands for a default: the field has none and may be absent."""


@dataclass(frozen=True)
class Field:
    check: Check
    default: Any = Absent


def is_number(value: Any) -> bool:
    return type(value) in (int, float) and -LARGEST <= value <= LARGEST  # NaN is not


def is_whole(value: Any) -> bool:
    return type(value) is int and 0 <= value <= LARGEST


def is_count(value: Any) -> bool:
    """A whole number from 1: something is divided by it."""
    return is_whole(value) and value > 0


def is_loss(value: Any) -> bool:
    """A number of any size: a diverged run records NaN and infinity."""
    return isinstance(value, float) or is_number(value)


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def are_numbers(values: Iterable[Any]) -> bool:
    """Whether `is_number` holds for all; without a call for each, for rows have many."""
    for value in values:
        kind = type(value)
        if (kind is not float and kind is not int) or not -LARGEST <= value <= LARGEST:
            return False
    return True


def list_of(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def dict_of(check: Check) -> Check:
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


def optional(check: Check) -> Check:
    return lambda value: value is None or check(value)


def is_span(value: Any) -> bool:
    return list_of(is_whole)(value) and len(value) == 2 and value[0] <= value[1]


def fits(table: Table) -> Check:
    return lambda value: isinstance(value, dict) and misfit(value, table) is None


def misfit(value: Mapping[str, Any], table: Table) -> str | None:
    """The first field that is missing or has another type than in the table; None if all fit."""
    for name, field in table.items():
        if name in value:
            if not field.check(value[name]):
                return name
        elif field.default is Required:
            return name
    return None


def _numbers(value: Any) -> bool:
    return isinstance(value, dict) and are_numbers(value.values())


_texts = list_of(is_text)
_NEEDED = {"position": Field(is_whole, Required), "step": Field(is_whole, Required)}
_PARTS = {"parts": Field(_numbers, {})}
_WORDS = {"words": Field(is_text, Required)}
_REASON = {"reason": Field(optional(is_text), "")}

_SUMS = _PARTS | {
    "sums": Field(lambda value: list_of(is_loss)(value) and len(value) == 3, [0.0] * 3),
    "on_cpu": Field(_numbers, {}),
    "work": Field(_numbers, {}),
    "sent": Field(_numbers, {}),
    "cores": Field(_numbers, {}),
}
"""Numbers of a step, and of a row of steps."""

ENVIRONMENT: Table = {
    "host": Field(is_text, ""),
    "device": Field(is_text, ""),
    "threads": Field(is_count, 1),
    "cores": Field(is_whole, 0),
}
THREAD: Table = {
    "name": Field(is_text, Required),
    "python": Field(is_flag, Required),
    "cores": Field(is_number, Required),
}
MACHINE: Table = {
    "boot": Field(is_text, ""),
    "command_s": Field(is_number, Required),
    "began_s": Field(is_number, Required),
}
"""By the machine's own monotonic clock: when the command and this attempt's part of it began. Only
between two such stamps with the same `boot` is a difference a time."""
PRICE: Table = {
    "dollars": Field(lambda value: is_number(value) and value >= 0, Required),
    "kind": Field(is_text, Required),
    "source": Field(is_text, Required),
    "date": Field(is_text, Required),
    "provider": Field(is_text, ""),
    "machine": Field(is_text, ""),
    "zone": Field(is_text, ""),
}
"""What an hour of a machine costs, in US dollars."""
MASKS: Table = {
    "kept": Field(is_whole, Required),
    "total": Field(is_count, Required),
    "layers": Field(dict_of(list_of(is_whole)), {}),
}
"""Kernel weights that a pruned run keeps, of how many; of each kernel, a pair of these numbers."""
ANY_KIND: Table = {
    "position": Field(is_whole),
    "step": Field(is_whole),
    "parts": Field(_numbers),
}
"""What these fields are in any kind, also in one that a newer version writes."""
KINDS: Mapping[str, Table] = {
    "attempt": _NEEDED
    | {
        "world": Field(is_count, 1),
        "local_world": Field(is_count, 1),
        "capacity": Field(optional(is_number), None),
        "send_cpu": Field(optional(is_number), None),
        "loading_threads": Field(is_count, 1),
        "store": Field(is_text),
        "image_bytes": Field(is_number),
        "best": Field(is_number, -1.0),
        "torn": Field(_texts, []),
        "steps": Field(is_whole, 0),
        "samples": Field(is_whole, 0),
        "classes": Field(is_whole),
        "epochs": Field(is_number, 0),
        "unseen": Field(is_whole, 0),
        "derived": Field(is_text, ""),
        "weights": Field(is_text),
        "masks": Field(fits(MASKS)),
        "warnings": Field(_texts, []),
        "startup_s": Field(is_number, 0.0),
        "environment": Field(fits(ENVIRONMENT), {}),
        "local_rank": Field(is_whole),
        "machine": Field(fits(MACHINE)),
        "price": Field(fits(PRICE)),
        "spent": Field(is_number),
        "per_hour": Field(is_number),
    },
    "price": {"price": Field(fits(PRICE), Required)},
    "machine": {
        "local_world": Field(is_count, 1),
        "local_rank": Field(is_whole),
        "machine": Field(fits(MACHINE)),
        "price": Field(fits(PRICE)),
        "environment": Field(fits({"host": Field(is_text)}), {}),
    },
    "step": _NEEDED
    | _SUMS
    | {
        "batch": Field(is_whole, 0),
        "images": Field(is_whole, 0),
        "epoch": Field(is_number, 0.0),
    },
    "steps": _NEEDED
    | _SUMS
    | {
        "count": Field(is_count, Required),
        "last": Field(is_whole, Required),
        "until": Field(is_whole, Required),
        "batch": Field(is_whole, Required),
        "images": Field(is_whole, Required),
        "epoch": Field(is_number, 0.0),
        "longest_s": Field(is_number, Required),
        "own_s": Field(lambda value: isinstance(value, list) and are_numbers(value), Required),
        "norm": Field(optional(is_number), None),
        "lr": Field(is_number),
        "span": Field(is_span, Required),
    },
    "probes": {
        "step": Field(is_whole, Required),
        "count": Field(is_count, Required),
        "means": Field(_numbers, Required),
        "threads": Field(list_of(fits(THREAD)), []),
        "span": Field(is_span, Required),
    },
    "skipped": _NEEDED | _PARTS | {"batch": Field(is_whole, 0)},
    "evaluation": {
        "position": Field(is_whole, Required),
        "images": Field(is_count, Required),
        "top1": Field(is_whole, Required),
        "top5": Field(is_whole, 0),
        "epoch": Field(is_number, 0.0),
        "loss": Field(is_loss),
        "seconds": Field(is_number),
    },
    "probe": {
        "step": Field(is_whole, Required),
        "seconds": Field(is_number),
        "cpu": Field(_numbers),
        "lock": Field(_numbers),
        "main": Field(_numbers),
        "gpus": Field(list_of(fits({"throttles": Field(_numbers)}))),
        "threads": Field(list_of(fits(THREAD))),
    },
    "larger_batch": {
        "seconds": Field(lambda value: is_number(value) and value > 0, Required),
        "larger_s": Field(is_number, Required),
    },
    "end": _PARTS
    | _REASON
    | {
        "outcome": Field(is_text, Required),
        "position": Field(is_whole),
        "step": Field(is_whole),
        "best": Field(is_number),
        "stale": Field(is_whole),
        "saved": Field(is_flag),
        "clock_s": Field(is_number),
    },
    "verdict": {
        "step": Field(is_whole, 0),
        "limit": Field(is_text, ""),
        "words": Field(is_text, ""),
        "lines": Field(_texts, []),
    },
    "checkpoint": {
        "step": Field(is_whole, 0),
        "position": Field(is_whole, 0),
        "name": Field(is_text, ""),
        "bytes": Field(is_whole, 0),
        "seconds": Field(is_number, 0.0),
        "blocked_s": Field(is_number, 0.0),
    },
    "stall": _WORDS,
    "note": _WORDS,
    "save_failed": _REASON,
    "peer_lost": _REASON,
}
"""The fields that readers use, of each kind."""
_TABLES = {kind: {**ANY_KIND, **table} for kind, table in KINDS.items()}

RECORD: Table = {
    "recipe": Field(is_text, Required),
    "values": Field(fits({"model": Field(is_text, Required)}), Required),
    "data": Field(is_text, Required),
    "fingerprint": Field(is_text, Required),
    "classes": Field(_texts, Required),
    "lanes": Field(is_count, Required),
    "changes": Field(
        list_of(fits(_NEEDED | {"values": Field(lambda v: isinstance(v, dict), Required)})),
        Required,
    ),
    "masks": Field(fits({"digest": Field(is_text, Required), "step": Field(is_whole, Required)})),
}
"""The fields of run.json."""


def event_of(line: bytes) -> Event | None:
    """The event in a line, with the fields that readers need; None where the line is damaged."""
    try:
        event = json.loads(line.decode())
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict) or not isinstance(event.get("kind"), str):
        return None
    table = _TABLES.get(event["kind"], ANY_KIND)
    if misfit(event, table):
        return None
    event = with_defaults(event, table)
    if "environment" in table:
        event["environment"] = with_defaults(event["environment"], ENVIRONMENT)
    return event


def with_defaults(value: Event, table: Table) -> Event:
    absent = {
        name: field.default
        for name, field in table.items()
        if name not in value and field.default not in (Absent, Required)
    }
    return {**absent, **value}
