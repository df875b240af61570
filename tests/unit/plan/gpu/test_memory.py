"""Memory grows with the batch; rows that ran fit, rows that ran out of memory do not."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from stoker.plan.gpu.known import gpu_named
from stoker.plan.gpu.memory import MXNET, PYTORCH, Framework, largest_batch, memory_bytes
from stoker.plan.gpu.operations import OperationCounts, count_operations

PUBLISHED = Path(__file__).parents[5] / "shared" / "data" / "published.csv"
NAMES = {"mobilenetv2": "mobilenetv2_100"}
GIB = 2**30


@cache
def counts(model: str = "resnet18", size: int = 64) -> OperationCounts:
    return count_operations(model, size, 1000)


@given(batch=some.integers(1, 4096), more=some.integers(1, 4096))
def test_a_larger_batch_needs_more(batch: int, more: int) -> None:
    for precision in ("fp16", "fp32"):
        assert memory_bytes(counts(), batch + more, precision) > memory_bytes(
            counts(), batch, precision
        )


@given(memory=some.integers(GIB, 100 * GIB), precision=some.sampled_from(("fp16", "fp32", "tf32")))
def test_the_largest_batch_fits_and_one_more_does_not(memory: int, precision: str) -> None:
    most = largest_batch(counts(), memory, precision)
    if most:
        assert memory_bytes(counts(), most, precision) <= memory + 1
    assert memory_bytes(counts(), most + 1, precision) > memory


def test_fewer_bits_need_less_and_several_gpus_more() -> None:
    assert memory_bytes(counts(), 256, "fp16") < memory_bytes(counts(), 256, "fp32")
    assert memory_bytes(counts(), 256, "fp16", gpus=2) > memory_bytes(counts(), 256, "fp16")


def test_what_the_framework_keeps() -> None:
    apart = memory_bytes(counts(), 256, "fp32", framework=MXNET)
    assert apart > memory_bytes(counts(), 256, "fp32", framework=PYTORCH)
    vit = counts("vit_tiny_patch16_224", 224)
    fused = memory_bytes(vit, 256, "fp16", framework=Framework(fused_attention=True))
    assert fused < memory_bytes(vit, 256, "fp16")


@pytest.mark.skipif(not PUBLISHED.is_file(), reason="needs ../shared/data/published.csv")
def test_published_rows_fit_where_they_ran_and_only_there() -> None:
    wrong, kinds = [], {"ok": 0, "out-of-memory": 0}
    with PUBLISHED.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["gpu"] == "CPU" or not row["global_batch"] or not row["px"]:
                continue
            if row["outcome"] not in kinds:
                continue
            model = counts(NAMES.get(row["model"], row["model"]), int(row["px"].split("-")[-1]))
            gpus = int(row["gpus"])
            needed = memory_bytes(
                model,
                int(row["global_batch"]) // gpus,
                "fp32" if row["precision"] == "fp32" else "fp16",
                gpus=gpus,
                framework=MXNET if "mxnet" in row["source"] else PYTORCH,
            )
            kinds[row["outcome"]] += 1
            if (needed <= gpu_named(row["gpu"]).memory_bytes) != (row["outcome"] == "ok"):
                wrong.append(row)
    assert not wrong
    assert kinds == {"ok": 41, "out-of-memory": 5}
