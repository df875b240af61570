"""The head of a run in an object store: who trains the run, and what is committed.

    head.json   {"format": 1, "holder": "9f86d081884c7d65", "host": "node7", "beat": 12,
                 "ttl_s": 60.0, "released": false, "content": {...}}

Invariants: what is read has the types, ranges and size that this version writes. What does not is
an error that says so: it is never taken for a head, and never for a missing one.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any, NoReturn

from stoker.errors import is_readable
from stoker.stores.objects import Missing, Objects, StoreError
from stoker.text import printable, size

KEY = "head.json"
FORMAT = 1
MOST_BYTES = 1 << 20
MOST_HOST = 200
"""Characters of a host's name."""
SHORTEST_S, LONGEST_S = 0.1, 86_400.0
"""Limits of `ttl_s`."""
HOLDER = re.compile(r"[0-9a-f]{16}")


class WrongHead(StoreError):
    """The head is damaged, or not Stoker's."""


@dataclass(frozen=True)
class Head:
    """What `head.json` says."""

    holder: str
    """16 hex digits, other ones for each acquisition."""
    host: str
    beat: int
    ttl_s: float
    released: bool
    content: dict[str, Any]
    """Plain JSON of the caller, such as the committed checkpoints."""

    def encoded(self) -> bytes:
        """The bytes of `head.json`. Raises StoreError where they would be too many, ValueError and
        TypeError where the content is not plain JSON."""
        data = json.dumps({"format": FORMAT, **vars(self)}, indent=1, allow_nan=False).encode()
        if len(data) > MOST_BYTES:
            raise StoreError(
                f"{KEY} would have {size(len(data))}, and {size(MOST_BYTES)} is the most: keep "
                "fewer checkpoints"
            )
        return data


def parse_head(data: bytes, place: str) -> Head:
    """The head that these bytes say. Raises NewerFormat, and WrongHead where they are not one."""
    try:
        if len(data) > MOST_BYTES:
            raise ValueError(f"it has {size(len(data))}")
        document = json.loads(data, parse_constant=_refuse, parse_float=_finite)
        if not isinstance(document, dict):
            raise ValueError("it is not a JSON object")
        if not is_readable(f"{place}/{KEY}", document.pop("format", None), FORMAT):
            raise ValueError("it has no format number")
        fields: dict[str, Any] = {name: document.get(name) for name in Head.__annotations__}
        return _checked(Head(**fields))
    except (ValueError, RecursionError) as error:
        reason = printable(str(error))[:200]
        raise WrongHead(
            f"{place}/{KEY} is damaged, or another program wrote it: {reason}; name another place "
            "for this run, or bring back an earlier version of this object"
        ) from error


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"it holds {constant}")


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        _refuse(text)
    return number


def _checked(head: Head) -> Head:
    """The same head. Raises ValueError where a field has another type or range."""
    right = {
        "holder": isinstance(head.holder, str) and HOLDER.fullmatch(head.holder),
        "host": isinstance(head.host, str) and len(head.host) <= MOST_HOST,
        "beat": _is_number(head.beat, int) and 0 <= head.beat < 1 << 53,
        "ttl_s": _is_number(head.ttl_s, int | float) and SHORTEST_S <= head.ttl_s <= LONGEST_S,
        "released": isinstance(head.released, bool),
        "content": isinstance(head.content, dict),
    }
    for name, is_right in right.items():
        if not is_right:
            raise ValueError(f"its {name} is {getattr(head, name)!r:.60}")
    return head


def _is_number(value: object, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def read_head(objects: Objects) -> Head | None:
    """The head of a run, for those who only read; None where there is none. Raises NewerFormat and
    StoreError."""
    try:
        data, _ = objects.read(KEY, MOST_BYTES)
    except Missing:
        return None
    return parse_head(data, objects.location)
