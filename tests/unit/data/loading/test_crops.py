"""Boxes lie where they should, and each is a function of seed, epoch and sample alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.data.loading.crops import View, boxes, centre_boxes, dct_scale, power_of_four_thirds

quick = settings(deadline=None, max_examples=50)
sides = st.integers(1, 2000)
sizes = st.lists(st.tuples(sides, sides), min_size=1, max_size=40)


def look(view, pairs, epoch=0, image_size=64, first=0):
    """The boxes of images of these widths and heights, numbered from `first`."""
    wide, high = np.array(pairs).T
    ids = np.arange(first, first + len(pairs))
    return boxes(view, image_size, ids, np.full(len(pairs), epoch), wide, high)


def same(count, width=100, height=100):
    return [(width, height)] * count


@quick
@given(sizes, st.floats(0.01, 1), st.integers(0, 1000), st.integers(0, 100))
def test_resized_boxes_lie_inside_the_image(pairs, scale, seed, epoch):
    left, top, right, bottom = look(View("resized", scale, seed=seed), pairs, epoch).edges.T
    wide, high = np.array(pairs).T
    assert (left >= 0).all() and (top >= 0).all()
    assert (right > left).all() and (bottom > top).all()
    assert (right <= wide).all() and (bottom <= high).all()


@quick
@given(sizes, st.floats(0.01, 1))
def test_centre_boxes_are_squares_in_the_middle(pairs, share):
    left, top, right, bottom = look(View("centre", crop_pct=share), pairs).edges.T
    wide, high = np.array(pairs).T
    assert (left >= 0).all() and (top >= 0).all()
    assert (right - left == bottom - top).all()
    assert (right > left).all()
    assert (abs(left - (wide - right)) <= 1).all()
    assert (abs(top - (high - bottom)) <= 1).all()
    assert (abs((right - left) - np.minimum(wide, high) * share) <= 1).all()


def test_known_centre_boxes():
    edges = look(View("centre"), [(256, 256), (500, 375), (32, 40), (1, 1)]).edges.tolist()
    assert edges == [[16, 16, 240, 240], [86, 23, 414, 351], [2, 6, 30, 34], [0, 0, 1, 1]]


@quick
@given(sizes, st.integers(0, 16), st.sampled_from([32, 64, 224]), st.integers(0, 100))
def test_pad_shifts_by_no_more_than_crop_pad_pixels_of_the_input(pairs, pad, image_size, seed):
    view = View("pad", crop_pad=pad, crop_pct=1.0, seed=seed)
    moved = look(view, pairs, image_size=image_size).edges
    wide, high = np.array(pairs, dtype=float).T
    still = centre_boxes(1.0, wide, high)
    shift = moved - still
    side = (still[:, 2] - still[:, 0])[:, None]
    assert (shift[:, :2] == shift[:, 2:]).all()
    assert (abs(shift) <= pad * side / image_size + 0.5).all()
    assert (abs(shift) < side).all()


def test_pad_uses_every_shift_about_as_often():
    view = View("pad", crop_pad=4, crop_pct=1.0)
    lefts = look(view, same(9000, 32, 32), image_size=32).edges[:, 0]
    shifts, counts = np.unique(lefts, return_counts=True)
    assert shifts.tolist() == list(range(-4, 5))
    assert counts.min() > 850
    assert counts.max() < 1150


@quick
@given(sizes, st.sampled_from(["resized", "pad", "centre"]), st.integers(0, 50), st.data())
def test_a_box_does_not_depend_on_the_rest_of_the_batch(pairs, crop, epoch, data):
    view = View(crop, hflip=True, seed=data.draw(st.integers(0, 2**40)))
    together = look(view, pairs, epoch)
    for number in range(len(pairs)):
        alone = look(view, pairs[number : number + 1], epoch, first=number)
        assert alone.edges[0].tolist() == together.edges[number].tolist()
        assert alone.flip[0] == together.flip[number]


def test_epochs_may_differ_within_a_batch():
    view, size = View("resized", hflip=True), np.array([100, 100])
    mixed = boxes(view, 64, np.array([5, 5]), np.array([3, 4]), size, size)
    for place, epoch in enumerate((3, 4)):
        alone = look(view, same(1), epoch, first=5)
        assert mixed.edges[place].tolist() == alone.edges[0].tolist()
        assert mixed.flip[place] == alone.flip[0]


@pytest.mark.parametrize("crop", ["resized", "pad"])
def test_another_epoch_or_seed_gives_other_boxes(crop):
    view = View(crop, crop_pad=16, hflip=True)
    one = look(view, same(1000), epoch=0)
    for other in (
        look(view, same(1000), epoch=1),
        look(View(crop, crop_pad=16, hflip=True, seed=1), same(1000)),
    ):
        assert (one.edges == other.edges).all(axis=1).mean() < 0.05
        assert 0.4 < (one.flip == other.flip).mean() < 0.6


def test_centre_boxes_are_the_same_in_every_epoch():
    one, other = (look(View("centre"), same(50), epoch) for epoch in (0, 1))
    assert np.array_equal(one.edges, other.edges)


@pytest.mark.parametrize("crop", ["resized", "pad", "centre"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_half_of_the_images_are_flipped(crop, seed):
    flips = look(View(crop, hflip=True, seed=seed), same(10_000)).flip
    assert 0.48 < flips.mean() < 0.52


@pytest.mark.parametrize("crop", ["resized", "pad", "centre"])
def test_nothing_is_flipped_unless_asked(crop):
    assert not look(View(crop), same(1000)).flip.any()


@quick
@given(st.lists(st.tuples(sides, sides), min_size=1), st.floats(0.02, 1), st.integers(0, 1000))
def test_the_area_of_a_resized_box_is_as_asked_or_the_centre(pairs, scale, seed):
    edges = look(View("resized", scale, seed=seed), pairs).edges
    wide, high = np.array(pairs, dtype=float).T
    across, down = edges[:, 2] - edges[:, 0], edges[:, 3] - edges[:, 1]
    rounding = (across + down) / 2 + 1
    as_asked = across * down >= scale * wide * high - rounding
    ratio_low, ratio_high = (across - 0.5) / (down + 0.5), (across + 0.5) / (down - 0.5)
    as_asked &= (ratio_low <= 4 / 3) & (ratio_high >= 3 / 4)
    centred = (edges == centre_boxes(1.0, wide, high)).all(axis=1)
    assert (as_asked | centred).all()


def test_areas_and_aspects_are_spread_over_their_range():
    edges = look(View("resized", 0.25), same(20_000, 1000, 1000)).edges
    across, down = edges[:, 2] - edges[:, 0], edges[:, 3] - edges[:, 1]
    area, aspect = across * down / 1e6, np.log(across / down) / np.log(4 / 3)
    assert 0.249 < area.min() < 0.26
    assert area.max() > 0.98
    assert np.histogram(area, bins=3, range=(0.25, 1))[0].min() > 3000
    assert aspect.min() < -0.95
    assert aspect.max() > 0.95
    assert abs(aspect.mean()) < 0.02


def test_small_boxes_reach_every_edge_of_the_image():
    edges = look(View("resized", 0.08), same(20_000)).edges
    small = edges[(edges[:, 2:] - edges[:, :2] < 60).all(axis=1)]
    assert small.min(axis=0)[:2].tolist() == [0, 0]
    assert small.max(axis=0)[2:].tolist() == [100, 100]


@pytest.mark.parametrize("size", [(1, 1), (1, 3), (3, 1), (2, 2), (5, 4)])
def test_of_a_tiny_image_at_least_one_pixel_is_seen(size):
    edges = look(View("resized", 0.01), same(2000, *size)).edges
    assert (edges[:, 2:] > edges[:, :2]).all()
    assert (edges[:, :2] >= 0).all()
    assert (edges[:, 2:] <= size).all()


def test_a_very_long_image_falls_back_to_its_middle():
    (edges,) = look(View("resized", 0.9), [(2000, 20)]).edges.tolist()
    assert edges == [990, 0, 1010, 20]


def test_boxes_never_change():
    view = View("resized", hflip=True, seed=7)
    seen = look(view, [(500, 375), (64, 64), (333, 1000)], epoch=2)
    assert seen.edges.tolist() == [[21, 3, 488, 371], [3, 1, 62, 49], [24, 41, 331, 351]]
    assert seen.flip.tolist() == [True, True, True]


@quick
@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 512))
def test_a_jpeg_shrunk_in_decoding_still_covers_the_input(across, down, image_size):
    scale = dct_scale(across, down, image_size)
    assert scale in (1, 2, 4, 8)
    if scale > 1:
        assert min(across, down) // scale >= image_size
    if scale < 8:
        assert min(across, down) // (2 * scale) < image_size


@quick
@given(st.lists(st.floats(-1, 1), min_size=1))
def test_the_power_series_is_the_power(exponents):
    ours = power_of_four_thirds(np.array(exponents))
    assert np.allclose(ours, np.power(4 / 3, exponents), rtol=1e-12, atol=0)
