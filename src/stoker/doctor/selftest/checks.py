"""The table of all checks, in the order in which they run, and the selftest as a whole."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from stoker.doctor.selftest import (
    device_input,
    lost_rank,
    machine,
    repeat,
    saving,
    throughput,
    trouble,
)
from stoker.doctor.selftest.loop_ratio import MIXED, measure_ratio
from stoker.doctor.selftest.rows import (
    ON_CPU,
    ON_GPU,
    QUICK,
    Check,
    Row,
    Setup,
    chosen,
    rows,
)
from stoker.train.process_group import Ranks

LARGE, SMALL = ("resnet50", 224, 256), ("resnet18", 160, 1024)
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {"amp": "bf16"},
    "fp16": {"amp": "fp16"},
    "compiled": {"amp": "bf16", "compile": True},
    "mixed": {"amp": "bf16", **MIXED},
}


def loop_checks() -> Iterator[Check]:
    """Our loop against a bare one. A CPU runs the small model's, in 32 bits."""
    for size, (model, image_size, batch) in (("large", LARGE), ("small", SMALL)):
        for variant, keys in VARIANTS.items():
            measure = partial(
                measure_ratio, model=model, image_size=image_size, batch=batch, **keys
            )
            needs_gpu = size == "large" or variant == "fp16"
            yield Check(f"loop-{size}-{variant}", measure, gpus=int(needs_gpu))


CHECKS = (
    Check("machine", machine.measure_machine),
    Check("copies", machine.measure_copies, gpus=1),
    *loop_checks(),
    Check("syncs", device_input.measure_syncs, gpus=1),
    Check("input", device_input.measure_hashes),
    Check("feeding", throughput.measure_feeding),
    Check("launches", throughput.measure_launches),
    Check("evaluation", throughput.measure_evaluation),
    Check("save", saving.measure_saving),
    Check("overflow", trouble.measure_overflow),
    Check("nan", trouble.measure_nan),
    *(Check(name, measure) for name, measure in trouble.MEMORY_PLACES.items()),
    Check("repeat", repeat.measure_repeat),
    Check("repeat-kill", repeat.measure_kill),
    Check("lost-killed", lost_rank.measure_killed),
    Check("lost-stopped", lost_rank.measure_stopped),
)


@dataclass(frozen=True)
class SelftestOptions:
    minutes: float = 10.0
    quick: bool = False
    only: Sequence[str] = ()
    """Names of checks; empty: all."""


def selftest(options: SelftestOptions) -> Iterator[Row]:
    """The rows of the checks that are asked for, as they are known. Raises BadRequest for a name of
    none. Everything that is made is in a folder that is removed, however this ends."""
    checks = chosen(CHECKS, options.only)
    ranks = Ranks.join()
    gpus = torch.cuda.device_count() if ranks.device.type == "cuda" else 0
    sizes = QUICK if options.quick else ON_GPU if gpus else ON_CPU
    ends_at = time.monotonic() + 60 * options.minutes
    with tempfile.TemporaryDirectory(prefix="stoker-selftest-") as folder:
        yield from rows(checks, Setup(ranks, Path(folder), sizes, ends_at, options.quick, gpus))
