"""Trouble that ends an attempt: all ranks have seen it, or agreed on it, at the same step."""

from __future__ import annotations

NOT_FINITE, EXPLODING, MEMORY = "not finite", "exploding", "out of memory"


class Trouble(Exception):
    """All ranks have agreed that training cannot go on from here."""

    def __init__(self, kind: str, step: int, seen: str, since: int | None = None) -> None:
        super().__init__(f"{kind} at step {step}: {seen}")
        self.kind, self.step, self.seen = kind, step, seen
        self.since = step if since is None else since
        """The first step that was bad: nothing saved after it is good."""
