"""Measuring, logging and checkpointing cost our loop next to nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
FLAGS = "--model resnet9_w16 --image-size 48 --batch-size 64 --steps 80 --checkpoint-every 5"


@pytest.mark.slow
def test_our_loop_is_as_fast_as_a_bare_one() -> None:
    printed = subprocess.run(
        [sys.executable, str(BENCHMARKS / "loop.py"), *FLAGS.split()],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    ).stdout
    found = json.loads(printed)
    print(found)
    assert found["saves_kept"] >= 1
    assert found["cpu_ratio_median"] >= 0.97, found
