"""One image as a source delivers it. Every source yields these; packing consumes them."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.data.images.decode_any import LONGEST_REASON, error_text
from stoker.text import shown


@dataclass(frozen=True)
class Item:
    """An image's name, its bytes or the reason why there are none, and its label if known."""

    name: str
    data: bytes | None
    reason: str | None = None
    label: str | None = None
    split: str | None = None
    again: bool = False
    """The failure may be temporary: the next run of the same command tries this image again."""


def one_reason(error: Exception) -> str:
    """An error's text as one printable line of limited length."""
    return shown(error_text(error))[:LONGEST_REASON]
