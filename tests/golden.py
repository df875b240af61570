"""Sentences as users read them, each kept once in tests/golden/NAME.txt.

    check_golden("pack_summary", lines)

Other tests assert fields and codes, not sentences: a sentence is changed in one place, with

    STOKER_WRITE_GOLDEN=1 pytest -k golden

and the change is read in the diff.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

FOLDER = Path(__file__).parent / "golden"
WRITE = "STOKER_WRITE_GOLDEN"


def check_golden(name: str, lines: Iterable[str]) -> None:
    """Compare lines with the kept ones, or keep them where the environment says so."""
    text = "\n".join(lines) + "\n"
    path = FOLDER / f"{name}.txt"
    if os.environ.get(WRITE):
        FOLDER.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.is_file(), f"no golden text {path.name}: {WRITE}=1 writes it"
    assert text == path.read_text(encoding="utf-8")
