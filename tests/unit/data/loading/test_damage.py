"""A damaged image: training stops and names it, or shows another one."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from golden import check_golden
from packing import as_folder, jpeg
from stoker import chance
from stoker.data.dataset import Dataset
from stoker.data.loading.crops import View
from stoker.data.loading.damage import MOST, Damage
from stoker.data.loading.loader import BatchLoader, LoaderOptions
from stoker.data.loading.order import Order
from stoker.data.packing.pack import pack
from stoker.errors import StokerError
from stoker.recipe.schedule import Batch

IMAGES, SIDE, BATCH = 2000, 8, 100
PER_EPOCH = IMAGES // BATCH
Shown = dict[tuple[int, int], tuple[bytes, int]]
"""Pixels and label by epoch and sample."""


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("set")
    listed = [(f"c{n % 4}/{n:05d}.jpg", jpeg(n % 4, n, (SIDE, SIDE))) for n in range(IMAGES)]
    folder = as_folder(root / "photos", listed)
    return pack(folder, root / "packed", val_share=0, shard_images=500, workers=1)


@pytest.fixture(scope="module")
def right(intact: Path) -> Shown:
    """What an undamaged set shows in its first two epochs."""
    return shown(intact)


def overwrite(packed: Path, samples: list[int]) -> None:
    """Zero the stored bytes of some images."""
    rows = pq.read_table(packed / "train" / "index.parquet").to_pylist()
    for row in (rows[sample] for sample in samples):
        with (packed / "train" / f"{row['shard']:05d}.tar").open("r+b") as shard:
            shard.seek(row["offset"])
            shard.write(bytes(row["length"]))


@pytest.fixture
def damaged(intact: Path, tmp_path: Path) -> Callable[..., Path]:
    def make(*samples: int) -> Path:
        copy = shutil.copytree(intact, tmp_path / "-".join(map(str, samples)))
        overwrite(copy, list(samples))
        return copy

    return make


def plan(epochs: range = range(2)) -> Iterator[Batch]:
    for step in range(epochs.start * PER_EPOCH, epochs.stop * PER_EPOCH):
        yield Batch(step, step * BATCH, BATCH, SIDE)


def shown(
    packed: Path,
    *,
    policy: str = "substitute",
    threads: int = 2,
    world: int = 1,
    epochs: range = range(2),
    messages: list[str] | None = None,
) -> Shown:
    """Everything that all ranks together are shown."""
    dataset, images = Dataset(packed), {}
    for rank in range(world):
        split = dataset.split("train")
        reader = BatchLoader(
            split,
            Order(split.shard_sizes, dataset.fingerprint, seed=3, window=64),
            View(crop_pct=1.0),
            rank=rank,
            world=world,
            threads=threads,
            options=LoaderOptions(
                on_damage=policy, report=(messages if messages is not None else []).append
            ),
        )
        try:
            for loaded in reader.batches(plan(epochs)):
                columns = (loaded.epochs, loaded.samples, loaded.images, loaded.labels)
                for epoch, sample, image, label in zip(*columns, strict=True):
                    images[int(epoch), int(sample)] = (image.tobytes(), int(label))
        finally:
            reader.close()
    return images


def differing(one: Shown, two: Shown) -> list[tuple[int, int]]:
    assert one.keys() == two.keys()
    return sorted(key for key in one if one[key] != two[key])


def first_choice(sample: int, epoch: int) -> int:
    """The image that is tried first in place of a damaged one."""
    return int(chance.hash_of("instead", sample, epoch, 0)[0] % IMAGES)


def shown_in_time(packed: Path, epochs: range) -> Shown:
    """Everything that is shown; fails where the search for a substitute does not end."""
    results: list[Shown] = []
    work = threading.Thread(
        target=lambda: results.append(shown(packed, epochs=epochs)), daemon=True
    )
    work.start()
    work.join(300)
    assert results, "the search for a substitute does not end"
    return results[0]


class TestSubstitute:
    def test_an_undamaged_set_is_shown_as_it_is(self, intact: Path, right: Shown) -> None:
        messages: list[str] = []
        assert differing(shown(intact, messages=messages), right) == []
        assert messages == []
        assert len(right) == 2 * IMAGES
        assert len({image for image, _ in right.values()}) == IMAGES

    def test_another_image_is_shown_with_its_own_label(
        self, damaged: Callable[..., Path], right: Shown
    ) -> None:
        found = shown(damaged(17))
        assert differing(found, right) == [(0, 17), (1, 17)]
        whole = {image: (sample, label) for (_, sample), (image, label) in right.items()}
        for epoch in (0, 1):
            image, label = found[epoch, 17]
            sample, own_label = whole[image]
            assert sample != 17
            assert label == own_label

    def test_it_is_reported_once_with_shard_and_byte(self, damaged: Callable[..., Path]) -> None:
        messages: list[str] = []
        packed = damaged(17)
        shown(packed, messages=messages)
        (message,) = messages
        row = pq.read_table(packed / "train" / "index.parquet").slice(17, 1).to_pylist()[0]
        for part in (f"{row['shard']:05d}.tar", f"byte {row['offset']}", row["path"], "sample 17"):
            assert part in message

    @pytest.mark.parametrize("world", [1, 2, 3])
    @pytest.mark.parametrize("threads", [1, 4])
    def test_the_same_whatever_the_threads_and_ranks(
        self, damaged: Callable[..., Path], threads: int, world: int
    ) -> None:
        packed = damaged(500)
        plain = shown(packed, threads=1)
        assert differing(shown(packed, threads=threads, world=world), plain) == []

    @pytest.mark.timeout(300)
    def test_an_image_never_replaces_itself(self, damaged: Callable[..., Path]) -> None:
        """Once in so many a hash chooses the very image that is damaged."""
        sample, epoch = next(
            (sample, epoch)
            for epoch in range(100)
            for sample in range(IMAGES)
            if first_choice(sample, epoch) == sample
        )
        found = shown_in_time(damaged(sample), range(epoch, epoch + 1))
        assert len(found) == IMAGES

    @pytest.mark.timeout(300)
    def test_nor_does_another_damaged_one(self, damaged: Callable[..., Path], right: Shown) -> None:
        one = next(n for n in range(IMAGES) if first_choice(n, 0) != n)
        other = first_choice(one, 0)
        packed = damaged(one, other)
        found = shown_in_time(packed, range(2))
        assert differing(found, right) == sorted((e, n) for e in (0, 1) for n in (one, other))
        whole = {
            image: label
            for (_, sample), (image, label) in right.items()
            if sample not in (one, other)
        }
        for key in differing(found, right):
            image, label = found[key]
            assert whole[image] == label
        # Whichever of the two is met first, and by whom.
        for threads, world in ((1, 2), (4, 3)):
            assert differing(shown(packed, threads=threads, world=world), found) == []

    def test_more_than_one_in_a_thousand_stops(self, damaged: Callable[..., Path]) -> None:
        assert MOST * IMAGES == 2
        with pytest.raises(StokerError, match="3 of 2,000 images are damaged"):
            shown(damaged(17, 600, 1500))


class TestStop:
    def test_names_shard_offset_and_original_path(self, damaged: Callable[..., Path]) -> None:
        packed = damaged(321)
        with pytest.raises(StokerError) as caught:
            shown(packed, policy="stop")
        row = pq.read_table(packed / "train" / "index.parquet").slice(321, 1).to_pylist()[0]
        message = str(caught.value)
        for part in (f"{row['shard']:05d}.tar", f"byte {row['offset']}", row["path"], "pack again"):
            assert part in message
        assert "\n" not in message

    def test_and_does_not_where_nothing_is_damaged(self, intact: Path, right: Shown) -> None:
        assert differing(shown(intact, policy="stop"), right) == []


class FakeSplit:
    """A split of a thousand images that names any of them."""

    def __len__(self) -> int:
        return 1000

    def origin_of(self, sample: int) -> str:
        return f"set/train/00001.tar at byte {sample}512 (from cat/{sample}.jpg)"


def test_messages_golden() -> None:
    lines = []
    for substitute in (False, True):
        damage = Damage(FakeSplit(), substitute)  # type: ignore[arg-type]
        for sample in (17, 18)[: 1 + substitute]:
            try:
                next(damage.substitutes(sample, 0, ValueError("a decoder's reason")))
            except StokerError as error:
                lines.append(str(error))
        lines += damage.new_messages()
    check_golden("loading_damage", lines)


def test_a_shard_that_lost_its_end_is_an_error_whatever_the_policy(
    intact: Path, tmp_path: Path
) -> None:
    packed = shutil.copytree(intact, tmp_path / "cut")
    shard = packed / "train" / "00001.tar"
    with shard.open("r+b") as file:
        file.truncate(shard.stat().st_size - 512)
    for policy in ("stop", "substitute"):
        with pytest.raises(StokerError, match=r"00001\.tar"):
            shown(packed, policy=policy)
