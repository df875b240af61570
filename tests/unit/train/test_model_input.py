"""The input of a model as a GPU makes it: the CPU's numbers, rounded once, by one kernel."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

from stoker.recipe.recipe import Recipe
from stoker.train.mixing import Mix, draw_mix, partners
from stoker.train.model.build import Normalise
from stoker.train.model_input import FusedInput, input_maker

CPU = torch.device("cpu")
MIXES: dict[str, dict[str, float]] = {
    "none": {},
    "mixup": {"mixup_alpha": 0.4},
    "cutmix": {"cutmix_prob": 1.0},
    "both": {"mixup_alpha": 0.4, "cutmix_prob": 0.5},
}
SHAPES = [(8, 16), (5, 7), (1, 9), (2, 1), (3, 1), (1, 1)]
"""Images, of which an odd number leaves one without a partner, and their side in pixels."""
SIXTEEN_BITS = [torch.bfloat16, torch.float16]

needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None, reason="torch.compile on a CPU needs g++"
)


def batch(count: int, side: int, mix: str) -> tuple[Tensor, Mix | None]:
    """Bytes of images, and how they are mixed."""
    draw = np.random.default_rng([count, side])
    images = torch.from_numpy(draw.integers(0, 256, (count, side, side, 3), dtype=np.uint8))
    numbers, epochs = np.arange(count), np.zeros(count, np.int64)
    return images, Mix.of(draw_mix(Recipe(**MIXES[mix]), side, numbers, epochs))  # type: ignore[arg-type]


def fused(dtype: torch.dtype, channels_last: bool = True) -> FusedInput:
    return FusedInput(Normalise(), CPU, channels_last, dtype)


def plain(made_by: FusedInput, images: Tensor, mix: Mix | None) -> Tensor:
    """The input without a compiler."""
    numbers = None if mix is None else (partners(len(images), CPU), mix.share, mix.boxes)
    return made_by.plain(images, numbers)


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    counters.clear()
    yield
    torch.compiler.reset()


@pytest.mark.exact
@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("mix", MIXES)
def test_in_32_bits_it_is_the_input_of_a_cpu(
    mix: str, shape: tuple[int, int], channels_last: bool
) -> None:
    images, numbers = batch(*shape, mix)
    expected = input_maker(Normalise(), CPU, channels_last)(images, numbers)
    made = plain(fused(torch.float32, channels_last), images, numbers)
    assert torch.equal(made, expected)
    assert made.shape == expected.shape == (shape[0], 3, shape[1], shape[1])
    if shape[1] > 1:  # the strides of a single pixel mean nothing
        layout = torch.channels_last if channels_last else torch.contiguous_format
        assert made.is_contiguous(memory_format=layout)


@pytest.mark.exact
@pytest.mark.parametrize("dtype", SIXTEEN_BITS, ids=str)
@pytest.mark.parametrize("mix", MIXES)
def test_in_16_bits_each_number_is_rounded_once(mix: str, dtype: torch.dtype) -> None:
    for shape in SHAPES:
        images, numbers = batch(*shape, mix)
        exact = plain(fused(torch.float32), images, numbers)
        made = plain(fused(dtype), images, numbers)
        assert made.dtype == dtype
        assert torch.equal(made, exact.to(dtype))


@pytest.mark.exact
def test_mixing_changes_what_it_should() -> None:
    """Else all of the above could compare images that nothing mixes."""
    images, _ = batch(8, 16, "none")
    inputs = [plain(fused(torch.float32), *batch(8, 16, mix)) for mix in MIXES]
    assert not any(torch.equal(a, b) for n, a in enumerate(inputs) for b in inputs[:n])
    images, mix = batch(1, 9, "both")
    assert torch.equal(
        plain(fused(torch.float32), images, mix), plain(fused(torch.float32), images, None)
    )


def ulps(some: Tensor, others: Tensor) -> int:
    """The largest distance of two tensors, in steps of their type of 16 bits."""
    assert some.dtype == others.dtype

    def ordered(tensor: Tensor) -> Tensor:
        whole = tensor.contiguous().view(torch.int16).long()
        return torch.where(whole < 0, -(whole & 0x7FFF), whole)

    return int((ordered(some) - ordered(others)).abs().max())


def test_ulps_count_the_numbers_in_between() -> None:
    for dtype in SIXTEEN_BITS:
        one, step = torch.tensor([1.0, -1.0], dtype=dtype), torch.finfo(dtype).eps
        assert ulps(one, one) == 0
        assert ulps(one, one * (1 + step)) == 1
        assert ulps(one, one * (1 + 2 * step)) == 2
        assert ulps(one * 0, -one * 0) == 0


@needs_compiler
@pytest.mark.exact
@pytest.mark.parametrize(
    "dtype",
    [
        torch.bfloat16,
        pytest.param(torch.float16, marks=pytest.mark.rotates(3)),
        pytest.param(torch.float32, marks=pytest.mark.rotates(3)),
    ],
    ids=str,
)
def test_the_compiled_kernel_makes_the_same_for_every_size(dtype: torch.dtype) -> None:
    to_input = fused(dtype)
    for mix in ("none", "both"):
        for shape in ((8, 16), (5, 16), (8, 24), (6, 32), (7, 8)):
            images, numbers = batch(*shape, mix)
            made = to_input(images, numbers)
            assert not to_input.why_not_compiled
            expected = plain(to_input, images, numbers)
            assert made.dtype == dtype and made.shape == expected.shape
            assert made.stride() == expected.stride()
            if dtype == torch.float32:
                # A difference of two large numbers may be close to 0: a step of the large ones.
                assert (made - expected).abs().max() <= 2**-22
            else:
                assert ulps(made, expected) <= 1
    # One with and one without mixing, and none for any other size.
    assert counters["stats"]["unique_graphs"] <= 3
    assert not counters["graph_break"]


@needs_compiler
@pytest.mark.rotates(3)
@pytest.mark.exact
def test_planes_are_compiled_too() -> None:
    to_input = fused(torch.bfloat16, channels_last=False)
    images, numbers = batch(5, 16, "cutmix")
    made = to_input(images, numbers)
    assert not to_input.why_not_compiled
    assert made.is_contiguous() and ulps(made, plain(to_input, images, numbers)) <= 1


class Compiler:
    """A compiled function that fails."""

    def __init__(self, error: Exception) -> None:
        self.error, self.calls = error, 0

    def __call__(self, *args: Any) -> Tensor:
        self.calls += 1
        raise self.error


@pytest.mark.exact
@pytest.mark.parametrize("error", [RuntimeError("no Triton here"), OSError("no gcc")], ids=repr)
def test_without_a_kernel_the_same_is_made_uncompiled(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = Compiler(error)
    monkeypatch.setattr(torch, "compile", lambda function, **options: compiler)
    to_input = fused(torch.bfloat16)
    images, numbers = batch(5, 7, "both")
    for _ in range(3):
        assert torch.equal(to_input(images, numbers), plain(to_input, images, numbers))
    assert to_input.why_not_compiled == f"{type(error).__name__}: {error}"
    assert compiler.calls == 1  # it is not tried again


@pytest.mark.exact
@pytest.mark.parametrize("error", [torch.OutOfMemoryError("full"), MemoryError()], ids=repr)
def test_a_lack_of_memory_is_passed_on(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **options: Compiler(error))
    to_input = fused(torch.bfloat16)
    with pytest.raises(type(error)):
        to_input(*batch(5, 7, "both"))
    assert not to_input.why_not_compiled
