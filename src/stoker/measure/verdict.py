"""What bound a run: a pure function from where its time went to a sentence with its proof.

First depth: from the parts of the steps alone. Utilisation of the GPU is never an input: a GPU that
waits for the network counts as busy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

COMPUTE = ("to_device", "forward", "backward", "optimiser")

RULES: tuple[tuple[str, float, str, str], ...] = (
    (
        "data",
        0.10,
        "reading and decoding: the network waited for images",
        "more --threads, smaller stored images (stoker pack --max-side), or --codec raw",
    ),
    ("evaluation", 0.20, "evaluation", "evaluate less often: --eval-every"),
    ("checkpoint", 0.05, "saving checkpoints", "save less often: --checkpoint-interval"),
    ("other", 0.25, "the host, between the parts of a step", "a larger --batch-size"),
)
"""Part, the share of the time above which it binds, its name, what to do about it."""


@dataclass(frozen=True)
class Verdict:
    """What binds, the number that proves it, and what to do next."""

    limit: str
    evidence: str
    action: str
    gain: float
    """Share of the time that would go if the limit did."""


def verdict(parts: Mapping[str, float]) -> Verdict | None:
    """The part that binds a run, or None where nothing was measured."""
    total = sum(parts.values())
    if total <= 0:
        return None
    shares = {name: seconds / total for name, seconds in parts.items()}
    over = [rule for rule in RULES if shares.get(rule[0], 0) > rule[1]]
    if over:
        part, _, limit, action = max(over, key=lambda rule: shares[rule[0]])
        return Verdict(limit, f"{shares[part]:.0%} of the time", action, shares[part])
    compute = sum(shares.get(name, 0) for name in COMPUTE)
    waiting = shares.get("data", 0)
    return Verdict(
        "compute: the network itself",
        f"{compute:.0%} of the time in forward, backward and optimiser, {waiting:.1%} waiting",
        "a faster device, --amp, a smaller --image-size or --model",
        0.0,
    )
