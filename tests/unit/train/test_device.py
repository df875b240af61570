"""Bytes become the model's input, and chance is seeded, as the plainest code would do it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from stoker.errors import BadRequest
from stoker.recipe.recipe import Recipe
from stoker.train.device import WORKSPACE, seed_device, set_arithmetic
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


@pytest.fixture
def arithmetic() -> Iterator[None]:
    yield
    set_arithmetic(Recipe())


@pytest.mark.parametrize(
    ("amp", "capability", "refused"),
    [
        ("bf16", (7, 5), True),
        ("bf16", (6, 1), True),
        ("bf16", (8, 0), False),
        ("bf16", (8, 9), False),
        ("bf16", (12, 0), False),
        ("fp16", (7, 5), False),
        ("tf32", (7, 5), False),
        ("off", (7, 5), False),
    ],
)
def test_bf16_is_refused_where_a_gpu_does_not_have_it(
    arithmetic: None,
    monkeypatch: pytest.MonkeyPatch,
    amp: str,
    capability: tuple[int, int],
    refused: bool,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla T4")
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    if refused:
        with pytest.raises(BadRequest, match="use --amp fp16"):
            set_arithmetic(Recipe(amp=amp))
    else:
        set_arithmetic(Recipe(amp=amp))


@pytest.mark.parametrize(
    ("deterministic", "before", "after"),
    [
        (True, None, ":4096:8"),
        (True, ":16:8", ":16:8"),
        (True, ":4096:2", ":4096:2"),  # what the user has set stays
        (False, None, None),
        (False, ":4096:2", ":4096:2"),
    ],
)
def test_deterministic_kernels_need_a_workspace_of_cublas(
    arithmetic: None,
    monkeypatch: pytest.MonkeyPatch,
    deterministic: bool,
    before: str | None,
    after: str | None,
) -> None:
    monkeypatch.setenv(WORKSPACE, before or "")
    if before is None:
        monkeypatch.delenv(WORKSPACE)
    set_arithmetic(Recipe(deterministic=deterministic))
    assert os.environ.get(WORKSPACE) == after
    assert torch.are_deterministic_algorithms_enabled() is deterministic
    assert torch.backends.cudnn.benchmark is not deterministic


def test_bf16_is_allowed_on_a_cpu(arithmetic: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    set_arithmetic(Recipe(amp="bf16"))


def test_a_seed_of_the_cpu_gives_the_draws_of_manual_seed() -> None:
    torch.manual_seed(5)
    usual = torch.rand(3), torch.nn.functional.dropout(torch.ones(20))
    seed_device(CPU, 5)
    assert torch.equal(torch.rand(3), usual[0])
    assert torch.equal(torch.nn.functional.dropout(torch.ones(20)), usual[1])
