"""Prediction as a person reads it, on standard error: its progress, and what it came to."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence

from stoker.show.progress import TimedLines, progress
from stoker.text import plural, seconds, shown
from stoker.use.classifier import Classifier
from stoker.use.image_stream import ImageSource, NamedImages

FEW = 5
"""Reasons that are shown of each kind; the rest is in the rows."""


class PredictProgress:
    """Counts images, and those that cannot be used by reason."""

    def __init__(self, total: int, rows_on_terminal: bool) -> None:
        # Rows on the same terminal would tear a bar apart.
        self._bar = TimedLines(stream=sys.stderr) if rows_on_terminal else progress(sys.stderr)
        self._total, self._began = total, time.monotonic()
        self.images = 0
        self.broken: dict[str, tuple[int, str]] = {}
        """How many images, and the first one, for each reason."""
        self.close = self._bar.close

    @property
    def broken_images(self) -> int:
        return sum(count for count, _ in self.broken.values())

    def update(self, names: list[str], errors: list[str | None]) -> None:
        """Count the images of a batch."""
        self.images += len(names)
        for name, error in zip(names, errors, strict=True):
            if error is not None:
                # What is in brackets or behind a colon is of one image; the kind is of many.
                kind = error.partition(":")[0].partition(" (")[0]
                count, example = self.broken.get(kind, (0, f"{shown(name)}: {error}"))
                self.broken[kind] = count + 1, example
        of_total = f" of {self._total:,}" if self._total else ""
        text = f"{self.images:,}{of_total} images, {self.broken_images:,} broken"
        self._bar.update(self.images, self._total, text)

    def lines(self, origin: str) -> list[str]:
        """What was predicted, by which model, and what could not be used."""
        took_s = max(time.monotonic() - self._began, 1e-9)
        rate = self.images / took_s
        return [
            f"{plural(self.images, 'image')} by {origin} in {seconds(took_s)} "
            f"({rate:,.0f} images/s)",
            *(
                f"  broken    {plural(count, 'image')}: {example}"
                for count, example in list(self.broken.values())[:FEW]
            ),
        ]


def ignored_lines(sources: Iterable[ImageSource]) -> list[str]:
    """What was passed over in folders and archives."""
    return [
        f"  ignored   {count:,} x {reason} ({example})"
        for source in sources
        if isinstance(source, NamedImages)
        for reason, (count, example) in list(source.ignored.counts.items())[:FEW]
    ]


def no_images(words: Sequence[str], sources: Iterable[ImageSource]) -> str:
    """What to tell the user where there is nothing to predict."""
    named = ", ".join(map(shown, words[:FEW])) + (", ..." if len(words) > FEW else "")
    reasons = [line.split(maxsplit=1)[1] for line in ignored_lines(sources)]
    return f"no images in {named}{''.join(f'; ignored {reason}' for reason in reasons)}"


def notes(classifier: Classifier, sources: Iterable[ImageSource]) -> list[str]:
    """What the user should know before the answers."""
    named = any(isinstance(source, NamedImages) for source in sources)
    if not named or classifier.facts.get("storage") is not None:
        return []
    return [
        "note: this run does not record how its set was stored: images are shrunk to "
        f"{classifier.preprocessing.storage.max_side} px first, the default of 'stoker pack'"
    ]
