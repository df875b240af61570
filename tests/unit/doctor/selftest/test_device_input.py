"""The check of a batch's bytes notices what is overwritten too early, and what is lost."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from stoker.data.loading.loader import Loaded
from stoker.doctor.selftest.device_input import differences, plan
from stoker.doctor.selftest.photos import pack_photos, picture
from stoker.doctor.selftest.rows import QUICK, Setup
from stoker.train.process_group import Ranks
from stoker.train.transfer import BatchTransfer, Copies, DeviceBatch, InPlace
from streams import FakeStreams
from tiny_runs import one_thread_alone  # noqa: F401

STEPS = 40


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    ranks = Ranks.join()
    return Setup(ranks, tmp_path_factory.mktemp("selftest"), QUICK, 1e18, quick=True)


class EarlyReuse(InPlace):
    """Hands a batch to the device in memory that is overwritten at once."""

    def send(self, loaded: Loaded) -> DeviceBatch:
        loaded.images[-1, -1, -1] ^= 1
        return super().send(loaded)


class LostNumbers(InPlace):
    """Mixes all images alike."""

    def send(self, loaded: Loaded) -> DeviceBatch:
        loaded.drawn.share[:] = 0.5
        return super().send(loaded)


@pytest.mark.exact
@pytest.mark.parametrize(
    ("transfer", "wrong"), [(InPlace(), 0), (EarlyReuse(), STEPS), (LostNumbers(), STEPS)]
)
def test_other_bytes_are_counted(setup: Setup, transfer: BatchTransfer, wrong: int) -> None:
    assert differences(setup, transfer, random.Random(0), STEPS) == (wrong, STEPS)


@pytest.mark.exact
def test_the_ring_delivers_what_was_decoded(setup: Setup) -> None:
    streams = FakeStreams(0, lazy=0.0)  # what is queued happens at once
    assert differences(setup, Copies(streams), random.Random(0), STEPS) == (0, STEPS)


def test_the_plan_has_every_change_of_shape() -> None:
    batches = list(plan(100, 16))
    assert {(batch.size, batch.image_size) for batch in batches} == {
        (size, side) for size in (13, 16) for side in (32, 40)
    }
    ends = [batch.end for batch in batches]
    assert [batch.position for batch in batches] == [0, *ends[:-1]]


@pytest.mark.exact
def test_pictures_are_the_same_every_time(tmp_path: Path) -> None:
    assert (picture(1, 2, 64) == picture(1, 2, 64)).all()
    sets = [pack_photos(tmp_path / name / "photos", 16, 64) for name in ("one", "two")]
    shards = [sorted(path.read_bytes() for path in one.rglob("*.tar")) for one in sets]
    assert shards[0] == shards[1] and shards[0]
