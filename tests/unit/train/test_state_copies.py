"""A checkpoint holds the state of one moment, though its copies are made beside training."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from stoker.train.device import StateCopies
from streams import FakeStreams, Race

WAITS = ("copy waits", "compute waits", "host waits")


def tensors() -> dict[str, Tensor]:
    layouts = torch.zeros(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    return {
        "kernel": layouts,
        "bias": torch.zeros(7),
        "counter": torch.zeros((), dtype=torch.int64),
        "half": torch.zeros(5, dtype=torch.bfloat16),
        "nothing": torch.zeros(0),
    }


def train(streams: FakeStreams) -> None:
    """Steps that add one to everything, and snapshots between some of them. Raises Race if one of
    these does not hold the same number everywhere."""
    copies, state, snapshots = StateCopies(streams, "cpu"), tensors(), []

    def add_one(tensor: Tensor) -> None:
        tensor.add_(1)

    for step in range(12):
        for tensor in state.values():
            streams.compute(lambda tensor=tensor: add_one(tensor))  # type: ignore[misc]
        if step % 3 == 2:
            copied = {name: copies(tensor) for name, tensor in state.items()}
            snapshots.append((step + 1, copied, copies.end()))
        if step % 3 == 0:
            check(snapshots)
    check(snapshots)
    streams.finish()


def check(snapshots: list) -> None:  # type: ignore[type-arg]
    while snapshots:
        expected, copied, ready = snapshots.pop(0)
        ready()
        for name, original in tensors().items():
            copy = copied[name]
            if not torch.equal(copy, torch.full_like(original, expected)):
                raise Race(f"{name} is not that of step {expected}")
            assert copy.stride() == original.stride()


@pytest.mark.exact
def test_snapshots_hold_one_moment_in_any_schedule() -> None:
    for seed in range(200):
        train(FakeStreams(seed, lazy=(0.5, 0.8, 0.97)[seed % 3]))


@pytest.mark.exact
@pytest.mark.parametrize("wait", WAITS)
def test_each_wait_is_needed(wait: str) -> None:
    races = 0
    for seed in range(60):
        try:
            train(FakeStreams(seed, lazy=(0.5, 0.8, 0.97)[seed % 3], without=wait))
        except Race:
            races += 1
    assert races > 0


@pytest.mark.exact
def test_the_host_does_not_wait_before_it_saves() -> None:
    streams = FakeStreams(0, lazy=1.0)
    copies = StateCopies(streams, "cpu")
    copies(torch.ones(4))
    ready = copies.end()
    assert "host waits" not in streams.log
    ready()
    assert "host waits" in streams.log


@pytest.mark.exact
def test_what_is_on_the_host_already_is_copied_at_once() -> None:
    streams = FakeStreams(0)
    counter = torch.ones(3)
    copy = StateCopies(streams)(counter)
    counter.add_(1)
    assert copy.tolist() == [1, 1, 1]
    assert streams.log == []
