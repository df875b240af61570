"""Bytes become the model's input, and chance is seeded, as the plainest code would do it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stoker.train.device import seed_device
from stoker.train.model.build import Normalise
from stoker.train.model_input import input_maker

CPU = torch.device("cpu")


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("shape", [(5, 7, 7, 3), (1, 48, 48, 3), (2, 1, 1, 3)])
def test_the_input_is_that_of_the_plain_formula_bit_for_bit(
    channels_last: bool, shape: tuple[int, ...]
) -> None:
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    before, expected = images.copy(), Normalise()
    mean = torch.tensor(expected.mean)[:, None, None] * 255
    scale = 1 / (torch.tensor(expected.std)[:, None, None] * 255)
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2)
    plain = ((pixels if channels_last else pixels.contiguous()).float() - mean) * scale
    found = input_maker(expected, CPU, channels_last)(torch.from_numpy(images), None)
    assert torch.equal(found, plain)
    assert found.stride() == plain.stride()
    assert (images == before).all()


def test_a_seed_of_the_cpu_gives_the_draws_of_manual_seed() -> None:
    torch.manual_seed(5)
    usual = torch.rand(3), torch.nn.functional.dropout(torch.ones(20))
    seed_device(CPU, 5)
    assert torch.equal(torch.rand(3), usual[0])
    assert torch.equal(torch.nn.functional.dropout(torch.ones(20)), usual[1])
