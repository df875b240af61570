"""Numbers as people read them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

_TICKS = "▁▂▃▄▅▆▇█"


def say(text: str) -> None:
    """Print a line at once; a reader that has gone away must not end anything."""
    with suppress(OSError):
        print(text, flush=True)


def clock(seconds: float) -> str:
    """12 s, 3:07, 1:02:03, 2 d 03:04."""
    whole = max(round(seconds), 0)
    if whole < 60:
        return f"{whole} s"
    hours, rest = divmod(whole, 3600)
    if hours >= 24:
        return f"{hours // 24} d {hours % 24:02d}:{rest // 60:02d}"
    minutes = f"{rest // 60}:{rest % 60:02d}"
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else minutes


def size(count: float) -> str:
    """512 B, 1.2 MB, 3.4 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < (1000 if unit == "B" else 999.95) or unit == "GB":
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


def plural(count: int, word: str) -> str:
    """1 image, 2,000 images, 3 classes."""
    ending = "" if count == 1 else ("es" if word.endswith("s") else "s")
    return f"{count:,} {word}{ending}"


def one_line(text: str | None) -> str:
    """The first line of a message that may be long."""
    return next(iter((text or "").strip().splitlines()), "")[:300]


def bar(share: float, width: int = 24) -> str:
    return "█" * round(share * width)


def sparkline(values: Sequence[float], width: int = 48) -> str:
    """A curve in one line; long ones are thinned."""
    if not values:
        return ""
    if len(values) > width:
        values = [values[round(i * (len(values) - 1) / (width - 1))] for i in range(width)]
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    return "".join(_TICKS[int((value - low) / span * (len(_TICKS) - 1))] for value in values)


def shown(path: str) -> str:
    """A path as valid text without control characters, whatever bytes its name is made of."""
    # A backslash of its own is doubled: no two names are shown alike.
    text = os.fsencode(path).replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
