"""`stoker.Loader`: tensors in one line, the same after a kill, for any number of ranks."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import stoker
from golden import check_golden
from samples import image_folder
from stoker.data.dataset import Dataset
from stoker.data.images.encode import Storage
from stoker.data.loading import torch_loader
from stoker.data.loading.loader import DECODERS
from stoker.data.packing.pack import pack
from stoker.errors import BadRequest
from stoker.recipe.resolve import resolve
from stoker.train.loaders import build_loaders, prepare
from stoker.train.model.build import Normalise
from stoker.train.model_input import input_maker
from stoker.train.process_group import Ranks
from stoker.train.transfer import InPlace
from waiting import until

pytestmark = pytest.mark.exact
IMAGES, VAL, BATCH, SIZE = 50, 11, 8, 16
CPU = torch.device("cpu")
Batches = list[tuple[Tensor, Tensor]]


@pytest.fixture(scope="module", params=["jpeg", "raw"])
def packed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sets")
    photos = image_folder(root / "photos", classes=2, images=IMAGES // 2, val=6, size=(40, 32))
    (photos / "val" / "class1" / f"{IMAGES // 2 + 5:04d}.jpg").unlink()  # an odd number
    storage = Storage(codec=request.param)
    return pack(photos, root / "packed", storage=storage, val_share=0, shard_images=16, workers=1)


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def no_threads_left() -> Iterator[None]:
    """A loader that is dropped, at whatever point, takes its threads along."""
    yield
    until(lambda: not decoders())


def decoders() -> int:
    return sum(thread.name.startswith(DECODERS) for thread in threading.enumerate())


def loader(packed: Path, split: str = "train", **keys: Any) -> stoker.Loader:
    return stoker.Loader(packed, split, BATCH, SIZE, **{"threads": 2, **keys})


def same(one: Batches, two: Batches) -> bool:
    pairs = zip(one, two, strict=True)
    return all(torch.equal(a, b) for x, y in pairs for a, b in zip(x, y, strict=True))


class TestBatches:
    def test_are_tensors_that_a_model_takes(self, packed: Path) -> None:
        images, labels = next(iter(loader(packed)))
        assert (images.shape, images.dtype) == ((BATCH, 3, SIZE, SIZE), torch.float32)
        assert (labels.shape, labels.dtype) == ((BATCH,), torch.int64)
        assert images.is_contiguous()
        assert -3 < float(images.mean()) < 3

    def test_are_those_of_stoker_train(self, packed: Path) -> None:
        recipe = resolve(flags={"batch_size": BATCH, "image_size": SIZE}).recipe
        ranks = Ranks(0, 1, 0, 1, CPU)
        prepared = prepare(Dataset(packed), recipe, ranks)
        loaders = build_loaders(prepared, prepared.lanes, ranks, InPlace(), lambda message: None)
        to_input = input_maker(Normalise(), CPU, channels_last=False)
        trained = [
            (to_input(torch.from_numpy(loaded.images), None), torch.from_numpy(loaded.labels))
            for loaded in islice(loaders.loader.batches(prepared.timeline.batches()), 6)
        ]
        loaders.close()
        assert same(list(loader(packed)), trained)

    def test_bytes_become_the_same_input_on_a_device(self, packed: Path) -> None:
        pixels, floats = loader(packed, dtype=torch.uint8), loader(packed)
        for (some, _), (others, _) in zip(pixels, floats, strict=True):
            assert (some.dtype, some.shape) == (torch.uint8, others.shape)
            assert torch.equal(pixels.normalised(some), others)

    def test_stay_as_they_are_while_the_user_holds_them(self, packed: Path) -> None:
        for dtype in ("float32", "uint8"):
            kept, copies = [], []
            for images, labels in loader(packed, dtype=dtype, prefetch=1):
                kept.append((images, labels))
                copies.append((images.clone(), labels.clone()))
            assert same(kept, copies)

    def test_differ_by_seed_and_epoch(self, packed: Path) -> None:
        one = loader(packed)
        first, second = list(one), list(one)
        assert not same(first, second)
        assert not same(first, list(loader(packed, seed=1)))
        assert same(second, list(loader(packed, position=IMAGES)))

    def test_other_means_are_used(self, packed: Path) -> None:
        plain = loader(packed, mean=(0, 0, 0), std=(1, 1, 1))
        images, _ = next(iter(plain))
        assert 0 <= float(images.min()) < float(images.max()) <= 1


class TestEpochs:
    def test_have_whole_batches_and_another_order_each(self, packed: Path) -> None:
        one = loader(packed)
        assert len(one) == len(list(one)) == IMAGES // BATCH
        assert (one.position, one.epoch) == (IMAGES, 1)
        assert list(one.epochs(4)) == [1, 2, 3]

    @pytest.mark.parametrize("taken", [1, 3, 6, 7, 11])
    def test_a_position_is_all_that_a_resume_needs(self, packed: Path, taken: int) -> None:
        one = loader(packed)
        whole: Batches = [batch for _ in one.epochs(3) for batch in one]
        two = loader(packed)
        batches = (batch for _ in two.epochs(3) for batch in two)
        list(islice(batches, taken))
        rest = loader(packed, position=two.position, threads=1, prefetch=1)
        assert same(whole[taken:], [batch for _ in rest.epochs(3) for batch in rest])

    def test_a_loop_that_ended_early_goes_on(self, packed: Path) -> None:
        one = loader(packed)
        some = list(islice(one, 2))
        assert one.position == 2 * BATCH
        assert same([*some, *one], list(loader(packed)))

    def test_a_rest_without_a_batch_is_empty(self, packed: Path) -> None:
        one = loader(packed, position=IMAGES - 1)
        assert list(one) == []
        assert one.position == IMAGES
        assert len(list(one)) == IMAGES // BATCH

    def test_the_threads_end(self, packed: Path) -> None:
        with loader(packed) as one:
            list(islice(one, 1))
            assert decoders()
        until(lambda: not decoders())
        assert len(list(one)) > 0  # it opens again


class TestRanks:
    @pytest.mark.parametrize("world", [2, 3, 4])
    def test_share_each_batch(self, packed: Path, world: int) -> None:
        whole = list(loader(packed))
        parts = [list(loader(packed, rank=rank, world_size=world)) for rank in range(world)]
        joined: Batches = [
            (torch.cat([p[0] for p in part]), torch.cat([p[1] for p in part]))
            for part in zip(*parts, strict=True)
        ]
        assert same(whole, joined)

    @pytest.mark.parametrize("world", [1, 2, 3, 7])
    @pytest.mark.parametrize("batch", [1, 4, 10, 1000])
    def test_evaluate_each_image_once(self, packed: Path, world: int, batch: int) -> None:
        keys = {"threads": 1, "world_size": world}
        ranks = [stoker.Loader(packed, "val", batch, SIZE, rank=r, **keys) for r in range(world)]  # type: ignore[arg-type]
        turns = [list(one) for one in ranks]
        assert {len(turn) for turn in turns} == {len(ranks[0])}
        images = torch.cat([images for turn in turns for images, _ in turn])
        expected = torch.cat([images for images, _ in stoker.Loader(packed, "val", 1000, SIZE)])
        assert len(images) == VAL
        assert torch.equal(
            images.flatten(1).sum(1).sort().values, expected.flatten(1).sum(1).sort().values
        )
        if batch >= 2 * world and world <= VAL // len(ranks[0]):
            assert all(len(images) for turn in turns for images, _ in turn)

    def test_evaluation_begins_again_each_time(self, packed: Path) -> None:
        one = loader(packed, "val")
        list(islice(one, 1))
        assert sum(len(labels) for _, labels in one) == VAL
        assert sum(len(labels) for _, labels in one) == VAL

    def test_come_from_the_environment(self, packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        part = list(loader(packed, rank=1, world_size=2))
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")
        assert same(part, list(loader(packed)))

    def test_come_from_torch_distributed_first(
        self, packed: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        part = list(loader(packed, rank=1, world_size=2))
        monkeypatch.setenv("WORLD_SIZE", "2")  # without RANK, as some launchers leave it
        one = loader(packed)
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
        assert same(part, list(one))


class TestState:
    def test_is_plain_and_goes_on(self, packed: Path, tmp_path: Path) -> None:
        one = loader(packed)
        list(islice(one, 3))
        torch.save(one.state_dict(), tmp_path / "state.pt")
        two = loader(packed)
        two.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
        assert two.position == 3 * BATCH
        assert same(list(one), list(two))

    def test_goes_on_with_another_batch_size(self, packed: Path) -> None:
        one = loader(packed)
        list(islice(one, 2))
        two = stoker.Loader(packed, "train", 2 * BATCH, SIZE, threads=1)
        two.load_state_dict(one.state_dict())
        rest = torch.cat([labels for _, labels in one])
        assert torch.equal(torch.cat([labels for _, labels in two]), rest)

    @pytest.mark.parametrize(
        "change",
        [{"seed": 3}, {"fingerprint": "x"}, {"split": "val"}, {"position": "9"}, {"format": 2}],
    )
    def test_of_something_else_is_refused(self, packed: Path, change: dict[str, Any]) -> None:
        one = loader(packed)
        with pytest.raises(BadRequest):
            one.load_state_dict({**one.state_dict(), **change})
        assert one.position == 0


def refusals(packed: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    wrong: list[dict[str, Any]] = [
        {"dtype": "float16"},
        {"batch_size": 0},
        {"batch_size": IMAGES + 1},
        {"image_size": 1.5},
        {"position": -1},
        {"crop_scale": 0},
        {"std": (1, 1, 0)},
        {"split": "test"},
        {"rank": 1},
        {"rank": 2, "world_size": 2},
        {"batch_size": 5, "rank": 0, "world_size": 3},
    ]
    for keys in wrong:
        with pytest.raises(BadRequest) as caught:
            next(iter(stoker.Loader(**{"data": packed, "batch_size": BATCH, **keys})))
        yield str(caught.value).replace(str(packed), "packed")
    for name, value in (("WORLD_SIZE", "2"), ("RANK", "x")):
        monkeypatch.setenv(name, value)
        with pytest.raises(BadRequest) as caught:
            next(iter(loader(packed)))
        yield str(caught.value)
    with pytest.raises(BadRequest) as caught:
        loader(packed).load_state_dict({**loader(packed).state_dict(), "seed": 1})
    yield str(caught.value)


def test_golden_refusals(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_golden("torch_loader", refusals(packed, monkeypatch))


def test_torch_is_imported_with_the_first_batch() -> None:
    program = "import sys, stoker; stoker.Loader; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
    assert "\nimport torch" not in Path(torch_loader.__file__).read_text()
