"""Where the seconds of a run went."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from stoker.measure.spans import APART
from stoker.run.kinds import Event


@dataclass
class TimeLedger:
    """Where the seconds of all attempts went, by the clock of rank 0."""

    parts: Counter[str] = field(default_factory=Counter)
    """Seconds of the steps that count, part by part."""
    startup_s: float = 0.0
    redone_s: float = 0.0
    redone_steps: int = 0
    images: int = 0
    """Images of the steps that count, over all ranks."""

    def take(self, row: Event) -> None:
        """Account for a row or another event, as `Run.rows` gives them."""
        seconds = row.get("parts", {})
        if row["kind"] == "attempt":
            self.startup_s += row["startup_s"]
        elif row["kind"] == "steps" and row["redone"]:
            self.redone_s += sum(seconds.values())
            self.redone_steps += row["count"]
        else:
            self.parts.update(seconds)
            self.images += row["batch"] if row["kind"] == "steps" else 0

    @property
    def total_s(self) -> float:
        return sum(self.parts.values()) + self.startup_s + self.redone_s

    @property
    def training_s(self) -> float:
        """Seconds of steps, without what comes between them."""
        return sum(seconds for part, seconds in self.parts.items() if part not in APART)

    @property
    def images_per_s(self) -> float | None:
        """Images a second in training; None before the first step."""
        return self.images / self.training_s if self.images and self.training_s > 0 else None
