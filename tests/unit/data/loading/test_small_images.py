"""Many small images at once are the same images as one at a time."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samples import picture
from stoker.data.dataset import Dataset, SplitIndex
from stoker.data.images.encode import Storage
from stoker.data.loading.crops import View
from stoker.data.loading.loader import BatchLoader, LoaderOptions
from stoker.data.loading.order import Order
from stoker.data.loading.render import write_crop
from stoker.data.loading.small_images import SmallImages, cache_bytes, reflected, suits
from stoker.data.packing.pack import pack
from stoker.recipe.recipe import Recipe
from stoker.recipe.schedule import Timeline

SIDE = 12


def packed(folder: Path, size: tuple[int, int], images: int = 30) -> SplitIndex:
    for number in range(images):
        file = folder / "photos" / ("cat", "dog")[number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        picture(number % 3, number, size).save(file)
    out = pack(
        folder / "photos",
        folder / "out",
        storage=Storage(codec="raw", max_side=0),
        val_share=0,
        shard_images=7,
        workers=1,
    )
    return Dataset(out).split("train")


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> SplitIndex:
    return packed(tmp_path_factory.mktemp("small"), (SIDE, SIDE))


def one_by_one(
    split: SplitIndex, samples: np.ndarray, edges: np.ndarray, flip: np.ndarray, size: int
) -> np.ndarray:
    out = np.empty((len(samples), size, size, 3), np.uint8)
    for number, sample in enumerate(samples.tolist()):
        data = split.bytes_of(sample)
        image = np.frombuffer(data, np.uint8)[-SIDE * SIDE * 3 :].reshape(SIDE, SIDE, 3)
        write_crop(image, edges[number].tolist(), bool(flip[number]), out[number])
    return out


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(1, 40),
    reach=st.integers(0, SIDE - 1),
    mirrored=st.sampled_from(["none", "all", "some"]),
)
def test_moved_boxes_are_those_of_one_at_a_time(
    split: SplitIndex, seed: int, count: int, reach: int, mirrored: str
) -> None:
    random = np.random.default_rng(seed)
    samples = random.integers(0, len(split), count)
    corner = random.integers(-reach, reach + 1, (count, 2))
    edges = np.concatenate([corner, corner + SIDE], axis=1)
    flip = {"none": np.zeros, "all": np.ones}.get(mirrored, lambda n, _: random.random(n) < 0.5)(
        count, bool
    )
    out = np.empty((count, SIDE, SIDE, 3), np.uint8)
    SmallImages(split).fill(samples, edges, flip, out)
    assert np.array_equal(out, one_by_one(split, samples, edges, flip, SIDE))


@pytest.mark.parametrize("size", [5, 12, 30])
def test_boxes_of_other_sizes_are_those_of_one_at_a_time(split: SplitIndex, size: int) -> None:
    random = np.random.default_rng(3)
    samples = random.integers(0, len(split), 20)
    corner = random.integers(-2, 3, (20, 2))
    edges = np.concatenate([corner, corner + random.integers(4, 9, (20, 1))], axis=1)
    flip = random.random(20) < 0.5
    out = np.empty((20, size, size, 3), np.uint8)
    SmallImages(split).fill(samples, edges, flip, out)
    assert np.array_equal(out, one_by_one(split, samples, edges, flip, size))


@pytest.mark.parametrize("threads", [1, 4])
def test_the_loader_gives_the_same_bytes_either_way(split: SplitIndex, threads: int) -> None:
    def batches(cache_bytes: int) -> list[bytes]:
        order = Order(split.shard_sizes, "set", seed=5, window=8)
        view = View(crop="pad", crop_pct=1.0, crop_pad=3, hflip=True, seed=5)
        plan = Timeline.of(Recipe(epochs=4, batch_size=8, image_size=SIDE), len(split)).batches()
        options = LoaderOptions(cache_bytes=cache_bytes)
        loader = BatchLoader(split, order, view, threads=threads, options=options)
        assert (loader._small is None) == (cache_bytes == 0)
        return [loaded.images.tobytes() for loaded in loader.batches(plan)]

    assert batches(1 << 30) == batches(0)


def test_few_shards_are_kept(split: SplitIndex) -> None:
    small = SmallImages(split)
    small._most = 2
    before = {number: small.shard(number).copy() for number in range(len(split.shards))}
    assert len(small._shards) == 2
    for number, images in before.items():
        assert np.array_equal(small.shard(number), images)
    held = small.shard(0)
    for number in (1, 2, 3):
        small.shard(number)
    assert np.array_equal(held, before[0])  # not overwritten while somebody copies from it


def test_sets_that_do_not_suit_go_the_other_way(split: SplitIndex, tmp_path: Path) -> None:
    assert suits(split, 1, cache_bytes(split, 1))
    assert not suits(split, 1, cache_bytes(split, 1) - 1)
    assert not suits(packed(tmp_path / "oblong", (SIDE, SIDE + 1)), 1, 1 << 30)
    assert not suits(packed(tmp_path / "large", (160, 160), images=3), 1, 1 << 30)


@pytest.mark.parametrize(
    ("sizes", "lanes", "shards"),
    [
        ([1000] * 300, 1, 7),
        ([1000] * 300, 8, 56),
        ([1000] * 300 + [1], 1, 8),
        ([1000, 0] * 300, 1, 7),
        ([5000] * 300, 1, 3),
        ([10] * 300, 1, 300),
        ([1000] * 4, 1, 4),
    ],
)
def test_memory_is_that_of_the_shards_in_use(sizes: list[int], lanes: int, shards: int) -> None:
    """A window reaches into five shards of a thousand images, whatever the size of the set."""
    shard = {"bytes": 14 << 20}
    sizes_bytes = np.full(len(sizes), shard["bytes"])
    large = SimpleNamespace(
        shard_sizes=np.array(sizes), shards=[shard] * len(sizes), shard_bytes=sizes_bytes
    )
    assert cache_bytes(large, lanes) == shards * shard["bytes"]  # type: ignore[arg-type]


@given(index=st.integers(-100, 100), side=st.integers(1, 20))
def test_indices_outside_an_edge_are_mirrored(index: int, side: int) -> None:
    row = np.arange(side)
    wide = np.pad(row, 100, mode="reflect") if side > 1 else np.zeros(201, int)
    if index + 100 < len(wide):
        assert reflected(np.array([index]), side)[0] == wide[index + 100]
