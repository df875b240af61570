"""Whether a resumed run can still be equal, to the bit, to one that was never interrupted.

Invariant: only attempts whose steps are still part of the run are compared.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from stoker.recipe.changes import Change
from stoker.run.kinds import Event
from stoker.text import plural, shown

NAMED = ("torch", "numpy", "opencv", "simplejpeg", "timm", "cudnn", "driver")
"""Packages whose version may change a bit."""


def bits_note(
    starts: list[Event],
    now: dict[str, Any],
    position: int,
    changes: Collection[Change] = (),
    *,
    deterministic: bool = True,
) -> list[str]:
    """A note where this attempt may compute other bits than an earlier one. `starts` are the
    `attempt` events of earlier attempts; `now` has the environment, world and number of the next
    one. Without `deterministic`, a GPU's kernels are chosen by their speed."""
    earlier = contributors(starts, position)
    for before in earlier:
        ours, theirs = facts_of(now), facts_of(before)
        differing = [name for name in ours if name in theirs and theirs[name] != ours[name]]
        here, there = ([facts[name] for name in differing] for facts in (ours, theirs))
        for change in changes:
            if change.name == "micro_batch":
                here.append(f"micro_batch {change.after}")
                there.append(f"micro_batch {change.before}")
        if here:
            return [
                f"resumed with {' and '.join(here)}; attempt {before['attempt']} had "
                f"{' and '.join(there)}: results are no longer bit-equal to an uninterrupted run"
            ]
    if earlier and not deterministic and is_on_gpu(now):
        return [
            "resumed on a GPU without --deterministic: the images, their order and crops are those "
            "of an uninterrupted run, the last bits of the results may not be"
        ]
    return []


def is_on_gpu(start: Event) -> bool:
    """Whether an attempt computes on a GPU, which has no instruction set of a processor."""
    environment = start.get("environment")
    return isinstance(environment, dict) and environment.get("isa", "") is None


def contributors(starts: list[Event], position: int) -> list[Event]:
    """The attempts that made the steps before a position. An attempt replaces those that began at
    its position or later."""
    kept: list[Event] = []
    for start in starts:
        kept = [old for old in kept if old["position"] < start["position"]] + [start]
    return [start for start in kept if start["position"] < position]


def facts_of(start: Event) -> dict[str, str]:
    """What decides the bits of an attempt, each as a phrase; what was not recorded is left out."""
    environment = start.get("environment")
    environment = environment if isinstance(environment, dict) else {}
    facts = {}
    if isinstance(world := start.get("world"), int):
        facts["world"] = plural(world, "rank")
    if isinstance(threads := environment.get("threads"), int) and not is_on_gpu(start):
        facts["threads"] = plural(threads, "compute thread")
    for name in (*NAMED, "device", "isa"):
        if isinstance(value := environment.get(name), str):
            facts[name] = shown(f"{name} {value}" if name in NAMED else value)
    return facts
