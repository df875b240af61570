"""The operations do what torchvision's do: colours to within two levels, warps but for the edge."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stoker.data.images.pixel_ops import FILL, OPERATIONS, UNIT, move

WARPS = {"shear x": "ShearX", "shear y": "ShearY", "rotate": "Rotate"}
FACTORS = {
    "brightness": "Brightness",
    "saturation": "Color",
    "contrast": "Contrast",
    "sharpness": "Sharpness",
}
EXACT = {"posterize": "Posterize", "solarize": "Solarize", "equalize": "Equalize"}
CASES = [
    *((name, strength) for name in WARPS for strength in (-120, 0, 77)),
    *(("rotate", degrees * UNIT) for degrees in (-135, 33, 90)),
    *((name, strength) for name in FACTORS for strength in (3, 128, 256, 400, 509)),
    *(("posterize", bits) for bits in (2, 5, 8)),
    *(("solarize", threshold) for threshold in (0, 100, 255)),
    *((name, pixels) for name in ("move x", "move y") for pixels in (-9, 0, 7, 99)),
    ("equalize", 0),
    ("autocontrast", 0),
    ("identity", 0),
]


def picture(side: int = 48) -> np.ndarray:
    """Smooth, so that a warp shows how far it is off, with levels from 20 to 230."""
    down, across = np.mgrid[0:side, 0:side] / side
    planes = [across, down, (across + down) / 2]
    waves = [0.5 + 0.5 * np.sin(6 * plane + 2 * across) for plane in planes]
    return (20 + 210 * np.stack(waves, -1)).astype(np.uint8)


def by_torchvision(name: str, strength: int) -> np.ndarray:
    torch = pytest.importorskip("torch")
    autoaugment = pytest.importorskip("torchvision.transforms.autoaugment")
    moves = {"move x": "TranslateX", "move y": "TranslateY", "identity": "Identity"}
    names = {**WARPS, **FACTORS, **EXACT, **moves, "autocontrast": "AutoContrast"}
    value: Any = strength
    if name in WARPS:
        value = strength / UNIT
    elif name in FACTORS:
        value = strength / UNIT - 1
    bilinear = autoaugment.InterpolationMode.BILINEAR
    image = torch.from_numpy(picture()).permute(2, 0, 1)
    made = autoaugment._apply_op(image, names[name], value, bilinear, [float(c) for c in FILL])
    result: np.ndarray = made.permute(1, 2, 0).numpy()
    return result


@pytest.mark.parametrize(("name", "strength"), CASES)
def test_an_operation_is_that_of_torchvision(name: str, strength: int) -> None:
    image = picture()
    OPERATIONS[name](image, strength)
    distance = np.abs(image.astype(int) - by_torchvision(name, strength).astype(int))
    if name in WARPS:
        # At the edge of the image one blends with the fill colour, the other one may not.
        assert np.mean(distance > 2) < 0.07
        assert np.median(distance) <= 1
    elif name in EXACT or name.startswith("move") or name == "identity":
        assert distance.max() == 0
    else:
        assert distance.max() <= 2  # we round once, torchvision cuts off, for a blend twice


@pytest.mark.parametrize("side", [1, 2, 3, 5])
@pytest.mark.parametrize("name", OPERATIONS)
def test_tiny_images_keep_their_shape(name: str, side: int) -> None:
    image = np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)
    strength = {"posterize": 4, "solarize": 128}.get(name, 300)
    OPERATIONS[name](image, strength)
    assert image.shape == (side, side, 3)


@pytest.mark.parametrize("name", ["equalize", "autocontrast"])
def test_an_image_of_one_colour_stays(name: str) -> None:
    image = np.full((8, 8, 3), 93, np.uint8)
    OPERATIONS[name](image, 0)
    assert (image == 93).all()


def test_what_is_uncovered_has_the_fill_colour() -> None:
    image = picture()
    move(image, 5, -3)
    assert (image[:, :5] == FILL).all()
    assert (image[-3:] == FILL).all()
    assert np.array_equal(image[:-3, 5:], picture()[3:, :-5])


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_image_is_changed_where_it_is(name: str) -> None:
    batch = np.stack([picture(), picture()])
    strength = {"posterize": 2, "solarize": 128}.get(name, 500)
    OPERATIONS[name](batch[1], strength)
    assert np.array_equal(batch[0], picture())
    assert np.array_equal(batch[1], picture()) == (name == "identity")
