"""Numbers and names as people read them, and the one way to print a line.

Invariant: what is printed for people goes through `say`, and what a live display shows goes through
`printable`: text from files, hosts and command lines never reaches the terminal as control codes.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Any, TextIO

_TICKS = "▁▂▃▄▅▆▇█"
_LABEL = re.compile(r" +\S+(?: \S+)* {2,}")
"""The first column of an indented row, with the spaces around it."""
_NOT_BYTES = re.compile("[\ud800-\udc7f\udd00-\udfff]")
"""Surrogates that no byte of a file name becomes."""
FORMULAS = ("=", "+", "-", "@", "|", "%")
"""With these, also after spaces, a spreadsheet takes a text for a formula."""
MOST_CHARACTERS = 300
"""Length at which a message shown in one line is cut."""


lost_output: list[OSError] = []
"""Why text could not be written to standard output. A reader that closed its pipe is no reason."""


def say(*lines: str, stream: TextIO | None = None, wrap: bool = True) -> None:
    """Print lines and flush them. Control characters are escaped, also line breaks. A terminal gets
    long lines broken, unless `wrap` is off. Raises nothing where printing fails: training goes on
    without its output. `lost_output` has the reason; verbs that only print turn it into an error.
    """
    stream = stream or sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        width = shutil.get_terminal_size().columns if wrap and stream.isatty() else sys.maxsize
        parts = [part for line in lines for part in wrapped(printable(line), width)]
        text = "".join(f"{part}\n" for part in parts)
        stream.write(text.encode(encoding, "replace").decode(encoding))
        stream.flush()
    except BrokenPipeError:
        pass  # such as `| head`: the reader has enough
    except OSError as error:
        if stream is sys.stdout:
            lost_output.append(error)


def say_error(lines: Sequence[str]) -> None:
    """Print the lines of an error message to standard error."""
    say(f"stoker: {lines[0]}", *lines[1:], stream=sys.stderr)


def printable(text: str) -> str:
    """The text in one line, with control characters, bidirectional overrides and lone surrogates as
    escapes such as \\x1b."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def harmless_cell(value: Any) -> Any:
    """A cell of CSV: a text that no spreadsheet takes for a formula, without control characters;
    numbers stay numbers."""
    return plain_cell(printable(value)) if isinstance(value, str) else value


def plain_cell(text: str) -> str:
    """The text of a cell of CSV, with a quote before it where a spreadsheet would take it for a
    formula."""
    is_formula = text.startswith(("\t", "\r")) or text.lstrip().startswith(FORMULAS)
    return f"'{text}" if is_formula else text


def wrapped(line: str, width: int) -> list[str]:
    """Break a line between words into lines of at most `width` columns. The later lines start below
    the text of a row (`  name    text`), or two columns further right than the line itself. A word
    longer than a line, such as a path, stays whole."""
    if len(line) <= width:
        return [line]
    label = _LABEL.match(line)
    indent = len(label.group()) if label and label.end() <= width // 2 else 0
    indent = indent or len(line) - len(line.lstrip()) + 2
    return textwrap.wrap(
        line,
        width,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
    )


def clock(seconds: float) -> str:
    """A long duration, such as 12 s, 3:07, 1:02:03 or 2 d 03:04."""
    whole = max(round(seconds), 0)
    if whole < 60:
        return f"{whole} s"
    hours, rest = divmod(whole, 3600)
    if hours >= 24:
        return f"{hours // 24} d {hours % 24:02d}:{rest // 60:02d}"
    minutes = f"{rest // 60}:{rest % 60:02d}"
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else minutes


def seconds(value: float) -> str:
    """A duration with three significant digits, such as 31.2 ms, 1.25 s, 12.4 s or 130 s."""
    if value < 0.9995:
        return f"{value * 1000:.3g} ms"
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f} s"


def rough(value: float, digits: int) -> str:
    """A rough number, such as 0.12, 2.2 or 1,300 of two digits: never 1.3e+03."""
    return f"{float(f'{value:.{digits}g}'):,.15g}"


def size(count: float) -> str:
    """A number of bytes, such as 512 B, 1.2 MB or 3.4 GB."""
    if count < 1000:
        return f"{count:.0f} B"
    unit = "kB" if count < 999.95e3 else "MB" if count < 999.95e6 else "GB"
    return f"{count / {'kB': 1e3, 'MB': 1e6, 'GB': 1e9}[unit]:.1f} {unit}"


def plural(count: float, word: str) -> str:
    """A number with its noun, such as 1 image, 2,000 images, 3 batches or 0.5 epochs."""
    ending = "" if count == 1 else ("es" if word.endswith(("s", "tch")) else "s")
    number = rough(count, 6) if isinstance(count, float) else f"{count:,}"
    return f"{number} {word}{ending}"


def cut(text: str, width: int) -> str:
    """The text as `shown`, in at most so many columns; two dots stand for what was left out."""
    text = shown(text)
    return text if len(text) <= width else f"{text[: width - 2]}.."


def one_line(text: str | None) -> str:
    """The first line of a message, cut at MOST_CHARACTERS."""
    return next(iter((text or "").strip().splitlines()), "")[:MOST_CHARACTERS]


def bar(share: float, width: int = 24) -> str:
    return "█" * round(min(share, 1) * width)


def sparkline(values: Sequence[float], width: int = 48) -> str:
    """A curve in one line of text. More values than columns are thinned out evenly."""
    if not values:
        return ""
    if len(values) > width:
        values = [values[round(i * (len(values) - 1) / (width - 1))] for i in range(width)]
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    return "".join(_TICKS[int((value - low) / span * (len(_TICKS) - 1))] for value in values)


def shown(path: str) -> str:
    """A path of any bytes as printable text. Backslashes are doubled: no two names look alike."""
    if path.isascii() and path.isprintable():
        return path.replace("\\", "\\\\")
    doubled = _NOT_BYTES.sub(lambda match: printable(match[0]), path.replace("\\", "\\\\"))
    return printable(os.fsencode(doubled).decode("utf-8", "backslashreplace"))
