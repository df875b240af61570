"""The largest picture that is allowed, in every mode: memory a worker needs for it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from hostile_other import png_of_zeros

WIDTH, HEIGHT = 10_000, 9_999
PEAK_MIB = 1024
MEASURE = """
import sys
from pathlib import Path
from stoker.data.images.decode_any import Rejected, inspect
try:
    inspect(sys.stdin.buffer.read())
except Rejected as why:
    print(f"rejected: {why}", file=sys.stderr)
status = Path("/proc/self/status").read_text()
print(int(status.split("VmHWM:")[1].split()[0]) >> 10)
"""
# Depth and colour type of a PNG whose rows are all zeros: a few hundred kilobytes at most.
KINDS: dict[str, Callable[[], bytes]] = {
    "one bit": lambda: png_of_zeros(WIDTH, HEIGHT, 1, 0),
    "grey of 16 bits": lambda: png_of_zeros(WIDTH, HEIGHT, 16, 0),
    "colour": lambda: png_of_zeros(WIDTH, HEIGHT, 8, 2),
    "colour with transparency": lambda: png_of_zeros(WIDTH, HEIGHT, 8, 6),
}


@pytest.mark.parametrize("kind", KINDS)
def test_one_picture_never_takes_a_gigabyte(kind: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEASURE], input=KINDS[kind](), capture_output=True, timeout=300
    )
    assert int(done.stdout) < PEAK_MIB, done.stderr.decode()
