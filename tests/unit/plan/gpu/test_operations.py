"""Counts of a pass are those that are published for a model, and grow as they should."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from stoker.errors import BadRequest
from stoker.plan.gpu.operations import (
    BATCH,
    Operation,
    OperationCounts,
    count_operations,
    count_pass,
)

PUBLISHED = {
    ("resnet50", 224): (25.56, 4.11),
    ("resnet18", 224): (11.69, 1.82),
    ("vit_small_patch16_224", 224): (22.05, 4.61),
    ("convnext_tiny", 224): (28.59, 4.47),
    ("efficientnet_b0", 224): (5.29, 0.40),
}
"""Millions of parameters and 10^9 multiply-adds, as timm's result files state them."""


@pytest.fixture(scope="module")
def counted() -> dict[tuple[str, int], OperationCounts]:
    return {case: count_operations(*case, 1000) for case in PUBLISHED}


@pytest.mark.parametrize("case", PUBLISHED)
def test_counts_are_the_published_ones(
    case: tuple[str, int], counted: dict[tuple[str, int], OperationCounts]
) -> None:
    parameters, gmacs = PUBLISHED[case]
    assert counted[case].parameters / 1e6 == pytest.approx(parameters, rel=0.01)
    # Two decimals are published, and timm counts pooling as arithmetic too.
    assert counted[case].gmacs == pytest.approx(gmacs, rel=0.01, abs=0.02)


def operations_of(model: nn.Module, narrow: bool = False, size: int = 8) -> dict[Operation, int]:
    return dict(count_pass(model, size, narrow).operations)


def small() -> nn.Module:
    with torch.device("meta"):
        return nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.ReLU(inplace=True), nn.Flatten(),
            nn.Linear(16 * 64, 10),
        )  # fmt: skip


def test_a_convolution_has_its_shape_and_both_products_of_the_backward_pass() -> None:
    rows = [op for op in operations_of(small()) if op.kind == "dense"]
    forward, backward = sorted(rows, key=lambda op: op.backward)
    assert (forward.macs, forward.inputs, forward.outputs) == (64 * 16 * 27, 3, 16)
    assert backward.macs == forward.macs  # the images need no gradient
    assert (forward.kernel, forward.positions) == (9, 64)


def test_a_layer_multiplies_three_times_in_training() -> None:
    rows = [(op, n) for op, n in operations_of(small()).items() if op.kind == "linear"]
    assert sum(op.macs * n for op, n in rows) == 3 * 16 * 64 * 10
    assert sum(op.macs * n for op, n in rows if not op.backward) == 16 * 64 * 10


def test_weights_are_read_once_a_batch() -> None:
    (forward,) = [op for op in operations_of(small()) if op.kind == "dense" and not op.backward]
    assert forward.fixed == 4 * 3 * 16 * 9
    assert forward.read == 4 * 3 * 64
    assert forward.written == 4 * 16 * 64


def test_autocast_copies_are_counted_and_halve_the_bytes() -> None:
    wide, narrow = operations_of(small()), operations_of(small(), narrow=True)
    assert not [op for op in wide if op.kind == "cast"]
    assert [op for op in narrow if op.kind == "cast"]
    (forward,) = [op for op in narrow if op.kind == "dense" and not op.backward]
    assert forward.written == 2 * 16 * 64


def test_kinds_of_convolutions() -> None:
    with torch.device("meta"):
        model = nn.Sequential(
            nn.Conv2d(3, 32, 1), nn.Conv2d(32, 32, 3, groups=32), nn.Conv2d(32, 32, 3, groups=4),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 4),
        )  # fmt: skip
    kinds = {op.kind for op in operations_of(model)}
    assert {"pointwise", "depthwise", "grouped", "linear"} <= kinds


class Attends(nn.Module):
    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.fused = fused
        self.head = nn.Linear(24, 4)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        tokens = images.flatten(1).reshape(images.shape[0], 8, 24)[:, None]
        if self.fused:
            mixed = nn.functional.scaled_dot_product_attention(tokens, tokens, tokens)
        else:
            weights = (tokens * 24**-0.5) @ tokens.transpose(-2, -1)
            mixed = nn.functional.softmax(weights.float(), -1).to(tokens.dtype) @ tokens
        return self.head(mixed.mean((1, 2)))  # type: ignore[no-any-return]


def test_fused_attention_is_counted_as_its_products() -> None:
    sums = []
    for fused in (True, False):
        with torch.device("meta"):
            model = Attends(fused)
        counts = count_pass(model, 8, True)
        products = [op.macs * n for op, n in counts.operations if op.kind == "attention"]
        sums.append(sum(products))
        assert (counts.attention_bytes > 0) is fused
    assert sums[0] == sums[1]
    assert sums[0] >= 2 * 8 * 8 * 24


def test_larger_images_take_more(counted: dict[tuple[str, int], OperationCounts]) -> None:
    large = count_operations("resnet18", 256, 1000)
    base = counted["resnet18", 224]
    assert large.gmacs / base.gmacs == pytest.approx((256 / 224) ** 2, rel=0.01)
    assert large.amp.image_bytes > base.amp.image_bytes
    assert large.parameters == base.parameters


def test_the_batch_is_prime_and_divides_no_layer() -> None:
    assert all(BATCH % divisor for divisor in range(2, BATCH))


def test_what_cannot_be_counted_is_refused() -> None:
    with pytest.raises(BadRequest, match="resnet1000"):
        count_operations("resnet1000", 224, 10)
    with pytest.raises(BadRequest, match="vit_tiny"):
        count_operations("vit_tiny_patch16_224", 100, 10)
