"""Bad numbers are seen at the step that made them; hard times are told from hopeless ones."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from stoker.survive.divergence import BLOCK, PATIENCE_STEPS, LossWatch, PendingStep, Sentinel
from stoker.survive.remedies import EXPLODING, NOT_FINITE, Trouble

NAN, INF = float("nan"), float("inf")
CHANCE = math.log(10)
GOOD, BAD = CHANCE, 2 * CHANCE


@pytest.fixture
def sentinel() -> Sentinel:
    return Sentinel()


class Arrived:
    """Numbers of a step that are on the host."""

    def __init__(self, norm: Tensor) -> None:
        self._numbers = torch.tensor([0.0, 0.0, 0.0, float(norm)], dtype=torch.float64)

    def passed(self) -> bool:
        return True

    def numbers(self) -> Tensor:
        return self._numbers


def step_of(step: int, norm: Tensor) -> PendingStep:
    return PendingStep(step, Arrived(norm))


def number_of(step: PendingStep | None) -> int | None:
    return step.step if step else None


class TestSentinel:
    def test_nothing_seen_is_nothing_bad(self, sentinel: Sentinel) -> None:
        assert sentinel.first_bad() is None
        assert sentinel.first_bad(all_steps=True) is None

    @pytest.mark.parametrize("number", [NAN, INF, -INF])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
    def test_what_is_not_finite_is_seen_at_once(
        self, sentinel: Sentinel, number: float, dtype: torch.dtype
    ) -> None:
        for step in range(3):
            sentinel.add(step_of(step, torch.tensor(1.0, dtype=dtype)))
            assert sentinel.first_bad() is None
        sentinel.add(step_of(3, torch.tensor(number, dtype=dtype)))
        assert number_of(sentinel.first_bad()) == 3

    @pytest.mark.parametrize("number", [0.0, -1.0, 3e38, 1e-45])
    def test_large_and_small_numbers_are_fine(self, sentinel: Sentinel, number: float) -> None:
        sentinel.add(step_of(0, torch.tensor(number)))
        assert sentinel.first_bad() is None

    def test_the_first_bad_step_is_named_first(self, sentinel: Sentinel) -> None:
        for step, number in enumerate([1.0, NAN, 2.0, INF]):
            sentinel.add(step_of(step, torch.tensor(number)))
        assert [number_of(sentinel.first_bad()) for _ in range(3)] == [1, 3, None]

    def test_a_bad_step_is_told_once(self, sentinel: Sentinel) -> None:
        sentinel.add(step_of(0, torch.tensor(NAN)))
        assert number_of(sentinel.first_bad(all_steps=True)) == 0
        assert sentinel.first_bad(all_steps=True) is None

    def test_late_steps_are_read_when_they_are_old_enough_or_asked_for(self) -> None:
        sentinel = Sentinel(late_steps=2)
        sentinel.add(step_of(0, torch.tensor(NAN)))
        sentinel.add(step_of(1, torch.tensor(1.0)))
        assert sentinel.first_bad() is None
        sentinel.add(step_of(2, torch.tensor(NAN)))
        assert number_of(sentinel.first_bad()) == 0
        assert sentinel.first_bad() is None
        assert number_of(sentinel.first_bad(all_steps=True)) == 2


def watched(losses: list[float], from_step: int = 0, chance: float = CHANCE) -> LossWatch:
    watch = LossWatch(chance, from_step)
    for step, loss in enumerate(losses):
        watch.add(step, loss)
    return watch


class TestLossWatch:
    @pytest.mark.parametrize(
        ("classes", "limit"),
        [(2, math.log(2) + 1), (10, 1.5 * math.log(10)), (1000, 1.5 * math.log(1000))],
    )
    def test_the_limit_is_far_above_guessing(self, classes: int, limit: float) -> None:
        assert LossWatch(math.log(classes)).limit == pytest.approx(limit)

    @pytest.mark.parametrize("bad", [BAD, 1e30, INF, NAN])
    def test_a_long_streak_explodes(self, bad: float) -> None:
        assert not watched([GOOD] + [bad] * (PATIENCE_STEPS - 1)).exploding
        assert watched([GOOD] + [bad] * PATIENCE_STEPS).exploding

    def test_streaks_may_mix_what_is_bad(self) -> None:
        assert watched([GOOD] + [BAD, NAN, INF, 1e9] * 5).exploding

    @pytest.mark.parametrize("good", [GOOD, 0.0, LossWatch(CHANCE).limit])
    def test_one_good_step_ends_a_streak(self, good: float) -> None:
        short = [BAD] * (PATIENCE_STEPS - 1)
        assert not watched([GOOD, *short, good, *short]).exploding
        watch = watched([GOOD, *short, good, *short, BAD])
        assert watch.exploding
        assert watch.since == PATIENCE_STEPS + 1

    def test_since_is_where_the_streak_began(self) -> None:
        watch = watched([GOOD] * 7 + [BAD] * 30)
        assert (watch.since, watch.streak) == (7, 20)

    def test_once_it_explodes_it_has_exploded(self) -> None:
        watch = watched([GOOD] * 7 + [BAD] * 20 + [GOOD] * 5)
        assert watch.exploding
        assert (watch.since, watch.recent[-1][1]) == (7, GOOD)

    def test_the_warm_up_does_not_count(self) -> None:
        watch = watched([GOOD] + [BAD] * 30, from_step=12)
        assert not watch.exploding
        assert (watch.since, watch.high, watch.streak) == (1, 30, 19)
        watch.add(31, BAD)
        assert watch.exploding

    def test_a_loss_that_was_high_before_the_first_step_may_fall(self) -> None:
        falling = [30 * 0.99**step for step in range(160)]
        watch = watched(falling)
        assert watch.began_high and not watch.high  # so a save may come
        assert watched([GOOD, *falling]).exploding  # it was good once: the steps spoiled it
        assert not watched([GOOD, *falling]).stuck
        watch = watched([*falling, GOOD])
        assert not watch.began_high
        for step in range(200, 220):
            watch.add(step, BAD)
        assert watch.exploding and not watch.stuck

    def test_and_is_stuck_where_it_no_longer_falls(self) -> None:
        falling = [30 * 0.99**step for step in range(90)]
        noise = [falling[-1] * (0.8 + 0.4 * (step * 37 % 50) / 50) for step in range(300)]
        watch = watched([*falling, *noise])
        assert watch.exploding and watch.stuck and 200 < watch.since < 300
        assert watched([9.0] * (5 * BLOCK + PATIENCE_STEPS)).stuck
        assert not watched([9.0] * 5 * BLOCK).exploding
        assert not watched([9.0] * 300, from_step=200).exploding

    @pytest.mark.parametrize("later", [NAN, INF, 1e6])
    def test_and_explodes_where_it_rises(self, later: float) -> None:
        watch = watched([9.0, 8.0, 8.0] + [later] * PATIENCE_STEPS)
        assert watch.exploding and not watch.stuck and watch.since == 3

    def test_a_resumed_run_knows_that_it_began_high(self) -> None:
        watch = LossWatch(CHANCE, began_high=True)
        for step in range(500, 600):
            watch.add(step, 30 * 0.99 ** (step - 500))
        assert watch.began_high and not watch.exploding

    def test_the_latest_losses_are_kept_good_or_bad(self) -> None:
        watch = watched([float(step) for step in range(80)], from_step=1000)
        assert list(watch.recent) == [(step, float(step)) for step in range(30, 80)]

    @given(st.lists(st.booleans(), max_size=80), st.integers(0, 30))
    def test_it_explodes_just_where_the_latest_steps_were_all_bad(
        self, bad: list[bool], from_step: int
    ) -> None:
        bad = [False, *bad]
        watch = watched([BAD if each else GOOD for each in bad], from_step)
        counted = bad[from_step:]
        latest = counted[-PATIENCE_STEPS:]
        assert watch.exploding == (len(latest) == PATIENCE_STEPS and all(latest))


class TestTrouble:
    def test_it_says_what_where_and_what_was_seen(self) -> None:
        trouble = Trouble(NOT_FINITE, 12, "a gradient of nan")
        assert str(trouble) == "not finite at step 12: a gradient of nan"
        assert (trouble.kind, trouble.step, trouble.since) == (NOT_FINITE, 12, 12)

    @pytest.mark.parametrize("since", [0, 7])
    def test_it_may_have_begun_earlier(self, since: int) -> None:
        assert Trouble(EXPLODING, 27, "loss 9.1", since).since == since
