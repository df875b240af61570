"""Trouble that ends an attempt, raised by all ranks at the same step."""

from __future__ import annotations

NOT_FINITE, EXPLODING, MEMORY = "not finite", "exploding", "out of memory"


class Trouble(Exception):
    """All ranks agree that training cannot continue from this step."""

    def __init__(self, kind: str, step: int, detail: str, since: int | None = None) -> None:
        super().__init__(f"{kind} at step {step}: {detail}")
        self.kind, self.step = kind, step
        self.since = step if since is None else since
        """The first bad step: a checkpoint saved after it is bad, too."""
