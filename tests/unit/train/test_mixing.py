"""What is mixed into a sample depends on the sample, its epoch and its neighbour alone."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from stoker.recipe.recipe import Recipe
from stoker.recipe.schedule import cuts
from stoker.train.mixing import Ints, Mix, apply_mix, beta, draw_mix, partners

quick = settings(deadline=None, max_examples=60)
CPU = torch.device("cpu")
RECIPES = {
    "mixup": Recipe(mixup_alpha=0.4),
    "cutmix": Recipe(cutmix_prob=1.0),
    "both": Recipe(mixup_alpha=0.4, cutmix_prob=0.5),
}


def batch(count: int, image_size: int = 8, seed: int = 0) -> tuple[Ints, Ints, Tensor]:
    """Sample numbers, epochs and images of a batch that runs through the end of an epoch."""
    draw = np.random.default_rng(seed)
    samples = draw.integers(0, 10_000, count)
    epochs = np.sort(draw.integers(3, 5, count))
    pixels = draw.normal(size=(count, 3, image_size, image_size)).astype(np.float32)
    return samples, epochs, torch.from_numpy(pixels)


def drawn(recipe: Recipe, image_size: int, samples: Ints, epochs: Ints) -> Mix:
    mix = Mix.of(draw_mix(recipe, image_size, samples, epochs))
    assert mix is not None
    return mix


def mixed(recipe: Recipe, samples: Ints, epochs: Ints, images: Tensor) -> Tensor:
    return apply_mix(drawn(recipe, images.shape[-1], samples, epochs), images)


class TestPartners:
    @given(st.integers(1, 40))
    @quick
    def test_are_each_others_neighbours(self, count: int) -> None:
        other = partners(count, CPU).tolist()
        assert [other[place] for place in other] == list(range(count))
        assert all(abs(place - own) == 1 for own, place in enumerate(other[: count // 2 * 2]))

    def test_the_last_of_an_odd_number_is_its_own(self) -> None:
        assert partners(5, CPU).tolist() == [1, 0, 3, 2, 4]


class TestAnyCut:
    @given(
        count=st.integers(2, 33),
        parts=st.integers(1, 9),
        image_size=st.sampled_from([5, 8, 11]),
        name=st.sampled_from(list(RECIPES)),
        seed=st.integers(0, 99),
    )
    @quick
    def test_gives_the_same_mixed_batch(
        self, count: int, parts: int, image_size: int, name: str, seed: int
    ) -> None:
        samples, epochs, images = batch(count, image_size, seed)
        whole = mixed(RECIPES[name], samples, epochs, images)
        pieces = [
            mixed(RECIPES[name], samples[begin:end], epochs[begin:end], images[begin:end])
            for begin, end in pairwise(cuts(count, parts))
        ]
        assert torch.equal(torch.cat(pieces), whole)

    @pytest.mark.parametrize("name", RECIPES)
    def test_and_any_company_leave_a_samples_share_and_box_alone(self, name: str) -> None:
        samples, epochs, _ = batch(20)
        whole = drawn(RECIPES[name], 16, samples, epochs)
        shuffle = np.random.default_rng(1).permutation(20)
        again = drawn(RECIPES[name], 16, samples[shuffle], epochs[shuffle])
        assert torch.equal(again.share, whole.share[shuffle])
        if whole.boxes is not None and again.boxes is not None:
            assert torch.equal(again.boxes, whole.boxes[shuffle])

    @pytest.mark.parametrize("name", RECIPES)
    def test_another_epoch_draws_anew(self, name: str) -> None:
        samples, epochs, _ = batch(50)
        one, two = (drawn(RECIPES[name], 64, samples, epochs + e).share for e in (0, 10))
        assert (one != two).float().mean() > 0.9

    def test_another_seed_draws_anew(self) -> None:
        samples, epochs, _ = batch(50)
        one, two = (
            drawn(Recipe(mixup_alpha=0.4, seed=seed), 64, samples, epochs).share for seed in (0, 1)
        )
        assert (one != two).all()


class TestMixup:
    def test_is_the_convex_combination_of_neighbours(self) -> None:
        samples, epochs, images = batch(9)
        share = drawn(RECIPES["mixup"], 8, samples, epochs).share.view(-1, 1, 1, 1)
        assert ((share >= 0) & (share <= 1)).all()
        neighbours = images[[1, 0, 3, 2, 5, 4, 7, 6, 8]]
        torch.testing.assert_close(
            mixed(RECIPES["mixup"], samples, epochs, images),
            share * images + (1 - share) * neighbours,
        )

    def test_leaves_a_lonely_last_image_as_it_is(self) -> None:
        samples, epochs, images = batch(9)
        torch.testing.assert_close(
            mixed(RECIPES["mixup"], samples, epochs, images)[8], images[8], rtol=0, atol=1e-6
        )


class TestCutmix:
    @given(image_size=st.integers(1, 40), seed=st.integers(0, 99))
    @quick
    def test_inside_the_box_is_the_neighbour_outside_the_image_itself(
        self, image_size: int, seed: int
    ) -> None:
        samples, epochs, images = batch(6, image_size, seed)
        mix = drawn(RECIPES["cutmix"], image_size, samples, epochs)
        assert mix.boxes is not None
        expected = images.clone()
        for own, (left, top, right, bottom) in enumerate(mix.boxes.tolist()):
            assert 0 <= left <= right <= image_size
            assert 0 <= top <= bottom <= image_size
            expected[own, :, top:bottom, left:right] = images[own ^ 1, :, top:bottom, left:right]
        assert torch.equal(apply_mix(mix, images), expected)

    def test_the_share_is_what_the_box_leaves(self) -> None:
        samples, epochs, _ = batch(400)
        images = torch.zeros(400, 1, 16, 16)
        images[::2] = 1
        mix = drawn(RECIPES["cutmix"], 16, samples, epochs)
        own = torch.where(images == 1, apply_mix(mix, images), 1 - apply_mix(mix, images))
        torch.testing.assert_close(own.mean(dim=(1, 2, 3)), mix.share)
        assert mix.share.min() < 0.2
        assert mix.share.max() > 0.9

    @pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
    def test_happens_to_about_the_asked_share_of_images(self, probability: float) -> None:
        recipe = Recipe(cutmix_prob=probability)
        samples, epochs, _ = batch(4000)
        kept = drawn(recipe, 256, samples, epochs).share
        assert (kept < 1).float().mean().item() == pytest.approx(probability, abs=0.04)

    def test_beside_mixup_an_image_gets_one_of_the_two(self) -> None:
        samples, epochs, images = batch(200, image_size=16)
        mix = drawn(RECIPES["both"], 16, samples, epochs)
        assert mix.boxes is not None
        is_cut = (mix.boxes[:, 2:] > mix.boxes[:, :2]).all(dim=1)
        assert 60 < int(is_cut.sum()) < 140
        neighbours = images[partners(200, CPU)]
        share = mix.share.view(-1, 1, 1, 1)
        blended = share * images + (1 - share) * neighbours
        out = apply_mix(mix, images)
        torch.testing.assert_close(out[~is_cut], blended[~is_cut])
        taken = (out == images) | (out == neighbours)
        assert taken[is_cut].all()


class TestOff:
    def test_nothing_is_drawn(self) -> None:
        samples, epochs, _ = batch(8)
        assert draw_mix(Recipe(), 8, samples, epochs) is None

    def test_images_are_handed_on_untouched(self) -> None:
        images = batch(8)[2]
        assert apply_mix(None, images) is images


class TestBeta:
    SAMPLES = np.arange(20_000)

    @pytest.mark.parametrize("alpha", [0.1, 0.2, 0.4, 1.0, 2.0, 4.0, 8.0])
    def test_has_the_mean_and_the_spread_of_its_name(self, alpha: float) -> None:
        values = beta(Recipe(), self.SAMPLES, np.zeros_like(self.SAMPLES), "test", alpha)
        assert values.min() >= 0
        assert values.max() <= 1
        assert values.mean() == pytest.approx(0.5, abs=0.01)
        assert values.var() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.05)

    @pytest.mark.parametrize("alpha", [1e-3, 1e-2, 100.0])
    def test_stays_a_share_at_the_extremes(self, alpha: float) -> None:
        values = beta(Recipe(), self.SAMPLES, np.zeros_like(self.SAMPLES), "test", alpha)
        assert ((values >= 0) & (values <= 1)).all()
        assert values.mean() == pytest.approx(0.5, abs=0.02)
