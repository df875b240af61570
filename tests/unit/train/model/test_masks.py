from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from stoker.recipe.resolve import resolve
from stoker.train.model.build import build_model
from stoker.train.model.masks import (
    all_kept,
    kept_count,
    kernel_names,
    kernels_of,
    largest_kept,
    largest_kept_by_layer,
    random_like,
    total_count,
)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=True), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(32, 5)
    )


def test_kernels_alone_are_pruned() -> None:
    assert kernel_names(model()) == ["0.weight", "3.weight"]


@settings(max_examples=50)
@given(st.floats(0, 1), st.floats(0, 1), st.booleans())
def test_the_largest_weights_are_kept_and_their_number_is_exact(
    first: float, second: float, ties: bool
) -> None:
    kernels = kernels_of(dict(model().named_parameters()), ["0.weight", "3.weight"])
    if ties:
        kernels = {name: (kernel * 8).round() for name, kernel in kernels.items()}
    masks = largest_kept(kernels, max(first, second))
    later = largest_kept(kernels, min(first, second), masks)
    for share, each in ((max(first, second), masks), (min(first, second), later)):
        assert kept_count(each) == round(share * total_count(each))
        kept = torch.cat([kernels[n].abs()[m] for n, m in each.items()])
        gone = torch.cat([kernels[n].abs()[~m] for n, m in each.items()])
        assert not len(kept) or not len(gone) or kept.min() >= gone.max()
    assert all((masks[name] | ~later[name]).all() for name in masks)  # nothing comes back


def test_what_was_pruned_stays_pruned_whatever_its_size() -> None:
    kernels = {"w": torch.arange(10.0)}
    before = {"w": torch.arange(10) < 6}
    assert largest_kept(kernels, 0.5, before)["w"].tolist() == [False] + [True] * 5 + [False] * 4
    assert largest_kept(kernels, 0.9, before)["w"].tolist() == before["w"].tolist()


def test_layers_and_random_masks_keep_as_many() -> None:
    kernels = kernels_of(dict(model().named_parameters()), ["0.weight", "3.weight"])
    by_layer = largest_kept_by_layer(kernels, 0.25)
    assert [int(m.sum()) for m in by_layer.values()] == [54, 40]
    masks = largest_kept(kernels, 0.3)
    random = random_like(masks, 1)
    assert [int(m.sum()) for m in random.values()] == [int(m.sum()) for m in masks.values()]
    assert any((random[name] != masks[name]).any() for name in masks)
    assert all((random_like(masks, 1)[name] == random[name]).all() for name in masks)
    assert any((random_like(masks, 2)[name] != random[name]).any() for name in masks)
    assert kept_count(all_kept(kernels)) == total_count(masks)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_all_and_nothing(share: float) -> None:
    kernels = {"w": torch.randn(7, 3)}
    assert kept_count(largest_kept(kernels, share)) == 21 * share


def test_mobilenetv2_has_3469760_kernel_weights() -> None:
    """3,538,984 is what a count of all numbers in its file gives: with biases, norms and the
    running statistics of BatchNorm, which are not weights and are never pruned."""
    pytest.importorskip("timm")
    recipe = resolve("tickets-mobilenetv2", {}).recipe
    trained, _ = build_model(recipe, 1000)
    kernels = [trained.get_parameter(name) for name in kernel_names(trained)]
    assert (len(kernels), sum(kernel.numel() for kernel in kernels)) == (53, 3_469_760)
    norms = [module for module in trained.modules() if isinstance(module, nn.BatchNorm2d)]
    scales = sum(tensor.numel() for norm in norms for tensor in norm.parameters())
    statistics = sum(
        tensor.numel() for norm in norms for tensor in norm.buffers() if tensor.is_floating_point()
    )
    biases = trained.get_parameter("classifier.bias").numel()
    assert (biases, scales, statistics) == (1_000, 34_112, 34_112)
    assert 3_469_760 + biases + scales + statistics == 3_538_984
