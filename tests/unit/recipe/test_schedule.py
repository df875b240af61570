"""Batches tile the run, phases start where they should, and the learning rate follows both."""

import math
from itertools import pairwise

import pytest
from hypothesis import assume, example, given, reject, settings
from hypothesis import strategies as st

from stoker.errors import BadRequest
from stoker.recipe.recipe import Phase, Recipe
from stoker.recipe.schedule import Timeline, cuts, learning_rate, lr_factor, peak_lr

quick = settings(deadline=None, max_examples=100)


@st.composite
def runs(draw):
    """A recipe, with phases or without, and the size of a set to run it over."""
    epochs, samples = draw(st.integers(1, 8)), draw(st.integers(1, 120))
    batch_sizes = st.integers(1, min(epochs * samples, 150))
    starts = draw(st.sets(st.integers(1, epochs - 1), max_size=3)) if epochs > 1 else set()
    phases = tuple(
        Phase(from_epoch=start, image_size=32 + start, batch_size=draw(batch_sizes))
        for start in sorted({0, *starts})
    )
    if draw(st.booleans()):
        return Recipe(epochs=epochs, batch_size=draw(batch_sizes)), samples
    return Recipe(epochs=epochs, phases=phases), samples


def timeline_of(run):
    """The timeline of a run, where it is not refused."""
    try:
        return Timeline.of(*run)
    except BadRequest:
        reject()


BATCH_BEYOND_THE_END = (
    Recipe(
        epochs=3,
        phases=(
            Phase(from_epoch=0, image_size=32, batch_size=16),
            Phase(from_epoch=2, image_size=32, batch_size=4),
        ),
    ),
    10,
)


@quick
@given(runs())
def test_batches_tile_the_run_without_a_gap(run):
    timeline = timeline_of(run)
    batches = list(timeline.batches())
    assert batches[0].position == 0
    assert all(batch.end == following.position for batch, following in pairwise(batches))
    assert batches[-1].end == timeline.end


@quick
@given(runs())
def test_steps_count_the_batches(run):
    timeline = timeline_of(run)
    assert [batch.step for batch in timeline.batches()] == list(range(timeline.steps))


@quick
@given(runs(), st.data())
def test_a_run_goes_on_from_any_batch(run, data):
    timeline = timeline_of(run)
    batches = list(timeline.batches())
    chosen = data.draw(st.integers(0, len(batches) - 1))
    assert timeline.batch_at(batches[chosen].position) == batches[chosen]
    assert list(timeline.batches(batches[chosen].position)) == batches[chosen:]


@quick
@given(runs())
def test_no_batch_starts_between_batches_or_outside_the_run(run):
    timeline = timeline_of(run)
    starts = {batch.position for batch in timeline.batches()}
    for position in set(range(-1, timeline.end + 2)) - starts:
        with pytest.raises(ValueError, match=f"position {position}$"):
            timeline.batch_at(position)


@quick
@given(runs())
@example(BATCH_BEYOND_THE_END)
def test_less_than_one_batch_stays_unseen_and_no_sample_is_seen_too_often(run):
    recipe, samples = run
    timeline = timeline_of(run)
    assert timeline.end + timeline.unseen == recipe.epochs * samples
    assert 0 <= timeline.unseen < timeline.stretches[-1].batch_size


@quick
@given(runs())
def test_a_phase_begins_with_the_first_batch_that_starts_in_it(run):
    recipe, samples = run
    phases = recipe.phases or (
        Phase(from_epoch=0, image_size=recipe.image_size, batch_size=recipe.batch_size),
    )
    for batch in timeline_of(run).batches():
        phase = [phase for phase in phases if phase.from_epoch * samples <= batch.position][-1]
        assert (batch.size, batch.image_size) == (phase.batch_size, phase.image_size)


@given(runs(), st.floats(0, 9))
@quick
def test_an_attempt_may_end_at_the_first_batch_from_an_epoch_on(run, epoch):
    timeline = timeline_of(run)
    every = list(timeline.batches())
    end = timeline.batch_start_from(epoch)
    assert list(timeline.batches(None, end)) == [b for b in every if b.position < end]
    starts = [b.position for b in every] + [timeline.end]
    assert end == next((s for s in starts if s >= epoch * timeline.samples), timeline.end)
    assert every[len(list(timeline.batches(None, end))) :] == list(timeline.batches(end))


def test_a_batch_larger_than_the_run_is_refused():
    with pytest.raises(BadRequest, match=r"batch_size = 64 .* 60 samples .*--batch-size"):
        Timeline.of(Recipe(epochs=3, batch_size=64), 20)


def test_imagenet_has_the_steps_one_expects():
    timeline = Timeline.of(Recipe(epochs=90, batch_size=256), 1_281_167)
    assert timeline.steps == 90 * 1_281_167 // 256
    assert timeline.unseen == 90 * 1_281_167 % 256


smooth = st.sampled_from(["cosine", "onecycle", "constant"])


@st.composite
def schedules(draw, schedulers=smooth):
    epochs = draw(st.integers(1, 100))
    return Recipe(
        epochs=epochs,
        scheduler=draw(schedulers),
        warmup_epochs=draw(st.one_of(st.just(0.0), st.floats(0.01, 0.99))) * epochs,
        min_lr_ratio=draw(st.floats(0, 1)),
        decay_epochs=(epochs / 2,),
    )


@quick
@given(schedules(st.sampled_from(["cosine", "onecycle", "constant", "step"])), st.floats(0, 1))
def test_the_learning_rate_stays_between_zero_and_its_peak(recipe, share):
    assert 0 <= lr_factor(recipe, share * recipe.epochs) <= 1


@quick
@given(schedules(), st.floats(0, 1), st.floats(0, 1e-3))
def test_the_learning_rate_never_jumps(recipe, share, change):
    before, after = share * recipe.epochs, min(share + change, 1) * recipe.epochs
    lengths = [recipe.warmup_epochs, recipe.epochs - recipe.warmup_epochs]
    steepest = sum(math.pi / 2 / length for length in lengths if length)
    moved = abs(lr_factor(recipe, after) - lr_factor(recipe, before))
    assert moved <= steepest * (after - before) + 1e-9


@quick
@given(schedules(), st.floats(0, 1), st.floats(0, 1))
def test_warm_up_rises_from_near_zero_to_the_peak(recipe, one, other):
    assume(recipe.warmup_epochs and abs(one - other) > 1e-6)
    early, late = sorted((one * recipe.warmup_epochs, other * recipe.warmup_epochs))
    assert lr_factor(recipe, 0.0) <= 0.04
    assert lr_factor(recipe, early) < lr_factor(recipe, late)
    assert lr_factor(recipe, recipe.warmup_epochs) == 1


@quick
@given(schedules(st.sampled_from(["cosine", "onecycle"])), st.floats(0, 1), st.floats(0, 1))
def test_after_the_warm_up_the_learning_rate_falls_to_its_least(recipe, one, other):
    rest = recipe.epochs - recipe.warmup_epochs
    early, late = sorted(recipe.warmup_epochs + share * rest for share in (one, other))
    assert lr_factor(recipe, early) >= lr_factor(recipe, late) - 1e-12
    assert lr_factor(recipe, float(recipe.epochs)) == pytest.approx(recipe.min_lr_ratio, abs=1e-9)


@pytest.mark.parametrize("scheduler", ["cosine", "onecycle"])
def test_the_last_batch_of_a_run_has_almost_no_learning_rate(scheduler):
    recipe = Recipe(epochs=20, batch_size=100, lr=1.0, scheduler=scheduler, warmup_epochs=4)
    *_, last = Timeline.of(recipe, 5000).batches()
    assert 0 < learning_rate(recipe, 5000, last) < 0.002


def test_step_decays_at_the_stated_epochs():
    recipe = Recipe(
        epochs=90,
        batch_size=500,
        lr=0.5,
        scheduler="step",
        decay_epochs=(30.0, 60.0, 80.5),
        decay_rate=0.2,
    )
    rates = {}
    for batch in Timeline.of(recipe, 5000).batches():
        rates.setdefault(round(learning_rate(recipe, 5000, batch), 9), batch.position / 5000)
    assert rates == {0.5: 0, 0.1: 30, 0.02: 60, 0.004: 80.5}


def test_step_never_falls_below_its_least():
    recipe = Recipe(epochs=90, scheduler="step", decay_epochs=(30.0, 60.0), min_lr_ratio=0.05)
    assert [lr_factor(recipe, epoch) for epoch in (29.9, 30, 60)] == [1, 0.1, 0.05]


def test_constant_stays_at_the_peak():
    recipe = Recipe(epochs=5, scheduler="constant")
    assert {lr_factor(recipe, epoch / 10) for epoch in range(50)} == {1.0}


@quick
@given(st.integers(1, 10**5), st.integers(1, 64))
def test_the_learning_rate_follows_the_batch_size(batch_size, times):
    linear = Recipe(lr_base=0.1, lr_base_size=256, lr_base_scale="linear")
    root = Recipe(lr_base=0.1, lr_base_size=256, lr_base_scale="sqrt")
    assert peak_lr(linear, 256) == peak_lr(root, 256) == 0.1
    assert math.isclose(peak_lr(linear, batch_size * times), times * peak_lr(linear, batch_size))
    assert math.isclose(
        peak_lr(root, batch_size * times), math.sqrt(times) * peak_lr(root, batch_size)
    )
    assert peak_lr(Recipe(lr=0.3), batch_size) == 0.3


def test_the_learning_rate_changes_with_the_batch_size_of_a_phase():
    recipe = Recipe(
        epochs=4,
        scheduler="constant",
        lr_base=0.1,
        lr_base_size=100,
        phases=(
            Phase(from_epoch=0, image_size=32, batch_size=200),
            Phase(from_epoch=2, image_size=48, batch_size=50),
        ),
    )
    batches = list(Timeline.of(recipe, 1000).batches())
    rates = [learning_rate(recipe, 1000, batch) for batch in batches]
    assert rates == [0.2] * 10 + [0.05] * 40


@quick
@given(st.integers(1, 5000), st.integers(1, 300))
def test_cuts_share_a_batch_evenly_and_never_part_a_pair(batch_size, parts):
    edges = cuts(batch_size, parts)
    sizes = [end - begin for begin, end in pairwise(edges)]
    assert (edges[0], edges[-1], len(sizes)) == (0, batch_size, parts)
    assert min(sizes) >= 0
    assert all(edge % 2 == 0 for edge in edges[:-1])
    assert max(sizes) - min(sizes) <= (2 if batch_size % 2 == 0 else 3)


@pytest.mark.parametrize(
    ("batch_size", "parts", "edges"),
    [
        (256, 4, [0, 64, 128, 192, 256]),
        (10, 3, [0, 2, 6, 10]),
        (7, 2, [0, 2, 7]),
        (1, 2, [0, 0, 1]),
        (5, 1, [0, 5]),
    ],
)
def test_cuts_of_known_batches(batch_size, parts, edges):
    assert cuts(batch_size, parts) == edges
