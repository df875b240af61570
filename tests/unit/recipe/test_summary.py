"""The line before step 1 says what a run will do, and warns of what looks wrong."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.recipe.recipe import Phase, Recipe
from stoker.recipe.resolve import preset_names, resolve
from stoker.recipe.schedule import Timeline, peak_lr
from stoker.recipe.summary import derived_line, warmup_steps, warnings

IMAGENET = 1_281_167
SHRINKING = tuple(
    Phase(from_epoch=start, image_size=size, batch_size=batch)
    for start, size, batch in ((0, 160, 4096), (20, 192, 3072), (40, 224, 2048))
)


def line(recipe, samples, world):
    return derived_line(recipe, Timeline.of(recipe, samples), world)


def warned_of(recipe, samples):
    return warnings(recipe, Timeline.of(recipe, samples))


@pytest.mark.parametrize(
    ("recipe", "samples", "world", "facts"),
    [
        (
            Recipe(batch_size=2048, micro_batch=128, epochs=90, warmup_epochs=5.0),
            IMAGENET,
            8,
            ["2,048 = 8 ranks x 128 images x 2 micro-", "rate 0.8 ", "3,128 steps", "56,301 steps"],
        ),
        (
            Recipe(batch_size=256, epochs=2),
            1024,
            1,
            [
                "256 = 1 rank x 256 images x 1 micro-batch;",
                "rate 0.1 ",
                "0 epochs = 0",
                "2 epochs = 8 steps",
            ],
        ),
        (
            Recipe(batch_size=1024, epochs=4, lr_base=0.4, lr_base_scale="sqrt", micro_batch=500),
            4096,
            2,
            ["2 ranks x 256 images x 2 micro", "rate 0.8 (0.4 for 256 images, sqrt)", "= 16 steps"],
        ),
        (
            Recipe(batch_size=128, epochs=4, lr=0.05, warmup_epochs=0.5, micro_batch=4096),
            1280,
            4,
            ["4 ranks x 32 images x 1 ", "rate 0.05 (--lr)", "0.5 epochs = 5 steps", "= 40 steps"],
        ),
        (
            resolve("imagenet-resnet50").recipe,
            IMAGENET,
            8,
            ["8 ranks x 512 images", "rate 1.6 / 1.2 / 0.8 ", "= 2,503 steps", "= 27,107 steps"],
        ),
    ],
)
def test_the_line_before_step_1(recipe, samples, world, facts):
    text = line(recipe, samples, world)
    assert [fact for fact in facts if fact not in text] == []


@settings(deadline=None)
@given(st.integers(50, 500), st.integers(1, 40), st.integers(1, 40), st.integers(0, 31))
def test_warm_up_steps_are_those_that_start_in_the_warm_up(samples, one, other, eighths):
    recipe = Recipe(
        epochs=4,
        warmup_epochs=eighths / 8,
        phases=(
            Phase(from_epoch=0, image_size=32, batch_size=one),
            Phase(from_epoch=1, image_size=32, batch_size=other),
        ),
    )
    timeline = Timeline.of(recipe, samples)
    warm = [b for b in timeline.batches() if 8 * b.position < eighths * samples]
    assert warmup_steps(recipe, timeline) == len(warm)


def test_one_learning_rate_over_several_batch_sizes_is_warned_of():
    recipe = Recipe(epochs=60, lr=0.8, phases=SHRINKING)
    first, *_ = warned_of(recipe, IMAGENET)
    assert "--lr 0.8" in first and "[2048, 3072, 4096]" in first
    assert "--lr-base" in first


@pytest.mark.parametrize("scheduler", ["cosine", "onecycle"])
def test_a_learning_rate_that_follows_the_batch_size_is_not_warned_of(scheduler):
    assert warned_of(Recipe(epochs=60, scheduler=scheduler, phases=SHRINKING), 2048 * 3 * 100) == []


@pytest.mark.parametrize(
    ("lr", "times"),
    [(0.8, None), (3.1, None), (0.21, None), (3.2, 4), (0.2, 4), (6.4, 8), (0.1, 8), (80.0, 100)],
)
def test_a_learning_rate_four_times_off_the_rule_is_warned_of(lr, times):
    warned = warned_of(Recipe(lr=lr, batch_size=2048), 20480)
    assert len(warned) == bool(times)
    for text in warned:
        assert f"--lr {lr:g} is {times} times {'larger' if lr > 0.8 else 'smaller'}" in text
        assert "0.8" in text and "2,048 images" in text


@pytest.mark.parametrize(
    ("batch", "lr", "times"),
    [
        (16, 0.01, 8),  # 0.635 instead of 0.836 after an epoch
        (16, 0.00125, None),
        (32, 0.0025, None),
        (64, 0.005, None),
        (128, 0.01, None),
        (256, 0.02, None),
        (512, 0.04, None),
        (256, 0.1, 5),  # a rate for random weights
    ],
)
def test_rates_for_fine_tuning_are_held_against_the_rule_for_trained_weights(batch, lr, times):
    """The rows of the table of infrastructures for Caltech-256, and two mistakes."""
    recipe = Recipe(pretrained=True, batch_size=batch, lr=lr, epochs=1)
    warned = warned_of(recipe, 512 * 30)
    assert len(warned) == bool(times)
    for text in warned:
        assert f"--lr {lr:g} is {times} times larger" in text and "fine-tune (0.02 for 256)" in text


def test_a_head_alone_may_learn_faster():
    frozen = Recipe(pretrained=True, freeze="body", batch_size=256, lr=0.1, epochs=2)
    assert warned_of(frozen, 2560) == []
    assert warned_of(replace(frozen, freeze_epochs=1), 2560) != []
    assert warned_of(replace(frozen, freeze="2"), 2560) != []


def test_the_claims_of_the_large_batch_guide():
    """3.2 at 2,048 is warned of, 0.8, 0.6 and 0.4 are not; 0.8 for three batch sizes is."""
    for lr, count in ((3.2, 1), (0.8, 0), (0.6, 0), (0.4, 0)):
        recipe = Recipe(lr=lr, batch_size=2048, epochs=60, warmup_epochs=8, scheduler="onecycle")
        warned = [text for text in warned_of(recipe, 2048 * 100) if "--lr" in text]
        assert len(warned) == count
    (warned,) = warned_of(Recipe(epochs=60, lr=0.8, phases=SHRINKING), 2048 * 300)
    assert "the same for batches of [2048, 3072, 4096] images" in warned


def test_a_rate_is_compared_where_it_is_furthest_off():
    phases = tuple(
        Phase(from_epoch=start, image_size=32, batch_size=batch)
        for start, batch in ((0, 2048), (1, 256))
    )
    texts = warned_of(Recipe(epochs=2, lr=0.8, phases=phases), 4096)
    assert any("8 times larger than the 0.1" in text and "256 images" in text for text in texts)


@pytest.mark.parametrize("name", preset_names())
@pytest.mark.parametrize("flags", [{}, {"pretrained": True}])
def test_no_preset_is_warned_of(name, flags):
    recipe = resolve(name, flags).recipe
    texts = warned_of(recipe, recipe.batch_size * 12 * 50)
    assert [text for text in texts if "rate" in text or "--lr" in text] == []


@settings(deadline=None)
@given(st.integers(1, 16), st.integers(0, 512), st.sampled_from([SHRINKING, ()]))
def test_ranks_and_micro_batches_leave_the_rate_alone(world, micro_batch, phases):
    """Only a batch size changes the learning rate, and then the line before step 1 shows both."""
    recipe = Recipe(epochs=60, batch_size=2048, micro_batch=micro_batch, phases=phases)
    timeline = Timeline.of(recipe, IMAGENET)
    text = derived_line(recipe, timeline, world)
    assert f"peak learning rate {'1.6 / 1.2 / 0.8' if phases else '0.8'} (" in text
    for stretch in timeline.stretches:
        assert peak_lr(recipe, stretch.batch_size) == pytest.approx(stretch.batch_size * 0.1 / 256)


def test_the_rule_for_sgd_is_not_held_against_adamw():
    assert warned_of(Recipe(optimizer="adamw", lr=0.001, batch_size=2048), 20480) == []


def test_samples_that_stay_unseen_are_counted():
    (warned,) = warned_of(Recipe(epochs=3, batch_size=64), 75)
    assert "33 samples of the last epoch" in warned


def test_nothing_is_said_where_nothing_is_wrong():
    assert warned_of(Recipe(epochs=3, batch_size=64), 64 * 5) == []


@pytest.mark.parametrize("optimizer", ["adamw", "lion", "lamb"])
def test_a_rate_for_sgd_is_held_against_others(optimizer):
    (warned,) = warned_of(Recipe(optimizer=optimizer, batch_size=64, epochs=3), 64 * 5)
    assert f"{optimizer} usually needs less" in warned
    for recipe in (
        Recipe(optimizer=optimizer, lr=0.001),
        Recipe(optimizer=optimizer, lr_base=0.01),
    ):
        assert warned_of(recipe, 64 * 5) == []


@pytest.mark.parametrize("optimizer", ["sgd", "lars", "nlarc", "csgdw", "nesterov"])
def test_some_optimisers_take_the_rates_of_sgd(optimizer):
    assert warned_of(Recipe(optimizer=optimizer), 64 * 5) == []


def test_numbers_that_nobody_means_are_still_readable():
    (text,) = warned_of(Recipe(lr=1e6, batch_size=200, epochs=1), 200)
    assert "--lr 1,000,000 is 12,800,000 times larger than the 0.0781 " in text
