"""A recipe for another number of epochs: what is counted in epochs changes in proportion.

Invariants: only `--epochs` does this, and only to a recipe that sets its own epochs and has phases,
or a warm-up or a frozen beginning that would not fit. Each phase lasts at least one epoch. Where
there are fewer epochs than phases, the last phases are kept: the size of the last one is the size
that is evaluated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stoker.recipe.recipe import Phase
from stoker.text import plural


def scaled(values: Mapping[str, Any], before: int, after: int) -> dict[str, Any]:
    """The keys of a recipe for `before` epochs that change if it has `after` epochs."""
    phases, warmup = values.get("phases", ()), values.get("warmup_epochs", 0.0)
    frozen = values.get("freeze_epochs", 0.0)
    if before == after or not (phases or max(warmup, frozen) >= after):
        return {}
    changes: dict[str, Any] = {}
    if phases:
        changes["phases"] = scaled_phases(phases, before, after)
        if decays := values.get("decay_epochs", ()):
            changes["decay_epochs"] = tuple(round(at * after / before, 4) for at in decays)
    if frozen:
        changes["freeze_epochs"] = round(frozen * after / before, 4)
    if warmup:
        changes["warmup_epochs"] = round(warmup * after / before, 4)
    return {name: value for name, value in changes.items() if value != values[name]}


def scaled_phases(phases: tuple[Phase, ...], before: int, after: int) -> tuple[Phase, ...]:
    """Phases of `before` epochs, in proportion for `after`, each at least one epoch long."""
    kept = phases[-after:]
    starts: list[int] = []
    for number, phase in enumerate(kept):
        latest = after - (len(kept) - number)
        earliest = starts[-1] + 1 if starts else 0
        near = int(phase.from_epoch * after / before + 0.5) if starts else 0
        starts.append(min(max(near, earliest), latest))
    pairs = zip(kept, starts, strict=True)
    return tuple(replace(phase, from_epoch=start) for phase, start in pairs)


def scaled_line(values: Mapping[str, Any], changes: Mapping[str, Any], epochs: str) -> str:
    """What became of the keys that `scaled` changed, in one line."""

    def in_words(name: str, value: Any) -> str:
        if name == "phases":
            starts = ", ".join(str(phase.from_epoch) for phase in value)
            return f"{plural(len(value), 'phase')} from epoch {starts}"
        if name == "warmup_epochs":
            return f"warm-up {value:g} epochs"
        if name == "freeze_epochs":
            return f"frozen for {value:g} epochs"
        return f"decays at epochs {', '.join(f'{at:g}' for at in value)}"

    parts = [
        f"{in_words(name, value)} (before: {in_words(name, values[name])})"
        for name, value in changes.items()
    ]
    return f"{epochs} changes this recipe in proportion: {'; '.join(parts)}"
