"""A contact sheet: many small pictures with captions in one PNG.

Invariants: the sheet appears under its name complete or not at all. A picture keeps its shape and
fills its square; one that is less than half as large is enlarged by a whole factor, so that its
pixels stay visible. A caption takes the width of its picture: what is longer is cut, with an
ellipsis; a path (it has a slash) keeps its end. A script that the font lacks is drawn as boxes. A
file that is not a PNG is never replaced.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from stoker.commit import write_bytes
from stoker.errors import BadRequest, StokerError
from stoker.text import printable, shown

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont
SIGNATURE = b"\x89PNG\r\n\x1a\n"
SIDES = ((60, 176), (200, 144))
"""The side of a tile in pixels, for sheets of up to so many tiles."""
SMALL_SIDE = 120
MARGIN = 8
TEXT_SIZE = 12
LINE_HEIGHT = 16
SHAPE = 1.4
"""Width of a sheet, by its height."""
FONTS = ("DejaVuSans.ttf", "NotoSans-Regular.ttf", "Arial.ttf")
"""Fonts with many scripts, of which the first that is installed is taken; else Pillow's own."""
PAPER, INK, GREY, PLACE = (255, 255, 255), (20, 20, 20), (110, 110, 110), (240, 240, 240)


@dataclass(frozen=True)
class Tile:
    """A picture and the lines below it."""

    image: NDArray[np.uint8]
    lines: tuple[str, ...]


def check_sheet(path: Path) -> None:
    """Raise BadRequest where a sheet cannot be written, before time is spent on it."""
    name = shown(str(path))
    if path.suffix.lower() != ".png":
        raise BadRequest(f"--sheet {name} must end in .png")
    if not path.parent.is_dir():
        raise BadRequest(f"--sheet {name}: there is no folder {shown(str(path.parent))}")
    if path.is_dir():
        raise BadRequest(f"--sheet {name} is a folder: name a file")
    try:
        if path.exists() and not is_png(path):
            raise BadRequest(f"--sheet {name} exists and is not a PNG image: name another file")
    except OSError as error:
        raise BadRequest(f"--sheet {name} cannot be read ({error.strerror})") from error


def is_png(path: Path) -> bool:
    """Whether a file begins as a PNG does; a pipe or a device does not."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(SIGNATURE)) == SIGNATURE


def tile_side(tiles: int) -> int:
    """The side of the pictures in a sheet of so many tiles, in pixels."""
    return next((side for most, side in SIDES if tiles <= most), SMALL_SIDE)


def write_sheet(path: Path, tiles: Sequence[Tile], columns: int = 0) -> None:
    """Write the tiles as one PNG, in rows. Without `columns` the sheet is a little wider than high.
    Raises BadRequest where `check_sheet` does, StokerError where the disk fails."""
    check_sheet(path)
    data = io.BytesIO()
    drawn_sheet(tiles, columns).save(data, "png", optimize=False)
    try:
        write_bytes(path, data.getvalue())
    except OSError as error:
        raise StokerError(f"cannot write --sheet {shown(str(path))}: {error.strerror}") from error


def drawn_sheet(tiles: Sequence[Tile], columns: int = 0) -> Image.Image:
    """The sheet as a picture."""
    side = tile_side(len(tiles))
    wide = side + MARGIN
    high = side + LINE_HEIGHT * max((len(tile.lines) for tile in tiles), default=0) + MARGIN
    columns = columns or max(1, math.ceil(math.sqrt(SHAPE * len(tiles) * high / wide)))
    columns = min(columns, max(len(tiles), 1))
    rows = max(1, -(-len(tiles) // columns))
    sheet = Image.new("RGB", (columns * wide + MARGIN, rows * high + MARGIN), PAPER)
    pen, font = ImageDraw.Draw(sheet), sheet_font()
    for number, tile in enumerate(tiles):
        left = MARGIN + number % columns * wide
        top = MARGIN + number // columns * high
        pen.rectangle((left, top, left + side - 1, top + side - 1), fill=PLACE)
        picture = fitted(tile.image, side)
        place = (left + (side - picture.width) // 2, top + (side - picture.height) // 2)
        sheet.paste(picture, place)
        for line, text in enumerate(tile.lines):
            ink = GREY if line == len(tile.lines) - 1 and line > 1 else INK
            at = (left, top + side + 2 + line * LINE_HEIGHT)
            pen.text(at, shortened(text, side, font), fill=ink, font=font)
    return sheet


def fitted(pixels: NDArray[np.uint8], side: int) -> Image.Image:
    """A picture that fits into a square."""
    image = Image.fromarray(np.ascontiguousarray(pixels))
    longer = max(image.size)
    if (factor := side // longer) > 1:
        return image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
    size = (
        max(round(image.width * side / longer), 1),
        max(round(image.height * side / longer), 1),
    )
    return image.resize(size, Image.Resampling.LANCZOS)


def sheet_font() -> Font:
    for name in FONTS:
        try:
            return ImageFont.truetype(name, TEXT_SIZE)
        except OSError:
            continue
    return ImageFont.load_default(TEXT_SIZE)


def shortened(text: str, width: int, font: Font) -> str:
    """The text, cut where it is wider than `width` pixels: a path at its start."""
    text, is_path = printable(text), "/" in text
    text = text[-4 * width :] if is_path else text[: 4 * width]
    if font.getlength(text) <= width:
        return text

    def cut(characters: int) -> str:
        return f"…{text[len(text) - characters :]}" if is_path else f"{text[:characters]}…"

    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        fits = font.getlength(cut(middle)) <= width
        low, high = (middle, high) if fits else (low, middle - 1)
    return cut(low)
