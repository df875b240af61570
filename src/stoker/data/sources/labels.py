"""Refuses a column of labels that are measured numbers, or several labels in one cell.

Invariants: the first rows decide, before an image is read. Whole numbers are class numbers. A
class name may have commas or spaces: names are refused only where their parts recur in others.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from stoker.errors import BadRequest
from stoker.text import shown

FEWEST = 3
"""Fewer labels than this prove nothing."""
SEPARATORS = {";": "semicolons", "|": "bars", ",": "commas", " ": "spaces"}
ADVICE = "Stoker trains one class an image; stoker pack --whole-labels takes each as a class name"


def refuse_nested(kind: pa.DataType, column: str, file: str) -> None:
    """Raise BadRequest for a column of lists or of records."""
    if pa.types.is_nested(kind):
        several = not pa.types.is_struct(kind)
        raise BadRequest(
            f"column {column!r} of {shown(file)} holds {kind}"
            f"{', several labels for one image' if several else ''}: Stoker trains one class an "
            "image, so name a column of class names or numbers with --columns label=NAME"
        )


def refuse_labels(labels: Iterable[Any], column: str, source: str) -> None:
    """Raise BadRequest where labels look like measured numbers, or like several in one cell."""
    counts = Counter(label for label in labels if label is not None and label != "")
    rows = counts.total()
    if rows < FEWEST:
        return
    start = f"column {column!r} of {shown(source)}"
    fractions = [label for label in counts if is_fraction(label)]
    typed = any(isinstance(label, float) for label in fractions)
    of_rows = sum(counts[label] for label in fractions)
    if of_rows > rows / 2 and (typed or len(fractions) > of_rows / 2):
        raise BadRequest(
            f"{start} holds measured numbers, such as {fractions[0]}, not classes: name another "
            f"column with --columns label=NAME ({ADVICE})"
        )
    names = [label for label in counts if isinstance(label, str)]
    for separator, plural in SEPARATORS.items():
        if example := several_labels(names, separator):
            raise BadRequest(
                f"{start} seems to hold several labels in one cell, separated by {plural}, such "
                f"as '{shown(example)[:80]}': {ADVICE}"
            )


def is_fraction(label: Any) -> bool:
    """Whether a label is a number that is not whole."""
    try:
        number = float(label) if isinstance(label, float | str) else 0.0
    except ValueError:
        return False
    return math.isfinite(number) and not number.is_integer()


def several_labels(names: list[str], separator: str) -> str | None:
    """A name that looks like several labels; None where the names look like whole names.

    "cat,dog" does, beside "dog" and "cat,bird": each of its parts recurs elsewhere. Parts between
    spaces recur in honest names too ("red fox", "red panda", "arctic fox"), so these must be names
    themselves, or few parts must make many names of different lengths."""
    parts_of = {name: parts(name, separator) for name in names}
    several = [name for name in names if len(parts_of[name]) > 1]
    recurrences = Counter(part for name in names for part in parts_of[name])
    if separator == " ":
        alone = {next(iter(words)) for words in parts_of.values() if len(words) == 1}
        suspects = [name for name in several if parts_of[name] <= alone]
        lengths = {len(words) for words in parts_of.values()}
        if len(lengths) > 2 and 2 * len(recurrences) < len(names):
            suspects = several
    else:
        suspects = [name for name in several if all(recurrences[p] > 1 for p in parts_of[name])]
    return suspects[0] if suspects and 2 * len(suspects) >= len(several) else None


def parts(name: str, separator: str) -> set[str]:
    """The parts of a name; a list that was written as text ("['cat', 'dog']") counts as one."""
    plain = re.sub(r"[\[\](){}'\"]", "", name)
    return {part.strip() for part in plain.split(separator) if part.strip()}
