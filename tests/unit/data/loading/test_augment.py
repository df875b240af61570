"""Augmentation is a function of (seed, epoch, sample): not of chunks, threads, ranks or codecs."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path

import cv2
import numpy as np
import pytest

from samples import image_folder
from stoker.data.dataset import Dataset
from stoker.data.images.encode import Storage
from stoker.data.loading.augment import (
    BINS,
    NAMES,
    NONE,
    RANGES,
    Augmentation,
    augment,
    draw,
    draw_erased,
    exponential,
    strength_of,
)
from stoker.data.loading.crops import View
from stoker.data.loading.loader import BatchLoader, LoaderOptions
from stoker.data.loading.order import Order
from stoker.data.packing.pack import pack
from stoker.recipe.schedule import Batch

ALL = {
    "trivial": Augmentation("trivial"),
    "rand": Augmentation("rand", 3, 15),
    "jitter": Augmentation(color_jitter=0.4),
    "erasing": Augmentation(random_erasing=0.7),
    "everything": Augmentation("trivial", color_jitter=0.4, random_erasing=0.5),
}
PINNED = {
    "trivial": "b03fa5905fe3309f",
    "rand": "f3c25cd56400b146",
    "jitter": "3cda1ed6b846051e",
    "erasing": "b897667257dd65f0",
    "everything": "aa7eaa13954cb480",
}
"""Made with the OpenCV of constraints.txt; a warp may differ with another one."""
pytestmark = pytest.mark.exact


def pictures(count: int, side: int = 24) -> np.ndarray:
    down, across, number = np.mgrid[0:side, 0:side, 0:count]
    planes = [(across * 7 + number * 31) % 256, (down * 9) % 256, (across * down + number) % 256]
    return np.ascontiguousarray(np.stack(planes, -1).transpose(2, 0, 1, 3).astype(np.uint8))


def augmented(how: Augmentation, samples: range, epoch: int = 0, seed: int = 5) -> np.ndarray:
    images = pictures(max(samples) + 1)[list(samples)]
    augment(how, seed, np.array(samples), np.full(len(samples), epoch), images)
    return images


@pytest.mark.parametrize("name", ALL)
def test_the_bytes_are_pinned(name: str) -> None:
    if not cv2.__version__.startswith("5."):
        pytest.skip(f"the hashes are those of OpenCV 5, and this is {cv2.__version__}")
    images = augmented(ALL[name], range(64))
    assert hashlib.sha256(images.tobytes()).hexdigest()[:16] == PINNED[name]


@pytest.mark.parametrize("name", ALL)
def test_chunks_do_not_matter_and_epochs_and_seeds_do(name: str) -> None:
    whole = augmented(ALL[name], range(20))
    parts = [augmented(ALL[name], range(begin, begin + 5)) for begin in range(0, 20, 5)]
    assert np.array_equal(whole, np.concatenate(parts))
    assert not np.array_equal(whole, augmented(ALL[name], range(20), epoch=1))
    assert not np.array_equal(whole, augmented(ALL[name], range(20), seed=6))


def test_every_operation_is_drawn_equally_often() -> None:
    samples = np.arange(14_000)
    drawn = draw(Augmentation("trivial"), 0, 32, samples, samples * 0)
    counts = Counter(operation[0] for one in drawn for operation in one.operations)
    assert set(counts) == set(NAMES)
    assert all(850 < count < 1150 for count in counts.values())
    signs = [strength > 0 for one in drawn for name, strength in one.operations if name == "rotate"]
    assert 0.4 < np.mean(signs) < 0.6


def test_rand_augment_has_its_number_of_operations_and_one_strength() -> None:
    drawn = draw(Augmentation("rand", 3, 30), 0, 331, np.arange(500), np.zeros(500, np.int64))
    assert {len(one.operations) for one in drawn} == {3}
    strengths = {abs(s) for one in drawn for name, s in one.operations if name == "move x"}
    assert strengths == {150}


def test_the_ranges_are_those_of_torchvision() -> None:
    autoaugment = pytest.importorskip("torchvision.transforms.autoaugment")
    ours = ("shear x", "move x", "rotate", "brightness", "posterize", "solarize")
    theirs = ("ShearX", "TranslateX", "Rotate", "Brightness", "Posterize", "Solarize")
    space = autoaugment.TrivialAugmentWide()._augmentation_space(BINS)
    other = autoaugment.RandAugment()._augmentation_space(BINS, (64, 64))
    for auto, table in (("trivial", space), ("rand", other)):
        for name, key in zip(ours, theirs, strict=True):
            for number in range(BINS):
                strength = strength_of(name, RANGES[auto], number, 1, 64)
                expected = float(table[key][0][number])
                if name == "brightness":
                    assert strength / 256 == pytest.approx(1 + expected, abs=1 / 512)
                elif name in ("shear x", "rotate"):
                    assert strength / 256 == pytest.approx(expected, abs=1 / 500)
                elif name == "solarize":
                    assert strength - 1 < expected <= strength + 1e-4
                else:
                    assert strength == int(expected + 1e-4)


def test_jitter_stays_within_its_limits_in_every_order() -> None:
    drawn = draw(Augmentation(color_jitter=0.4), 0, 32, np.arange(600), np.zeros(600, np.int64))
    factors = [strength / 256 for one in drawn for _, strength in one.operations]
    assert min(factors) >= 0.6 - 1 / 256
    assert max(factors) <= 1.4 + 1 / 256
    assert min(factors) < 0.65
    assert max(factors) > 1.35
    assert len({tuple(name for name, _ in one.operations) for one in drawn}) == 6


@pytest.mark.parametrize("side", [1, 2, 8, 224])
def test_erased_boxes_are_inside_and_as_frequent_as_asked(side: int) -> None:
    samples = np.arange(4000)
    boxes = draw_erased(0.25, 0, side, samples, samples * 0)
    found = [box for box in boxes if box]
    for left, top, right, bottom, colour in found:
        assert 0 <= left < right <= side
        assert 0 <= top < bottom <= side
        assert 0 <= colour < 1 << 24
    if side == 224:
        assert 0.22 < len(found) / 4000 < 0.28
        areas = [(r - left) * (b - top) / side**2 for left, top, r, b, _ in found]
        assert min(areas) > 0.015
        assert max(areas) < 0.35


def test_the_series_is_the_exponential() -> None:
    x = np.linspace(-1.3, 1.3, 101)
    assert exponential(x) == pytest.approx(np.exp(x), rel=1e-14)


def test_an_image_of_one_pixel_survives_everything() -> None:
    for name in ALL:
        images = np.full((200, 1, 1, 3), 77, np.uint8)
        augment(ALL[name], 0, np.arange(200), np.zeros(200, np.int64), images)


def test_what_is_done_is_said() -> None:
    samples = np.arange(300)
    drawn = draw(ALL["everything"], 0, 64, samples, samples * 0)
    texts = {text.split()[0] for one in drawn for text in one.texts()}
    assert {"rotate", "move", "shear", "posterize", "solarize", "erased", "brightness"} <= texts
    assert draw(NONE, 0, 64, samples, samples)[0].texts() == []


@pytest.fixture(scope="module", params=["jpeg", "raw"])
def packed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    root: Path = tmp_path_factory.mktemp("augmented")
    raw = request.param == "raw"
    photos = image_folder(root / "photos", size=(32, 32) if raw else (80, 60), suffix="png")
    storage = Storage(codec=request.param)
    out = pack(photos, root / "packed", storage=storage, val_share=0, shard_images=16, workers=1)
    return Dataset(out)


def test_threads_ranks_and_the_compiled_extra_do_not_matter(packed: Dataset) -> None:
    split = packed.split("train")
    order = Order(split.shard_sizes, packed.fingerprint, 0)
    plan = [Batch(n, n * 24, 24, 32) for n in range(4)]

    def batches(
        how: Augmentation, world: int = 1, threads: int = 1, compiled: bool = True
    ) -> bytes:
        options = LoaderOptions(compiled=compiled)
        view = View(crop="pad", hflip=True, augmentation=how)
        made: list[list[bytes]] = []
        for rank in range(world):
            loader = BatchLoader(
                split, order, view, rank=rank, world=world, threads=threads, options=options
            )
            made.append([loaded.images.tobytes() for loaded in loader.batches(plan)])
            loader.close()
        return b"".join(b"".join(parts) for parts in zip(*made, strict=True))

    expected = batches(ALL["everything"])
    assert expected != batches(NONE)
    assert expected == batches(ALL["everything"], threads=4)
    assert expected == batches(ALL["everything"], world=2, threads=2)
    assert expected == batches(ALL["everything"], world=3)
    assert expected == batches(ALL["everything"], compiled=False)
