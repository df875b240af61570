"""Which changes of the recipe a run accepts when it resumes.

Invariants: a change of a key is harmless (it says how to run on this machine), needs consent (it
changes what is trained from here on), or cannot be made (the steps so far would lose their
meaning). Pure functions of plain values.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from stoker.errors import BadRequest
from stoker.recipe.recipe import SPECS, dump_value

HARMLESS, CONSENT, FIXED = "harmless", "needs consent", "cannot be changed"
SHOWN_HASH = 12


@dataclass(frozen=True)
class Change:
    """A key whose value differs from that of the run."""

    name: str
    before: Any
    after: Any

    @property
    def kind(self) -> str:
        return kind_of(self.name)

    def __str__(self) -> str:
        if self.name == "model_code":  # the start of a hash is enough to tell two texts apart
            before, after = str(self.before)[:SHOWN_HASH], str(self.after)[:SHOWN_HASH]
            return f"{self.name} {before!r} -> {after!r} (the text of the model's file)"
        return f"{self.name} {self.before!r} -> {self.after!r}"


def kind_of(name: str) -> str:
    """What a change of this key means to a run that resumes."""
    metadata = SPECS[name].metadata
    return HARMLESS if metadata["place"] else FIXED if metadata["fixed"] else CONSENT


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    """Every key that differs, in the recipe's order. A key newer than the run had its default."""
    pairs = {
        name: (before.get(name, dump_value(spec.default)), after[name])
        for name, spec in SPECS.items()
    }
    return [Change(name, old, new) for name, (old, new) in pairs.items() if old != new]


class ChangedRecipe(BadRequest):
    """The recipe differs from that of the run: a table of the differences."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__("\n".join(lines))
        self._lines = lines

    @property
    def lines(self) -> list[str]:
        return self._lines


def require_consent(
    run: str,
    differences: list[Change],
    allowed: Collection[str],
    has_trained: Callable[[], bool] = lambda: True,
) -> None:
    """Raise BadRequest, with all differences, where one is fixed, or needs consent and has none. A
    run that has not trained yet needs no consent."""
    unknown = [name for name in allowed if name not in SPECS]
    if unknown:
        raise BadRequest(f"--allow-change {unknown[0]}: the recipe has no such key")
    kinds = {change.name: change.kind for change in differences}
    need_consent = [name for name, kind in kinds.items() if kind == CONSENT]
    if FIXED in kinds.values():
        advice = "name another --run"
    elif set(need_consent) <= set(allowed) or not has_trained():
        return
    else:
        advice = f"name another --run, or accept with --allow-change {','.join(need_consent)}"
    width = max(len(str(change)) for change in differences)
    rows = [f"  {change!s:<{width}}  {change.kind}" for change in differences]
    raise ChangedRecipe([f"{run} was started with a different recipe:", *rows, advice])
