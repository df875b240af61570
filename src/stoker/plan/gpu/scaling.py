"""How much of the throughput of one GPU each of several GPUs keeps.

Invariant: a constant for each precision and link from published rows, with its range. A ring model
with overlap was tried and is worse: it says 0.99 where rows in 16 bits say 0.87.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any


def efficiency(gpus: int, precision: str) -> tuple[float, float, float]:
    """The lowest, middle and highest share of `gpus` times one GPU's throughput that `gpus` GPUs
    reach; 90 % of the published rows lie between. 1 for one GPU."""
    if gpus == 1:
        return (1.0, 1.0, 1.0)
    kind = "32 bits" if precision in ("fp32", "tf32") else "16 bits"
    low, middle, high = scaling_table()[kind]["efficiency"]
    return float(low), float(middle), float(high)


def contradicts(gpus: int, one: float, all_of_them: float) -> bool:
    """Whether throughputs of one and of several GPUs contradict each other: several GPUs are faster
    than as many single ones."""
    return all_of_them / (one * gpus) > float(scaling_table()["most"]["efficiency"])


@cache
def scaling_table() -> dict[str, Any]:
    text = files("stoker.plan.gpu").joinpath("tables", "scaling.toml").read_text()
    return tomllib.loads(text)
