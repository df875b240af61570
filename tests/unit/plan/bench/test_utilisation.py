"""Operations counted from the model, and the share of a known peak."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from bench_results import FIGURES, row
from stoker.errors import BadRequest
from stoker.plan.bench.utilisation import KNOWN, peak_flops, training_flops, utilisation
from stoker.recipe.recipe import Recipe


def test_operations_of_a_known_model() -> None:
    """ResNet-50 has 4.09 G multiply-adds at 224 px; a backward pass needs twice as many, but for
    the first layer's input."""
    flops = training_flops(Recipe(model="resnet50", image_size=224), 1000)
    assert flops == pytest.approx(3 * 2 * 4.09e9, rel=0.02)


def test_the_share_of_a_peak() -> None:
    assert utilisation(1000.0, 2.4e10, 312e12, 1) == pytest.approx(0.0769, rel=1e-2)
    assert utilisation(1000.0, 2.4e10, 312e12, 4) == pytest.approx(0.0192, rel=1e-2)
    assert utilisation(1000.0, None, 312e12, 1) is None
    assert utilisation(1000.0, 2.4e10, None, 1) is None


def test_a_processor_has_no_known_peak() -> None:
    assert peak_flops("", 0, "fp32") is None
    assert row(figures=FIGURES).mfu is None


def test_the_peak_of_a_gpu_is_that_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    def gpu_named(name: str, memory_gib: float) -> SimpleNamespace:
        if name != "A100":
            raise BadRequest("nothing is known of it")
        assert memory_gib == 40
        return SimpleNamespace(peak={"bf16": 312.0, "tf32": 0.0}.__getitem__)

    monkeypatch.setitem(sys.modules, KNOWN.rpartition(".")[0], SimpleNamespace())
    monkeypatch.setitem(sys.modules, KNOWN, SimpleNamespace(gpu_named=gpu_named))
    assert peak_flops("A100", 40 << 30, "bf16") == 312e12
    assert peak_flops("A100", 40 << 30, "tf32") is None
    assert peak_flops("another", 1, "bf16") is None
    figures = replace(FIGURES, peak_flops=312e12)
    assert row(figures=figures).mfu == pytest.approx(102 * 1.1e10 / 312e12)
