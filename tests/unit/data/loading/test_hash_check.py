"""A stored image with a wrong hash is damaged, also where it decodes without an error."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from packing import as_folder, jpeg
from stoker.data.dataset import Dataset
from stoker.data.images.encode import Storage
from stoker.data.loading import hash_check
from stoker.data.loading.crops import View
from stoker.data.loading.loader import BatchLoader, LoaderOptions
from stoker.data.loading.order import InOrder, Order
from stoker.data.packing.pack import pack
from stoker.data.verify import verify
from stoker.errors import StokerError
from stoker.recipe.schedule import Batch
from wrong_sets import with_index

IMAGES, SIDE, BATCH, SHARD = 2000, 16, 100, 250
PER_EPOCH = IMAGES // BATCH
WAYS = {"jpeg": "jpeg", "original": "original", "raw": "raw", "raw, one by one": "raw"}
"""Ways through the loader: a name and its codec."""
pytestmark = pytest.mark.exact


@dataclass
class Shown:
    """Pixels and label by epoch and sample, and the messages of the loaders."""

    images: dict[tuple[int, int], tuple[bytes, int]] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)

    def differs_from(self, other: Shown) -> list[tuple[int, int]]:
        assert self.images.keys() == other.images.keys()
        return sorted(key for key in self.images if self.images[key] != other.images[key])


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("sets")
    files = [(f"c{n % 4}/{n:05d}.jpg", jpeg(n % 4, n, (SIDE, SIDE))) for n in range(IMAGES)]
    folder = as_folder(root / "photos", files)
    options = {"val_share": 0, "shard_images": SHARD, "workers": 1}
    return {
        codec: pack(folder, root / codec, storage=Storage(codec), **options)
        for codec in ("jpeg", "original", "raw")
    }


def shown(packed: Path, way: str, policy: str = "substitute", **settings: Any) -> Shown:
    """Everything that all ranks together are shown, by default in two epochs."""
    world, threads = settings.get("world", 1), settings.get("threads", 2)
    dataset, result = Dataset(packed), Shown()
    cache_bytes = 0 if "one by one" in way else 1 << 30
    report = result.messages.append
    options = LoaderOptions(cache_bytes=cache_bytes, on_damage=policy, report=report)
    for rank in range(world):
        split = dataset.split("train")
        order = Order(split.shard_sizes, dataset.fingerprint, seed=3, window=64)
        view, place = View(crop_pct=1.0), {"rank": rank, "world": world, "threads": threads}
        reader = BatchLoader(split, order, view, options=options, **place)
        assert (reader._small is not None) == (way == "raw")
        try:
            for loaded in reader.batches(plan(settings.get("steps", range(2 * PER_EPOCH)))):
                columns = (loaded.epochs, loaded.samples, loaded.images, loaded.labels)
                for epoch, sample, image, label in zip(*columns, strict=True):
                    result.images[int(epoch), int(sample)] = (image.tobytes(), int(label))
        finally:
            reader.close()
    return result


def plan(steps: range) -> Iterator[Batch]:
    return (Batch(step, step * BATCH, BATCH, SIDE) for step in steps)


@pytest.fixture(scope="module")
def intact(sets: dict[str, Path]) -> dict[str, Shown]:
    """What undamaged sets show."""
    return {way: shown(sets[codec], way) for way, codec in WAYS.items()}


def change(packed: Path, sample: int) -> None:
    """Change a byte of an image so that it still decodes, with other pixels."""
    row = pq.read_table(packed / "train" / "index.parquet").slice(sample, 1).to_pylist()[0]
    with (packed / "train" / f"{row['shard']:05d}.tar").open("r+b") as shard:
        shard.seek(row["offset"])
        data = shard.read(row["length"])
        # The first values of a quantisation table, or the first pixel.
        place = data.index(b"\xff\xdb") + 5 if b"\xff\xdb" in data[:256] else 128
        shard.seek(row["offset"] + place)
        shard.write(bytes([data[place] ^ 96]))


@pytest.fixture
def damaged(sets: dict[str, Path], tmp_path: Path) -> Callable[..., Path]:
    def make(codec: str, *samples: int) -> Path:
        copy = shutil.copytree(sets[codec], tmp_path / "-".join(map(str, (codec, *samples))))
        for sample in samples:
            change(copy, sample)
        return copy

    return make


@pytest.mark.parametrize("way", WAYS)
class TestEveryWay:
    def test_stop_names_the_image(self, damaged: Callable[..., Path], way: str) -> None:
        packed = damaged(WAYS[way], 321)
        with pytest.raises(StokerError, match=r"sample 321 is damaged: .*hash") as caught:
            shown(packed, way, "stop")
        row = pq.read_table(packed / "train" / "index.parquet").slice(321, 1).to_pylist()[0]
        for part in (f"{row['shard']:05d}.tar", f"byte {row['offset']}", row["path"], "pack again"):
            assert part in str(caught.value)

    def test_substitute_shows_another_and_leaves_the_rest(
        self, damaged: Callable[..., Path], intact: dict[str, Shown], way: str
    ) -> None:
        result = shown(damaged(WAYS[way], 17), way)
        assert result.differs_from(intact[way]) == [(0, 17), (1, 17)]
        assert len(result.messages) == 1
        whole = {image: label for (_, n), (image, label) in intact[way].images.items() if n != 17}
        for epoch in (0, 1):
            image, label = result.images[epoch, 17]
            assert whole[image] == label

    def test_any_threads_and_ranks_show_the_same(
        self, damaged: Callable[..., Path], way: str
    ) -> None:
        packed = damaged(WAYS[way], 500)
        plain = shown(packed, way, threads=1)
        for world, threads in ((1, 4), (2, 1), (3, 2)):
            result = shown(packed, way, world=world, threads=threads)
            assert result.differs_from(plain) == []
            assert result.messages

    def test_an_attempt_that_begins_in_mid_epoch_checks_what_it_reads(
        self, damaged: Callable[..., Path], intact: dict[str, Shown], way: str
    ) -> None:
        early = next(n for n in range(IMAGES) if is_early(intact[way], n))
        steps = range(PER_EPOCH // 2, 2 * PER_EPOCH)
        right = shown_from(intact[way], steps)
        result = shown(damaged(WAYS[way], early), way, steps=steps)
        assert result.differs_from(right) == [(1, early)]
        assert len(result.messages) == 1

    def test_more_than_one_in_a_thousand_stops(
        self, damaged: Callable[..., Path], way: str
    ) -> None:
        with pytest.raises(StokerError, match="3 of 2,000 images are damaged"):
            shown(damaged(WAYS[way], 17, 600, 1500), way)

    def test_evaluation_stops(self, damaged: Callable[..., Path], way: str) -> None:
        split = Dataset(damaged(WAYS[way], 42)).split("train")
        options = LoaderOptions(cache_bytes=0 if "one by one" in way else 1 << 30)
        reader = BatchLoader(split, InOrder(), View(), threads=1, options=options)
        with pytest.raises(StokerError, match="sample 42 is damaged"):
            list(reader.batches(plan(range(PER_EPOCH))))

    def test_a_set_without_hashes_trains_as_it_is(
        self, damaged: Callable[..., Path], intact: dict[str, Shown], way: str
    ) -> None:
        packed = damaged(WAYS[way], 17)
        index = pq.read_table(packed / "train" / "index.parquet")
        with_index(packed, index.drop_columns(["hash"]))
        result = shown(packed, way)
        assert result.differs_from(intact[way]) == [(0, 17), (1, 17)]
        assert result.messages == []

    def test_each_image_is_compared_once(
        self, sets: dict[str, Path], way: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sizes: list[int] = []
        real = hash_check.sha256

        def counted(data: memoryview) -> Any:
            sizes.append(len(data))
            return real(data)

        monkeypatch.setattr(hash_check, "sha256", counted)
        shown(sets[WAYS[way]], way, threads=1)
        assert len(sizes) == (IMAGES // SHARD if way == "raw" else IMAGES)


def is_early(whole: Shown, sample: int) -> bool:
    """Whether a sample is in the first quarter of the first epoch."""
    order = [n for epoch, n in whole.images if epoch == 0]
    return sample in order[: IMAGES // 4]


def shown_from(whole: Shown, steps: range) -> Shown:
    """What a run shows from a step on."""
    keys = list(whole.images)[steps.start * BATCH : steps.stop * BATCH]
    return Shown({key: whole.images[key] for key in keys})


def test_damage_outside_the_images_changes_nothing(
    sets: dict[str, Path], intact: dict[str, Shown], tmp_path: Path
) -> None:
    packed = shutil.copytree(sets["raw"], tmp_path / "raw")
    with (packed / "train" / "00000.tar").open("r+b") as shard:
        shard.write(b"9")  # the name of the first member
    assert verify(packed).problems
    result = shown(packed, "raw", "stop")
    assert result.differs_from(intact["raw"]) == []


def test_the_check_can_be_switched_off(damaged: Callable[..., Path]) -> None:
    split = Dataset(damaged("jpeg", 17)).split("train")
    options = LoaderOptions(check_hashes=False)
    reader = BatchLoader(split, InOrder(), View(), threads=1, options=options)
    images = sum(len(loaded.images) for loaded in reader.batches(plan(range(PER_EPOCH))))
    assert images == IMAGES
    assert np.shape(split.labels) == (IMAGES,)
