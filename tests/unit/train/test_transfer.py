"""A batch arrives on the device as it was decoded, in whatever order the streams work."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from stoker.data.loading.loader import Loaded
from stoker.recipe.schedule import Batch
from stoker.train.mixing import MixNumbers
from stoker.train.transfer import Copies, DeviceBatch, InPlace, Ring, Views
from streams import FakeStreams, Race

STEPS, PREFETCH = 12, 2
WAITS = ("copy waits", "compute waits", "host waits", "host asks")
"""Each wait of the ring and its slots: the host asks before it waits."""


def batch(step: int, images: np.ndarray, mix: str) -> Loaded:
    """A batch whose every byte and number follows from its step."""
    draw, count = np.random.default_rng(step), len(images)
    images[:] = draw.integers(0, 256, images.shape, dtype=np.uint8)
    numbers = np.arange(count)
    boxes = draw.integers(0, 99, (count, 4)) if mix == "cutmix" else None
    drawn = MixNumbers(draw.random(count, dtype=np.float32), boxes) if mix else None
    labels = draw.integers(0, 1000, count)
    return Loaded(Batch(step, 0, count, 4), images, labels, numbers, numbers, drawn)


def shapes(seed: int) -> Iterator[tuple[int, ...]]:
    """Batches of one shape, of which some are followed by those of another phase or a short one."""
    draw = np.random.default_rng(seed)
    shape = (int(draw.integers(1, 6)), 4, 4, 3)
    for _ in range(STEPS):
        if draw.random() < 0.15:
            side = int(draw.integers(1, 5))
            shape = (int(draw.integers(1, 6)), side, side, 3)
        yield shape


def contents(batch: DeviceBatch | Loaded) -> list[object]:
    """All that a step reads of a batch."""
    if isinstance(batch, Loaded):
        drawn = batch.drawn
        mix = None if drawn is None else (drawn.share, drawn.boxes)
        parts: list[object] = [batch.images, batch.labels, *(mix or ())]
        return [part.tolist() if isinstance(part, np.ndarray) else part for part in parts]
    on_device = [batch.images, batch.labels]
    on_device += [batch.mix.share, batch.mix.boxes] if batch.mix else []
    return [part.tolist() if isinstance(part, Tensor) else part for part in on_device]


def train(streams: FakeStreams, plan: Iterable[tuple[int, ...]], mix: str) -> int:
    """Send batches as a loader and a step do; raises Race where the device reads other bytes.
    Returns the number of blocks that were made."""
    copies = Copies(streams)
    ring = copies.memory(PREFETCH + 2)
    assert isinstance(ring, Ring)
    ahead: list[Loaded] = []
    steps = enumerate(plan)
    made = 0
    while True:
        while len(ahead) < PREFETCH and (following := next(steps, None)):
            ahead.append(batch(following[0], ring.take(following[1]), mix))
        if not ahead:
            break
        made = max(made, len(ring._blocks))
        loaded = ahead.pop(0)
        expected = contents(loaded)
        on_device = copies.send(loaded)

        def read(on_device: DeviceBatch = on_device, expected: list[object] = expected) -> None:
            if contents(on_device) != expected:
                raise Race("the device read other bytes than those of its batch")

        streams.compute(read)
        streams.compute(read)  # a second micro-batch
        copies.release(on_device)
        ring.give_back(loaded.images)
    streams.finish()
    return made


@pytest.mark.exact
@pytest.mark.parametrize("mix", ["", "mixup", "cutmix"])
def test_a_thousand_schedules_read_what_was_sent(mix: str) -> None:
    for seed in range(334):
        streams = FakeStreams(seed, lazy=(0.5, 0.8, 0.97)[seed % 3])
        assert train(streams, shapes(seed), mix) <= 2 * (PREFETCH + 2)


def races(without: str) -> int:
    """In how many of a hundred schedules the device reads wrong bytes without a wait."""
    count = 0
    for seed in range(100):
        streams = FakeStreams(seed, lazy=(0.5, 0.8, 0.97)[seed % 3], without=without)
        try:
            train(streams, shapes(seed), "cutmix")
        except Race:
            count += 1
    return count


@pytest.mark.exact
@pytest.mark.parametrize("wait", WAITS)
def test_each_wait_is_needed(wait: str) -> None:
    assert races("") == 0
    assert races(wait) > 0


@pytest.mark.exact
def test_a_new_slot_waits_for_earlier_work_on_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    from stoker.train import transfer

    class Passed:
        done = True

    def free_at_once(self: object, memory: Tensor, shape: tuple[int, ...], free: object) -> None:
        Views.__init__(self, memory, shape)  # type: ignore[arg-type]
        self.free = Passed()  # type: ignore[attr-defined]

    monkeypatch.setattr(transfer.Slot, "__init__", free_at_once)
    assert races("") > 0


@pytest.mark.exact
def test_a_block_is_not_free_before_it_is_given_back() -> None:
    streams = FakeStreams(0)
    ring = Copies(streams).memory(2)
    one, two = ring.take((2, 4, 4, 3)), ring.take((2, 4, 4, 3))
    assert not np.shares_memory(one, two)
    ring.give_back(one)
    assert np.shares_memory(ring.take((2, 4, 4, 3)), one)


@pytest.mark.exact
def test_blocks_are_used_again_and_the_host_hardly_waits() -> None:
    streams = FakeStreams(0, lazy=0.2)
    assert train(streams, [(4, 4, 4, 3)] * 50, "mixup") <= PREFETCH + 2
    assert streams.log.count("copy") == 50
    assert streams.log.count("host waits") == 0


@pytest.mark.exact
@pytest.mark.parametrize("given_back", ["before", "after"])
def test_memory_of_a_past_phase_is_kept_until_its_copy_is_done(given_back: str) -> None:
    streams = FakeStreams(0, lazy=1.0)
    copies = Copies(streams)
    ring = copies.memory(4)
    loaded = batch(0, ring.take((2, 4, 4, 3)), "")
    copies.send(loaded)
    if given_back == "before":
        ring.give_back(loaded.images)
        ring.take((3, 4, 4, 3))
    else:
        ring.take((3, 4, 4, 3))
        ring.give_back(loaded.images)
    assert streams.log.count("host waits") == 1


@pytest.mark.exact
def test_a_batch_from_elsewhere_is_sent_too() -> None:
    streams = FakeStreams(3, lazy=0.9)
    copies = Copies(streams)
    for step in range(20):
        loaded = batch(step, np.empty((3, 4, 4, 3), np.uint8), "cutmix")
        expected = contents(loaded)
        on_device = copies.send(loaded)

        def read(on_device: DeviceBatch = on_device, expected: list[object] = expected) -> None:
            assert contents(on_device) == expected

        streams.compute(read)
        copies.release(on_device)
    streams.finish()


@pytest.mark.parametrize("mix", ["", "mixup", "cutmix"])
def test_on_a_cpu_the_batch_stays_where_it_is(mix: str) -> None:
    loaded = batch(5, np.empty((4, 4, 4, 3), np.uint8), mix)
    on_device = InPlace().send(loaded)
    assert contents(on_device) == contents(loaded)
    assert on_device.images.data_ptr() == loaded.images.__array_interface__["data"][0]
    part = on_device.part(1, 3)
    assert torch.equal(part.labels, on_device.labels[1:3])
    assert (part.mix is None) == (not mix)
