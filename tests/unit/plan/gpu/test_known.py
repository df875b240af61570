"""What is known of each GPU has a source, and every spelling leads to one GPU."""

from __future__ import annotations

import pytest

from stoker.plan.gpu.known import UnknownGpu, gpu_named, gpus


def test_every_figure_has_a_source_and_a_sane_size() -> None:
    for gpu in gpus().values():
        assert gpu.source
        assert 4 <= gpu.memory_gib <= 300
        assert 50 <= gpu.bandwidth <= 10_000
        assert 0 < gpu.fp32 <= gpu.peak("bf16") * 2


@pytest.mark.parametrize(
    ("name", "memory_gib", "key"),
    [
        ("NVIDIA A100-SXM4-80GB", None, "A100-80GB"),
        ("A100", 40, "A100-40GB"),
        ("NVIDIA GeForce RTX 3090", 24, "RTX3090"),
        ("Tesla T4", 16, "T4"),
    ],
)
def test_a_spelling_leads_to_its_gpu(name: str, memory_gib: float | None, key: str) -> None:
    assert gpu_named(name, memory_gib).key == key


def test_an_unknown_gpu_is_refused_by_its_name() -> None:
    with pytest.raises(UnknownGpu, match="XYZ-9000"):
        gpu_named("XYZ-9000")
