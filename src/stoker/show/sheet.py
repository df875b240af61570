"""A contact sheet: images with captions, as one PNG file.

Invariants: captions are shown without control characters, one line each, cut to the width of a
tile. A file that is not a PNG is never replaced. A sheet has a bounded number of pixels.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from stoker.errors import BadRequest
from stoker.text import printable, shown

SIGNATURE = b"\x89PNG\r\n\x1a\n"
GAP, LINE, LEAST_SIDE, LEAST_WIDTH = 8, 14, 128, 144
"""Pixels: between tiles, of a line of text, of the side that smaller images are enlarged to by a
whole factor, and of a tile, so that a caption has room."""
MOST_PIXELS = 100_000_000
BACKGROUND, INK = (255, 255, 255), (30, 30, 30)


@dataclass(frozen=True)
class Tile:
    """An image (bytes, height x width x 3) and the lines below it."""

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


def write_sheet(path: Path, tiles: Sequence[Tile], columns: int = 0) -> None:
    """Write tiles, row by row, in so many columns (0: about a square). Raises BadRequest where the
    file cannot be written or is not a PNG, or where there are no tiles or too many."""
    check_sheet(path)
    if not tiles:
        raise BadRequest("a sheet needs at least one image")
    columns = min(columns or math.ceil(math.sqrt(len(tiles))), len(tiles))
    scale = max(1, -(-LEAST_SIDE // max(max(tile.image.shape[:2]) for tile in tiles)))
    width = max(scale * max(tile.image.shape[1] for tile in tiles), LEAST_WIDTH) + GAP
    height = scale * max(tile.image.shape[0] for tile in tiles) + GAP
    height += LINE * max(len(tile.lines) for tile in tiles)
    rows = -(-len(tiles) // columns)
    if (pixels := columns * width * rows * height) > MOST_PIXELS:
        raise BadRequest(
            f"a sheet of {len(tiles):,} images has {pixels / 1e6:,.0f} million pixels, and may "
            f"have {MOST_PIXELS / 1e6:.0f}: show fewer images"
        )
    sheet = Image.new("RGB", (columns * width + GAP, rows * height + GAP), BACKGROUND)
    for number, tile in enumerate(tiles):
        place = GAP + number % columns * width, GAP + number // columns * height
        draw_tile(sheet, tile, place, scale, width - GAP)
    save(sheet, path)


def draw_tile(
    sheet: Image.Image, tile: Tile, place: tuple[int, int], scale: int, width: int
) -> None:
    """Put an image and its lines at a place (left, top)."""
    image = Image.fromarray(np.ascontiguousarray(tile.image))
    if scale > 1:
        size = (scale * image.width, scale * image.height)
        image = image.resize(size, Image.Resampling.NEAREST)
    sheet.paste(image, place)
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(11)
    top = place[1] + image.height + 2
    for number, line in enumerate(tile.lines):
        text = printable(line)
        while len(text) > 1 and pen.textlength(text, font=font) > width:
            text = text.rstrip(".")[:-1] + ".."
        pen.text((place[0], top + number * LINE), text, fill=INK, font=font)


def save(sheet: Image.Image, path: Path) -> None:
    """Write the file at once: a reader never sees a part of it."""
    try:
        handle, temporary = tempfile.mkstemp(
            dir=path.parent, prefix=f".{path.name}-", suffix=".png"
        )
        try:
            with os.fdopen(handle, "wb") as file:
                sheet.save(file, format="PNG")
            Path(temporary).chmod(0o644)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise BadRequest(f"--sheet {shown(str(path))} cannot be written ({reason})") from error
