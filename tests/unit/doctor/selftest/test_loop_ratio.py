"""Blocks of steps in turns, and what follows from their times."""

from __future__ import annotations

import pytest

from stoker.doctor.selftest import loop_ratio
from stoker.doctor.selftest.loop_ratio import (
    MIXED,
    LoopTimes,
    SyntheticLoader,
    Turns,
    alternate,
    batch_that_fits,
)
from stoker.recipe.recipe import Recipe
from stoker.recipe.schedule import Batch
from stoker.train.process_group import Ranks
from tiny_runs import one_thread_alone  # noqa: F401

TINY = {"model": "resnet9_w1", "image_size": 8, "batch_size": 4, "epochs": 1}


class FakeBare:
    """A bare step that takes one second."""

    def __init__(self, clock: list[float]) -> None:
        self.clock, self.steps = clock, 0

    def step(self) -> None:
        self.clock[0] += 1.0
        self.steps += 1


@pytest.mark.parametrize("block", [1, 4])
def test_blocks_of_both_loops_are_timed_apart(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, waits = [0.0], [0]

    def finish() -> None:
        waits[0] += 1

    monkeypatch.setattr(loop_ratio, "clocks", lambda: (clock[0], clock[0] / 2))
    bare = FakeBare(clock)
    turns = Turns(bare, finish, block)  # type: ignore[arg-type]
    for number in range(3 * block):
        turns(number)
        clock[0] += 2.0  # our step
    assert turns.bare_s == [(1.0, 0.5)] * 3
    assert turns.our_s == [(2.0, 1.0)] * 2
    assert bare.steps == 3 * block
    assert waits[0] == 6  # between blocks alone


def test_the_ratio_is_of_the_median_block() -> None:
    times = LoopTimes(
        [(1.0, 1.0), (1.0, 1.0), (9.0, 1.0)], [(2.0, 1.0), (1.25, 1.0), (9.0, 2.0)], 0
    )
    assert times.ratio(0) == 0.8
    assert times.ratio(1) == 1.0
    assert times.step_ms(0) == (1000.0, 2000.0)


@pytest.mark.parametrize(("gigabytes", "batch"), [(80, 256), (24, 128), (16, 128), (8, 64)])
def test_a_batch_follows_the_memory_of_the_gpu(gigabytes: int, batch: int) -> None:
    assert batch_that_fits(256, gigabytes * 10**9) == batch


def test_synthetic_batches_are_complete() -> None:
    loader = SyntheticLoader(Recipe(**TINY, **MIXED))
    plan = [Batch(step, 4 * step, 4, 8) for step in range(3)]
    batches = [(b.images.ctypes.data, b.images.copy(), b.drawn) for b in loader.batches(plan, None)]
    assert len({address for address, _, _ in batches}) == 1  # given back, taken again
    assert all((images == batches[0][1]).all() and images.any() for _, images, _ in batches)
    assert all(drawn is not None for *_, drawn in batches)


@pytest.mark.parametrize("keys", [{}, {"amp": "fp16"}, MIXED])
def test_both_loops_train(keys: dict[str, object]) -> None:
    ranks = Ranks.join()
    recipe = Recipe(**TINY, checkpoint_interval=100, **keys)  # type: ignore[arg-type]
    times = alternate(recipe, 14, ranks)
    assert len(times.bare) == len(times.ours) == 4
    assert times.ratio(1) > 0 and times.saves >= 1
