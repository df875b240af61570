"""A recipe that takes over in mid-run goes on at the very sample, and to the very end."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st

from stoker.errors import BadRequest
from stoker.recipe.recipe import Phase, Recipe
from stoker.recipe.schedule import Timeline

quick = settings(deadline=None, max_examples=100)


def phases_of(recipe: Recipe) -> tuple[Phase, ...]:
    whole = Phase(from_epoch=0, image_size=recipe.image_size, batch_size=recipe.batch_size)
    return recipe.phases or (whole,)


@st.composite
def recipes(draw: Any, epochs: int) -> Recipe:
    """A recipe, with phases or without."""
    sizes = st.integers(1, 60)
    if draw(st.booleans()):
        return Recipe(epochs=epochs, batch_size=draw(sizes))
    starts = draw(st.sets(st.integers(1, epochs - 1), max_size=3)) if epochs > 1 else set()
    return Recipe(
        epochs=epochs,
        phases=tuple(
            Phase(from_epoch=start, image_size=32 + start, batch_size=draw(sizes))
            for start in sorted({0, *starts})
        ),
    )


@st.composite
def take_overs(draw: Any) -> tuple[Recipe, int, Timeline, int, int]:
    """A new recipe, the number of samples, its timeline, and the place at which it takes over:
    between two batches of another recipe."""
    samples = draw(st.integers(1, 100))
    old = draw(recipes(draw(st.integers(1, 8))))
    new = draw(recipes(draw(st.integers(1, 8))))
    try:
        batches = list(Timeline.of(old, samples).batches())
        last = batches[draw(st.integers(0, len(batches) - 1))]
        position, step = draw(st.sampled_from([(0, 0), (last.end, last.step + 1)]))
        return new, samples, Timeline.of(new, samples, position, step), position, step
    except BadRequest:
        reject()


@quick
@given(take_overs())
def test_batches_go_on_at_the_position_without_a_gap(
    case: tuple[Recipe, int, Timeline, int, int],
) -> None:
    _, _, timeline, position, step = case
    batches = list(timeline.batches(position))
    assert (batches[0].position, batches[0].step) == (position, step)
    assert all(batch.end == following.position for batch, following in pairwise(batches))
    assert [batch.step for batch in batches] == list(range(step, timeline.steps))


@quick
@given(take_overs())
def test_less_than_one_batch_stays_unseen(case: tuple[Recipe, int, Timeline, int, int]) -> None:
    recipe, samples, timeline, position, _ = case
    batches = list(timeline.batches(position))
    assert batches[-1].end == timeline.end == recipe.epochs * samples - timeline.unseen
    assert 0 <= timeline.unseen < batches[-1].size


@quick
@given(take_overs())
def test_every_batch_is_of_the_phase_that_holds_its_first_sample(
    case: tuple[Recipe, int, Timeline, int, int],
) -> None:
    recipe, samples, timeline, position, _ = case
    for batch in timeline.batches(position):
        begun = [p for p in phases_of(recipe) if p.from_epoch * samples <= batch.position]
        assert (batch.size, batch.image_size) == (begun[-1].batch_size, begun[-1].image_size)


@quick
@given(take_overs())
def test_the_batch_of_a_step_is_the_one_that_has_it(
    case: tuple[Recipe, int, Timeline, int, int],
) -> None:
    _, _, timeline, position, _ = case
    for batch in timeline.batches(position):
        assert timeline.batch_of_step(batch.step) == batch
    with pytest.raises(ValueError, match="no batch starts"):
        timeline.batch_of_step(timeline.steps)


@quick
@given(take_overs(), st.data())
def test_the_same_recipe_taking_over_changes_no_batch(
    case: tuple[Recipe, int, Timeline, int, int], data: st.DataObject
) -> None:
    recipe, samples, timeline, position, _ = case
    batches = list(timeline.batches(position))
    chosen = data.draw(st.integers(0, len(batches) - 1))
    place = batches[chosen]
    again = Timeline.of(recipe, samples, place.position, place.step)
    assert list(again.batches(place.position)) == batches[chosen:]
    assert (again.steps, again.end, again.unseen) == (timeline.steps, timeline.end, timeline.unseen)


PHASED = Recipe(
    epochs=6,
    phases=(
        Phase(from_epoch=0, image_size=32, batch_size=10),
        Phase(from_epoch=2, image_size=48, batch_size=20),
        Phase(from_epoch=4, image_size=64, batch_size=25),
    ),
)


@pytest.mark.parametrize(
    ("position", "sizes"),
    [
        (0, [32, 48, 64]),
        (199, [32, 48, 64]),
        (200, [48, 64]),
        (390, [48, 64]),
        (400, [64]),
        (575, [64]),
    ],
)
def test_phases_that_are_over_are_passed_over(position: int, sizes: list[int]) -> None:
    timeline = Timeline.of(PHASED, 100, position, 7)
    assert [stretch.image_size for stretch in timeline.stretches] == sizes
    assert (timeline.stretches[0].first_position, timeline.stretches[0].first_step) == (position, 7)


@pytest.mark.parametrize("position", [576, 600, 5000])
def test_where_no_whole_batch_is_left_it_is_refused(position: int) -> None:
    with pytest.raises(BadRequest):
        Timeline.of(PHASED, 100, position, 7)


def test_another_batch_size_goes_on_in_the_middle_of_an_epoch() -> None:
    timeline = Timeline.of(Recipe(epochs=2, batch_size=30), 100, 70, 7)
    found = [(batch.step, batch.position, batch.size) for batch in timeline.batches(70)]
    assert found == [(7, 70, 30), (8, 100, 30), (9, 130, 30), (10, 160, 30)]
    assert (timeline.steps, timeline.end, timeline.unseen) == (11, 190, 10)


@quick
@given(st.integers(1, 6), st.integers(1, 60), st.integers(1, 40))
def test_from_the_beginning_nothing_is_new(epochs: int, samples: int, size: int) -> None:
    assume(size <= epochs * samples)
    recipe = Recipe(epochs=epochs, batch_size=size)
    assert Timeline.of(recipe, samples) == Timeline.of(recipe, samples, 0, 0)
