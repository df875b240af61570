"""Every spelling of a GPU leads to one key; every figure has a source."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from golden import check_golden
from stoker.plan.gpu.known import UnknownGpu, gpu_named, gpus, plain, spellings

MACHINES = Path(__file__).parents[5] / "shared" / "data" / "machines.csv"
WITHOUT = {"M60", "M4000", "P4000", "PRO-6000-MIG-24GB", "PRO-6000-MIG-48GB"}
"""GPUs of providers of which nothing is known."""


@pytest.mark.parametrize(
    ("name", "memory", "key"),
    [
        ("A100", None, "A100-40GB"),
        ("A100", 80, "A100-80GB"),
        ("A100-80GB-SXM", 80, "A100-80GB"),
        ("NVIDIA A100-SXM4-80GB", None, "A100-80GB"),
        ("Tesla V100-SXM2-16GB", None, "V100-16GB"),
        ("V100", 32, "V100-32GB"),
        ("NVIDIA GeForce RTX 3090", None, "RTX3090"),
        ("A10G", 22, "A10G"),
        ("RTX6000", 24, "Quadro-RTX6000"),
        ("RTX6000", 96, "RTXPRO6000"),
        ("RTX6000-Ada", 48, "RTX6000-Ada"),
        ("RTX PRO Server 6000", 96, "RTXPRO6000"),
        ("NVIDIA H100 80GB HBM3", None, "H100"),
        ("NVIDIA L4", 24, "L4"),
        ("Quadro P6000", None, "P6000"),
    ],
)
def test_spellings(name: str, memory: float | None, key: str) -> None:
    assert gpu_named(name, memory).key == key


def test_a_name_that_is_not_in_the_table_is_unknown() -> None:
    with pytest.raises(UnknownGpu, match="stoker bench train"):
        gpu_named("Voodoo 2")


def test_a_share_of_a_gpu_is_no_gpu() -> None:
    with pytest.raises(UnknownGpu, match="share"):
        gpu_named("L4", 3)


def test_every_gpu_has_a_source_and_sensible_figures() -> None:
    for gpu in gpus().values():
        assert ("compared 20" in gpu.source) or ("not compared" in gpu.source), gpu.key
        assert gpu.fp16 >= gpu.tf32 >= 0
        assert gpu.fp16 >= gpu.fp32 > 0
        assert 0 < gpu.memory_bytes < gpu.memory_gib * 2**30
        assert 200 <= gpu.bandwidth <= 10_000


def test_no_two_gpus_share_a_spelling() -> None:
    names = [plain(name) for key, gpu in gpus().items() for name in (key, *gpu.names)]
    assert len(set(names)) == len(spellings())
    for key in gpus():
        assert spellings()[plain(key)] == key


@pytest.mark.skipif(not MACHINES.is_file(), reason="needs ../shared/data/machines.csv")
def test_every_machine_of_the_table_is_known_or_listed() -> None:
    unknown = set()
    with MACHINES.open(newline="") as file:
        for row in csv.DictReader(file):
            memory = float(row["gpu_memory_gib"]) if row["gpu_memory_gib"] else None
            try:
                gpu_named(row["gpu"], memory)
            except UnknownGpu:
                unknown.add(row["gpu"])
    assert unknown - {"L4"} == WITHOUT


def test_golden_sentences() -> None:
    lines = []
    for name, memory in (("Voodoo 2", None), ("L4", 3.0)):
        with pytest.raises(UnknownGpu) as refusal:
            gpu_named(name, memory)
        lines.append(str(refusal.value))
    check_golden("plan_gpu_known", lines)
