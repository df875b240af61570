"""The same to the bit."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def same(one: Any, two: Any) -> bool:
    """Bit for bit, through all dictionaries and lists."""
    if isinstance(one, Tensor):
        return one.dtype == two.dtype and torch.equal(one, two)
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[name], two[name]) for name in one)
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(same(*pair) for pair in zip(one, two, strict=True))
    return bool(one == two)
