"""A cell: one command of a grid, named by a hash of everything that its result depends on.

Invariants: two cells with the same command, meaning, parents and sources are one cell, in whichever
grid they are planned. The meaning is plain JSON, which nothing here interprets. A parent is planned
before its children, so a graph has no cycles.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from stoker.errors import BadRequest

ID = re.compile(r"[0-9a-f]{32}")
FIELDS: dict[str, type] = {
    "label": str,
    "command": list,
    "meaning": dict,
    "parents": list,
    "sources": str,
}
"""The fields of a cell as JSON, with their types."""


@dataclass(frozen=True)
class Cell:
    """One command and what it means."""

    label: str
    """What people see; not part of the id."""
    command: tuple[str, ...]
    """The words to run. `{python}` stands for the interpreter, `{cell}` for the cell's folder."""
    meaning: Mapping[str, Any]
    parents: tuple[str, ...] = ()
    """Ids of the cells whose results this one needs."""
    sources: str = ""
    """The digest of Stoker's own sources, by which the command runs."""

    @cached_property
    def id(self) -> str:
        """32 hexadecimal digits."""
        parts = [list(self.command), self.meaning, list(self.parents), self.sources]
        text = json.dumps(parts, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def as_json(self) -> dict[str, Any]:
        return {
            "label": self.label,
            "command": list(self.command),
            "meaning": dict(self.meaning),
            "parents": list(self.parents),
            "sources": self.sources,
        }


def cell_of(value: Any) -> Cell:
    """The cell of parsed JSON. Raises ValueError where it is none."""
    if not isinstance(value, dict) or set(value) != set(FIELDS):
        raise ValueError("a cell has other fields")
    for name, kind in FIELDS.items():
        if not isinstance(value[name], kind):
            raise ValueError(f"the cell's {name} is wrong")
    words = [*value["command"], *value["parents"]]
    if not value["command"] or not all(isinstance(word, str) for word in words):
        raise ValueError("the cell's command or parents are not words")
    return Cell(
        value["label"],
        tuple(value["command"]),
        value["meaning"],
        tuple(value["parents"]),
        value["sources"],
    )


@dataclass
class Plan:
    """Cells in an order in which they can run: parents first. A cell that is added twice is one."""

    cells: dict[str, Cell] = field(default_factory=dict)

    def add(self, cell: Cell) -> str:
        """Add a cell; returns its id. Raises BadRequest where a parent is not in the plan."""
        if missing := [parent for parent in cell.parents if parent not in self.cells]:
            raise BadRequest(f"cell '{cell.label}' needs cell {missing[0]}, which is not planned")
        self.cells.setdefault(cell.id, cell)
        return cell.id

    @classmethod
    def of(cls, cells: Iterable[Cell]) -> Plan:
        plan = cls()
        for cell in cells:
            plan.add(cell)
        return plan

    def to_bytes(self) -> bytes:
        """The plan as lines of JSON."""
        return b"".join(
            json.dumps(cell.as_json(), separators=(",", ":")).encode() + b"\n"
            for cell in self.cells.values()
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Plan:
        """Raises ValueError or BadRequest for what `to_bytes` does not write."""
        return cls.of(cell_of(json.loads(line)) for line in data.splitlines())

    def children(self) -> dict[str, list[str]]:
        """The cells that need each cell."""
        needed: dict[str, list[str]] = {name: [] for name in self.cells}
        for cell in self.cells.values():
            for parent in cell.parents:
                needed[parent].append(cell.id)
        return needed

    def blocked_by(self, failed: Sequence[str]) -> set[str]:
        """The cells that can never run where these have failed."""
        children, blocked, waiting = self.children(), set[str](), list(failed)
        while waiting:
            for child in children.get(waiting.pop(), []):
                if child not in blocked:
                    blocked.add(child)
                    waiting.append(child)
        return blocked
