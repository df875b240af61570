"""The variants of the comparison, and the sets that they read.

Invariants: a set is packed once, by `stoker.pack`. The peers read the bytes of its shards, as
files, in the order of its index.
"""

from __future__ import annotations

import tarfile
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from stoker.data.dataset import Dataset
from stoker.data.images.encode import Storage
from stoker.data.packing.pack import pack
from stoker.data.sources.layout import IMAGE_SUFFIXES

RAW_IMAGES = 20_000
RAW_EPOCHS = {64: 6, 32: 12}
"""Epochs of a round by image size: enough for more than a second."""


@dataclass(frozen=True)
class Variant:
    """One table of the report: a way of storing and a transform."""

    title: str
    storage: Storage
    training: bool
    size: int
    reference: str
    """The peer that ratios are computed to."""
    limit: str
    """The peer that is the upper limit of ours."""

    @property
    def raw(self) -> bool:
        return self.storage.codec == "raw"

    @property
    def kind(self) -> str:
        return "raw" if self.raw else "jpeg"


def photographs(stored: str, max_side: int, training: bool) -> Variant:
    transform = "RandomResizedCrop(224) + flip" if training else "shorter side 256, centre 224"
    title = f"{stored}; {'training' if training else 'validation'}: {transform}"
    storage = Storage(max_side=max_side) if max_side else Storage(codec="original")
    return Variant(title, storage, training, 224, "reference", "bare")


def small(side: int) -> Variant:
    title = f"raw, {side} px; training: shift of up to 4 px + flip"
    return Variant(title, Storage("raw", max_side=side), True, side, "copy", "copy")


VARIANTS = {
    "originals-training": photographs("originals", 0, True),
    "originals-validation": photographs("originals", 0, False),
    "500-training": photographs("longer side 500, quality 90", 500, True),
    "500-validation": photographs("longer side 500, quality 90", 500, False),
    "raw-64": small(64),
    "raw-32": small(32),
}


@dataclass(frozen=True)
class Stored:
    """A set on disk: packed, and as files for the peers."""

    packed: Path
    files: Path
    images: int


def photographs_in(images: Path, root: Path) -> list[Path]:
    """All photographs below a folder, or in a tar, which is extracted below `root`."""
    if images.is_file():
        with tarfile.open(images) as archive:
            archive.extraction_filter = getattr(tarfile, "data_filter", None)  # not in 3.11.2
            archive.extractall(root / "photographs")
        images = root / "photographs"
    return sorted(path for path in images.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES)


def class_folder(images: Path, root: Path) -> Path:
    """Links to all photographs below a folder, or in a tar, as a folder of two classes."""
    folders = [root / "folder" / "train" / name for name in ("even", "odd")]
    for folder in folders:
        folder.mkdir(parents=True)
    for number, path in enumerate(photographs_in(images, root)):
        (folders[number % 2] / f"{number:06d}{path.suffix.lower()}").symlink_to(path.resolve())
    return root / "folder"


def files_of(folder: Path) -> list[Path]:
    """The photographs of a class folder, in their order."""
    return sorted((folder / "train").glob("*/*"), key=lambda path: path.name)


def synthetic(folder: Path, images: int) -> Path:
    """Generated images of 500 x 375 pixels: smooth colours and some noise."""
    folder.mkdir()
    random = np.random.default_rng(0)
    for number in range(images):
        coarse = random.integers(0, 256, (6, 8, 3), dtype=np.uint8)
        pixels = cv2.resize(coarse, (500, 375), interpolation=cv2.INTER_CUBIC).astype(np.int16)
        pixels += random.integers(-12, 13, pixels.shape, dtype=np.int16)
        image = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
        image.save(folder / f"{number:06d}.jpg", quality=90)
    return folder


def tiles(folder: Path, root: Path, side: int, number: int) -> Path:
    """Square parts of the photographs, shrunk to `side` pixels: a set of small images."""
    targets = [root / "train" / name for name in ("even", "odd")]
    for target in targets:
        target.mkdir(parents=True)
    paths = files_of(folder)
    random = np.random.default_rng(0)
    shares = np.array_split(np.arange(number), len(paths))
    for path, share in zip(paths, shares, strict=True):
        with Image.open(path) as opened:
            pixels = np.asarray(opened.convert("RGB"))
        for tile in share:
            edge = int(min(pixels.shape[:2]) * random.uniform(0.4, 1))
            top, left = (random.integers(0, length - edge + 1) for length in pixels.shape[:2])
            cut = pixels[top : top + edge, left : left + edge]
            shrunk = cv2.resize(cut, (side, side), interpolation=cv2.INTER_AREA)
            cv2.imwrite(str(targets[tile % 2] / f"{tile:06d}.bmp"), shrunk[..., ::-1])
    return root


def stored(variant: Variant, folder: Path, root: Path, raw_images: int = RAW_IMAGES) -> Stored:
    """The set of a variant below `root`, made unless another variant has already made it."""
    name = f"{variant.kind}-{variant.storage.max_side}"
    packed, files = root / f"{name}-packed", root / f"{name}-files"
    source = folder
    if variant.raw and not files.exists():
        source = tiles(folder, root / f"{name}-tiles", variant.size, raw_images)
    if not files.exists():
        pack(source, packed, storage=variant.storage, val_share=0)
        as_files(packed, files)
    return Stored(packed, files, Dataset(packed).images("train"))


def as_files(packed: Path, files: Path) -> None:
    """Write JPEGs as an ImageFolder, raw pixels as one array."""
    split = Dataset(packed).split("train")
    folder = files / "all"
    folder.mkdir(parents=True)
    if split.codec != "raw":
        for number in range(len(split)):
            (folder / f"{number:06d}.jpg").write_bytes(split.bytes_of(number))
        return
    sides = (int(split.heights[0]), int(split.widths[0]), 3)
    pixels = np.empty((len(split), *sides), np.uint8)
    for number in range(len(split)):
        data = np.frombuffer(split.bytes_of(number), np.uint8)
        pixels[number] = data[-pixels[number].size :].reshape(sides)
    np.save(files / "pixels.npy", pixels)
