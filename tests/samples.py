"""Small image folders that tests make for themselves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

COLOURS = [(200, 40, 40), (40, 200, 40), (40, 40, 200), (200, 200, 40), (40, 200, 200)]


def picture(label: int, number: int, size: tuple[int, int]) -> Image.Image:
    """Noise over a colour that tells the class: learnable in a few steps, never twice the same."""
    noise = np.random.default_rng([label, number]).normal(0, 50, (size[1], size[0], 3))
    pixels = np.clip(noise + COLOURS[label % len(COLOURS)], 0, 255).astype(np.uint8)
    return Image.fromarray(pixels)


def image_folder(
    root: Path,
    *,
    classes: int = 3,
    images: int = 20,
    val: int = 0,
    size: tuple[int, int] = (48, 40),
    suffix: str = "jpg",
) -> Path:
    """ROOT/CLASS/*.jpg, or ROOT/train/CLASS and ROOT/val/CLASS where `val` images are asked for."""
    for label in range(classes):
        for number in range(images + val):
            split = "" if not val else ("train" if number < images else "val")
            folder = root / split / f"class{label}"
            folder.mkdir(parents=True, exist_ok=True)
            picture(label, number, size).save(folder / f"{number:04d}.{suffix}")
    return root
