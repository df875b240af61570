"""What it means to go on with a run under another recipe.

Invariants: a key is harmless (how to run here), needs consent (it changes what is trained from here
on), or is fixed (what has been trained would lose its meaning). Pure functions of plain values.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from stoker.errors import BadRequest
from stoker.recipe.recipe import SPECS, dump_value

HARMLESS, CONSENT, FIXED = "harmless", "needs consent", "cannot be changed"


@dataclass(frozen=True)
class Change:
    """One key that is not what it was."""

    name: str
    before: Any
    after: Any

    @property
    def kind(self) -> str:
        known = SPECS[self.name].metadata
        return HARMLESS if known["place"] else FIXED if known["fixed"] else CONSENT

    def __str__(self) -> str:
        return f"{self.name} {self.before!r} -> {self.after!r}"


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    """Every key that differs. A key that the run was begun without had its default."""
    found = []
    for name, spec in SPECS.items():
        old = before.get(name, dump_value(spec.default))
        if old != after[name]:
            found.append(Change(name, old, after[name]))
    return found


def refuse_unwanted(run: str, found: list[Change], allowed: Collection[str]) -> None:
    """Refuse what nobody agreed to, with a table of all that differs."""
    unknown = [name for name in allowed if name not in SPECS]
    if unknown:
        raise BadRequest(f"--allow-change {unknown[0]}: the recipe has no such key")
    fixed = [change.name for change in found if change.kind == FIXED]
    asked = [change.name for change in found if change.kind == CONSENT]
    if not fixed and set(asked) <= set(allowed):
        return
    if fixed:
        advice = "name another --run"
    else:
        advice = f"name another --run, or go on with --allow-change {','.join(asked)}"
    width = max(len(str(change)) for change in found)
    rows = "".join(f"\n  {change!s:<{width}}  {change.kind}" for change in found)
    raise BadRequest(f"{run} was begun with another recipe:{rows}\n{advice}")
