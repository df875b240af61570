"""The bytes of a batch depend on (set, seed, position) alone."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from samples import image_folder
from stoker.data.dataset import Dataset
from stoker.data.images.encode import Storage
from stoker.data.loading.crops import View
from stoker.data.loading.loader import (
    CHUNK,
    DECODERS,
    BatchLoader,
    LoaderOptions,
    Pixels,
    PlainMemory,
)
from stoker.data.loading.order import InOrder, Order
from stoker.data.packing.pack import pack
from stoker.errors import StokerError
from stoker.recipe.recipe import Phase, Recipe
from stoker.recipe.schedule import Batch, Timeline

TRAINING = {
    "jpeg": View(crop="resized", hflip=True, seed=5),
    "raw": View(crop="pad", crop_pct=1.0, hflip=True, seed=5),
}
SIZES = {"jpeg": (120, 90), "raw": (20, 20)}
RECIPE = Recipe(epochs=2, batch_size=20, image_size=24)


def packed_set(root: Path, codec: str) -> Path:
    folder = image_folder(root / "photos", images=24, size=SIZES[codec])
    storage = Storage(codec=codec)
    return pack(folder, root / "packed", storage=storage, val_share=0, shard_images=16, workers=1)


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Dataset]:
    """Seventy-two images in five shards, in each codec."""
    return {codec: Dataset(packed_set(tmp_path_factory.mktemp(codec), codec)) for codec in SIZES}


@dataclass
class Made:
    """A copy of one batch."""

    images: Pixels
    labels: np.ndarray
    samples: np.ndarray
    epochs: np.ndarray

    def same(self, other: Made) -> bool:
        return all(
            a.dtype == b.dtype and a.shape == b.shape and (a == b).all()
            for a, b in zip(vars(self).values(), vars(other).values(), strict=True)
        )


def timeline(dataset: Dataset, recipe: Recipe = RECIPE) -> Timeline:
    return Timeline.of(recipe, dataset.images("train"))


def loader(
    dataset: Dataset, *, lanes: int = 1, view: View | None = None, **options: Any
) -> BatchLoader:
    split = dataset.split("train")
    order = Order(split.shard_sizes, dataset.fingerprint, seed=3, lanes=lanes, window=16)
    return BatchLoader(split, order, view or TRAINING[dataset.codec], **options)


def made(dataset: Dataset, plan: Iterable[Batch] | None = None, **options: Any) -> list[Made]:
    """Copies of all batches of a plan (the whole run, unless one is given)."""
    reader = loader(dataset, **options)
    plan = timeline(dataset).batches() if plan is None else plan
    try:
        return [
            Made(
                loaded.images.copy(),
                loaded.labels.copy(),
                loaded.samples.copy(),
                loaded.epochs.copy(),
            )
            for loaded in reader.batches(plan)
        ]
    finally:
        reader.close()


def all_same(one: list[Made], two: list[Made]) -> bool:
    return len(one) == len(two) and all(a.same(b) for a, b in zip(one, two, strict=True))


def joined(parts: Iterable[Made]) -> Made:
    columns = zip(*(vars(part).values() for part in parts), strict=True)
    return Made(*(np.concatenate(column) for column in columns))


@pytest.mark.parametrize("codec", SIZES)
class TestSameBytes:
    @pytest.mark.parametrize("prefetch", [1, 4])
    @pytest.mark.parametrize("threads", [1, 2, 4])
    def test_whatever_the_threads_and_batches_ahead(
        self, sets: dict[str, Dataset], codec: str, threads: int, prefetch: int
    ) -> None:
        plainest = made(sets[codec], threads=1, prefetch=1)
        assert len(plainest) == 7
        assert all_same(made(sets[codec], threads=threads, prefetch=prefetch), plainest)

    @pytest.mark.parametrize("lanes", [1, 2, 4])
    @pytest.mark.parametrize("world", [1, 2, 3, 4])
    def test_whatever_the_number_of_ranks(
        self, sets: dict[str, Dataset], codec: str, world: int, lanes: int
    ) -> None:
        alone = made(sets[codec], lanes=lanes)
        ranks = [made(sets[codec], lanes=lanes, rank=rank, world=world) for rank in range(world)]
        assert {len(batches) for batches in ranks} == {len(alone)}
        assert all_same([joined(parts) for parts in zip(*ranks, strict=True)], alone)

    @pytest.mark.parametrize("lanes", [1, 4])
    @pytest.mark.parametrize("step", [1, 3, 6])
    def test_wherever_the_run_goes_on(
        self, sets: dict[str, Dataset], codec: str, step: int, lanes: int
    ) -> None:
        whole = made(sets[codec], lanes=lanes)
        rest = timeline(sets[codec]).batches(step * RECIPE.batch_size)
        assert all_same(made(sets[codec], rest, lanes=lanes), whole[step:])

    def test_whatever_is_in_the_buffers(self, sets: dict[str, Dataset], codec: str) -> None:
        class Scribbled(PlainMemory):
            def _make(self, shape: tuple[int, ...]) -> Pixels:
                return np.random.default_rng(1).integers(0, 256, shape, dtype=np.uint8)

        assert all_same(
            made(sets[codec], options=LoaderOptions(memory=Scribbled)), made(sets[codec])
        )


class TestBatches:
    def test_labels_are_the_folders_of_the_images(self, sets: dict[str, Dataset]) -> None:
        dataset = sets["jpeg"]
        paths = pq.read_table(dataset.path / "train" / "index.parquet").column("path").to_pylist()
        for batch in made(dataset):
            named = [dataset.classes[label] for label in batch.labels]
            assert named == [Path(paths[sample]).parts[0] for sample in batch.samples]

    def test_images_show_the_colour_of_their_class(self, sets: dict[str, Dataset]) -> None:
        for codec in SIZES:
            for batch in made(sets[codec]):
                mean = batch.images.reshape(len(batch.images), -1, 3).mean(axis=1)
                np.testing.assert_array_equal(mean.argmax(axis=1), batch.labels)

    def test_each_epoch_holds_each_sample_once(self, sets: dict[str, Dataset]) -> None:
        run = joined(made(sets["jpeg"], lanes=4))
        assert sorted(run.samples[run.epochs == 0]) == list(range(72))
        last = run.samples[run.epochs == 1]
        assert len(set(last)) == len(last) == 7 * 20 - 72

    def test_two_epochs_see_different_crops(self, sets: dict[str, Dataset]) -> None:
        run = joined(made(sets["jpeg"]))
        first, second = (
            dict(zip(run.samples[run.epochs == e], run.images[run.epochs == e], strict=True))
            for e in (0, 1)
        )
        changed = [(first[sample] != second[sample]).any() for sample in second]
        assert all(changed)

    def test_another_seed_sees_different_crops(self, sets: dict[str, Dataset]) -> None:
        view = TRAINING["jpeg"]
        one, two = (joined(made(sets["jpeg"], view=replace(view, seed=s))) for s in (1, 2))
        np.testing.assert_array_equal(one.samples, two.samples)
        assert (one.images != two.images).any(axis=(1, 2, 3)).all()

    def test_a_centred_view_is_the_same_in_every_epoch(self, sets: dict[str, Dataset]) -> None:
        run = joined(made(sets["jpeg"], view=View(crop="centre")))
        first = dict(zip(run.samples[:72], run.images[:72], strict=True))
        for sample, image in zip(run.samples[72:], run.images[72:], strict=True):
            np.testing.assert_array_equal(image, first[sample])

    @pytest.mark.parametrize("codec", SIZES)
    def test_image_and_batch_size_may_change_in_mid_run(
        self, sets: dict[str, Dataset], codec: str
    ) -> None:
        phases = (
            Phase(from_epoch=0, image_size=16, batch_size=20),
            Phase(from_epoch=1, image_size=40, batch_size=12),
        )
        recipe = replace(RECIPE, epochs=3, phases=phases)
        run = timeline(sets[codec], recipe)
        whole = made(sets[codec], run.batches())
        shapes = [batch.images.shape for batch in whole]
        assert shapes == [(20, 16, 16, 3)] * 4 + [(12, 40, 40, 3)] * 11
        assert sorted(joined_samples(whole)[:72]) == list(range(72))
        ranks = [made(sets[codec], run.batches(), rank=rank, world=2) for rank in range(2)]
        assert all_same([joined(parts) for parts in zip(*ranks, strict=True)], whole)
        assert all_same(made(sets[codec], run.batches(80)), whole[4:])

    def test_a_batch_smaller_than_the_world_leaves_ranks_empty_handed(
        self, sets: dict[str, Dataset]
    ) -> None:
        plan = [Batch(step=0, position=0, size=2, image_size=16)]
        ranks = [made(sets["jpeg"], plan, rank=rank, world=4)[0] for rank in range(4)]
        assert sum(len(part.images) for part in ranks) == 2
        assert joined(ranks).same(made(sets["jpeg"], plan)[0])

    def test_an_empty_plan_has_no_batches(self, sets: dict[str, Dataset]) -> None:
        assert made(sets["jpeg"], []) == []


def joined_samples(batches: list[Made]) -> list[int]:
    return [int(sample) for batch in batches for sample in batch.samples]


class TestBuffers:
    @pytest.mark.parametrize("prefetch", [1, 3])
    def test_are_used_again(self, sets: dict[str, Dataset], prefetch: int) -> None:
        allocated: list[tuple[int, ...]] = []

        class Counted(PlainMemory):
            def _make(self, shape: tuple[int, ...]) -> Pixels:
                allocated.append(shape)
                return super()._make(shape)

        recipe = replace(RECIPE, epochs=14)
        plan, options = timeline(sets["raw"], recipe).batches(), LoaderOptions(memory=Counted)
        assert len(made(sets["raw"], plan, prefetch=prefetch, options=options)) == 50
        assert len(allocated) <= prefetch + 1

    def test_a_batch_stays_as_it_is_until_the_next_is_asked_for(
        self, sets: dict[str, Dataset]
    ) -> None:
        reader, pause = loader(sets["raw"], prefetch=4), threading.Event()
        for loaded in reader.batches(timeline(sets["raw"]).batches()):
            before = loaded.images.copy()
            pause.wait(0.02)
            np.testing.assert_array_equal(loaded.images, before)
        reader.close()

    @pytest.mark.timeout(300)
    def test_a_loader_left_in_the_middle_leaves_no_threads(self, sets: dict[str, Dataset]) -> None:
        reader = loader(sets["jpeg"], threads=2, prefetch=4)
        batches = reader.batches(timeline(sets["jpeg"]).batches())
        next(batches)
        batches.close()
        reader.close()
        assert not [t for t in threading.enumerate() if t.name.startswith("stoker-decode")]


@pytest.fixture
def hurt(sets: dict[str, Dataset], tmp_path: Path) -> Path:
    """A copy of the JPEG set, to be damaged."""
    return shutil.copytree(sets["jpeg"].path, tmp_path / "hurt")


def size_in_header(data: bytes, change: int) -> bytes:
    """The same JPEG with another height in its frame header."""
    place = data.index(b"\xff\xc0") + 5
    height = int.from_bytes(data[place : place + 2], "big") + change
    return data[:place] + height.to_bytes(2, "big") + data[place + 2 :]


DAMAGE = {
    "zeros": lambda data: bytes(len(data)),
    "first bytes": lambda data: b"\0\0" + data[2:],
    "a hole to the end": lambda data: data[: len(data) // 2] + bytes(len(data) - len(data) // 2),
    "another file": lambda data: (b"<html>" * len(data))[: len(data)],
    "a smaller height": lambda data: size_in_header(data, -30),
    "a larger height": lambda data: size_in_header(data, 30),
}


class TestDamage:
    @pytest.mark.timeout(300)
    @pytest.mark.parametrize("name", DAMAGE)
    def test_a_damaged_sample_is_named_with_shard_byte_and_path(
        self, hurt: Path, name: str
    ) -> None:
        row = pq.read_table(hurt / "train" / "index.parquet").slice(40, 1).to_pylist()[0]
        shard = hurt / "train" / f"{row['shard']:05d}.tar"
        data, start, end = shard.read_bytes(), row["offset"], row["offset"] + row["length"]
        shard.write_bytes(data[:start] + DAMAGE[name](data[start:end]) + data[end:])
        with pytest.raises(StokerError) as error:
            made(Dataset(hurt))
        for fact in (str(shard), f"byte {start}", row["path"], "pack again"):
            assert fact in str(error.value)

    def test_batches_before_the_damage_are_whole(
        self, hurt: Path, sets: dict[str, Dataset]
    ) -> None:
        whole = made(sets["jpeg"])
        last = int(whole[3].samples[7])
        row = pq.read_table(hurt / "train" / "index.parquet").slice(last, 1).to_pylist()[0]
        shard = hurt / "train" / f"{row['shard']:05d}.tar"
        data, end = shard.read_bytes(), row["offset"] + row["length"]
        shard.write_bytes(data[: row["offset"]] + bytes(row["length"]) + data[end:])
        dataset, seen = Dataset(hurt), []
        reader = loader(dataset)
        with pytest.raises(StokerError, match=f"sample {last} "):
            for loaded in reader.batches(timeline(dataset).batches()):
                seen.append(loaded.images.copy())  # noqa: PERF401 - kept when the next one raises
        reader.close()
        assert len(seen) == 3
        for images, batch in zip(seen, whole, strict=False):
            np.testing.assert_array_equal(images, batch.images)

    def test_a_shard_that_vanished_is_named(self, hurt: Path) -> None:
        (hurt / "train" / "00003.tar").unlink()
        with pytest.raises(StokerError, match=r"train/00003\.tar"):
            made(Dataset(hurt))


class TestDrawnAhead:
    """What a step needs of a batch is drawn by the threads, not by the one that trains."""

    def test_numbers_of_a_batch_come_with_it(self, sets: dict[str, Dataset]) -> None:
        threads: set[str] = set()

        def draw(batch: Batch, samples: Any, epochs: Any) -> list[int]:
            threads.add(threading.current_thread().name)
            return [batch.step, *(samples + 1000 * epochs).tolist()]

        reader = loader(sets["jpeg"], options=LoaderOptions(draw=draw))
        for batch in reader.batches(timeline(sets["jpeg"]).batches()):
            expected = (batch.samples + 1000 * batch.epochs).tolist()
            assert batch.drawn == [batch.batch.step, *expected]
        reader.close()
        assert all(name.startswith(DECODERS) for name in threads)

    def test_the_order_is_computed_by_the_threads(self, sets: dict[str, Dataset]) -> None:
        names: list[str] = []

        class Watched(InOrder):
            def part(self, *numbers: int) -> Any:
                names.append(threading.current_thread().name)
                return super().part(*numbers)

        split = sets["raw"].split("train")
        reader = BatchLoader(split, Watched(), TRAINING["raw"], threads=2)
        assert len(list(reader.batches([Batch(0, 0, 8, 24), Batch(1, 8, 8, 24)]))) == 2
        reader.close()
        assert len(names) == 2
        assert all(name.startswith(DECODERS) for name in names)

    def test_an_error_there_reaches_the_thread_that_waits(self, sets: dict[str, Dataset]) -> None:
        def fail(batch: Batch, samples: Any, epochs: Any) -> None:
            raise StokerError("no numbers")

        with pytest.raises(StokerError, match="no numbers"):
            made(sets["raw"], options=LoaderOptions(draw=fail))


@pytest.mark.parametrize(
    ("count", "threads", "expected"),
    [(256, 2, 64), (256, 12, 64), (250, 12, 62), (256, 24, 32), (64, 12, 16), (8, 1, 24)],
)
def test_a_task_of_the_compiled_extra_leaves_each_thread_one(
    sets: dict[str, Dataset], count: int, threads: int, expected: int
) -> None:
    reader = loader(sets["jpeg"], threads=threads, options=LoaderOptions(compiled=False))
    assert reader._chunk_images(count) == CHUNK
    reader._chunks = object()  # type: ignore[assignment]
    assert reader._chunk_images(count) == expected
    reader.close()
