"""A recipe for other epochs, or for other sizes of its phases: the rest changes in proportion.

Invariants: only flags do this. `--epochs` changes a recipe that sets its own epochs. With phases,
all that is counted in epochs changes in proportion, and each phase lasts at least one epoch. Where
there are fewer epochs than phases, the last phases are kept: the size of the last one is the size
that is evaluated. Without phases, a warm-up or a frozen beginning keeps its epochs, at most half of
the run, or its share in the recipe. `--batch-size` and `--image-size` are those of the last phase.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from stoker.recipe.recipe import Phase
from stoker.text import plural

SIZES = ("batch_size", "image_size")
CAUSES = ("epochs", *SIZES)
"""Flags that change more than their own key."""
HALF = "at most half"
"""A cause beside "epochs": the rule of beginnings. Earlier versions scaled those that were as long
as the run."""


def scaled(
    values: Mapping[str, Any], flags: Mapping[str, Any], causes: Collection[str]
) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """The keys of a recipe that change because flags, those of `causes` alone, set other epochs or
    sizes; and for each key these flags, as they are typed."""
    now, behind = dict(values), dict[str, list[str]]()
    for cause in (name for name in CAUSES if name in flags and name in causes):
        if cause == "epochs":
            before, after = now.get("epochs", flags[cause]), flags[cause]
            changes = for_epochs(now, before, after, half=HALF in causes)
        else:
            changes = {"phases": resized(now.get("phases", ()), cause, flags[cause])}
        for name, value in changes.items():
            if name not in flags and value != now.get(name, ()):
                now[name] = value
                behind.setdefault(name, []).append(f"--{cause.replace('_', '-')} {flags[cause]}")
    return {name: now[name] for name in behind}, behind


def for_epochs(values: Mapping[str, Any], before: int, after: int, half: bool) -> dict[str, Any]:
    """The keys of a recipe for `before` epochs, as they are for `after` epochs."""
    phases, changes = values.get("phases", ()), dict[str, Any]()
    lengths = {n: values[n] for n in ("freeze_epochs", "warmup_epochs") if values.get(n)}
    if before == after:
        return {}
    if half and not phases:
        return {n: min(v, max(after / 2, round(v * after / before, 4))) for n, v in lengths.items()}
    if not phases and max(lengths.values(), default=0) < after:
        return {}
    if phases:
        changes["phases"] = scaled_phases(phases, before, after)
        if decays := values.get("decay_epochs", ()):
            changes["decay_epochs"] = tuple(round(at * after / before, 4) for at in decays)
    return changes | {n: round(v * after / before, 4) for n, v in lengths.items()}


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


def resized(phases: tuple[Phase, ...], name: str, value: int) -> tuple[Phase, ...]:
    """Phases whose last one has this size, the others in proportion. Image sizes are multiples of
    what divides all that are given: a model that takes those takes these."""
    sizes = [getattr(phase, name) for phase in phases]
    if not phases or min(sizes) < 1:
        return phases
    unit = math.gcd(value, *sizes) if name == "image_size" else 1
    last = sizes[-1] * unit
    scaled = [max(1, (size * value + last // 2) // last) * unit for size in sizes]
    pairs = zip(phases, scaled, strict=True)
    return tuple(replace(phase, **{name: size}) for phase, size in pairs)


def scaled_line(
    values: Mapping[str, Any], changes: Mapping[str, Any], behind: Mapping[str, list[str]]
) -> str:
    """What became of the keys that `scaled` changed, in one line."""
    flags = list(dict.fromkeys(flag for name in changes for flag in behind[name]))
    verb, parts = "change" if len(flags) > 1 else "changes", []
    for name, value in changes.items():
        now, before = in_words(name, value), in_words(name, values[name])
        kept = in_words(name, values[name][-len(value) :]) if name == "phases" else before
        triples = zip(now, before, kept, strict=True)
        parts += [f"{new} (before: {old})" for new, old, same in triples if new != same]
    rule = "in proportion" if "phases" in changes else "to a beginning of at most half of the run"
    return f"{' and '.join(flags)} {verb} this recipe {rule}: {'; '.join(parts)}"


def size_notes(
    values: Mapping[str, Any], flags: Mapping[str, Any], ignored: Collection[str]
) -> list[str]:
    """Where sizes and rates mean something else than they say, because a recipe has phases."""
    notes, phases = [], values.get("phases", ())
    for name in SIZES if phases else ():
        used = [getattr(phase, name) for phase in phases]
        if name in ignored and flags[name] != used[-1]:
            flag = f"--{name.replace('_', '-')}"
            notes.append(f"{flag} changes no phase of this run: an earlier version began it")
        elif name not in flags and values.get(name, used[0]) not in used:
            notes.append(
                f"{name} = {values[name]} is not used: each phase of the recipe has its own"
            )
    if flags.get("lr") and len({phase.batch_size for phase in phases}) > 1:
        notes.append("--lr is the rate of every phase; --lr-base follows the batch of each")
    return notes


def in_words(name: str, value: Any) -> list[str]:
    """What a value of a key says, in parts."""
    if name == "warmup_epochs":
        return [f"warm-up {plural(value, 'epoch')}"]
    if name == "freeze_epochs":
        return [f"frozen for {plural(value, 'epoch')}"]
    if name == "decay_epochs":
        return [f"decays at epochs {', '.join(f'{at:g}' for at in value)}"]
    starts = ", ".join(str(phase.from_epoch) for phase in value)
    return [
        f"{plural(len(value), 'phase')} from epoch {starts}",
        f"batches of {', '.join(f'{phase.batch_size:,}' for phase in value)} images",
        f"images of {', '.join(str(phase.image_size) for phase in value)} px",
    ]
