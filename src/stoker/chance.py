"""Random numbers without a generator.

Invariant: a random number is a hash of what it is used for (seed, epoch, sample, purpose). There is
no generator state that could be lost, shared between threads or advanced twice. The hash is
SplitMix64 in plain 64-bit integer operations: the same on every machine and numpy version.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)
_ALL_BITS, _GOLDEN_INT = 0xFFFF_FFFF_FFFF_FFFF, 0x9E3779B97F4A7C15


def mix(values: Keys) -> Keys:
    """SplitMix64's finaliser: every bit of the input reaches every bit of the output."""
    mixed = (values ^ (values >> np.uint64(30))) * _MIX1
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX2
    return mixed ^ (mixed >> np.uint64(31))


def hash_of(*parts: int | str | NDArray[Any]) -> Keys:
    """A 64-bit hash of numbers, strings and arrays of numbers (broadcast against each other)."""
    with np.errstate(over="ignore"):
        state = np.zeros(1, dtype=np.uint64)
        for part in parts:
            if isinstance(part, str):
                part = zlib.crc32(part.encode())
            if isinstance(part, int):
                part = np.array([part & 0xFFFF_FFFF_FFFF_FFFF], dtype=np.uint64)
            state = mix(state + _GOLDEN + mix(part.astype(np.uint64) + _GOLDEN))
    return state


def uniform(keys: Keys) -> NDArray[np.float64]:
    """Numbers in [0, 1) with 53 random bits, one for each key."""
    return (keys >> np.uint64(11)).astype(np.float64) * 2.0**-53


def draws(
    seed: int, samples: NDArray[Any], epochs: NDArray[Any], purpose: str, count: int = 1
) -> NDArray[np.float64]:
    """`count` numbers in [0, 1) for each sample in its epoch and one purpose, a row per sample."""
    columns = np.arange(count)[None, :]
    return uniform(hash_of(seed, epochs[:, None], samples[:, None], purpose, columns))


def permutation(size: int, *parts: int | str) -> NDArray[np.int64]:
    """A permutation of range(size) that depends only on `size` and `parts`."""
    keys = hash_of(*parts, np.arange(size, dtype=np.uint64))
    return np.argsort(keys, kind="stable").astype(np.int64)


def seed_of(*parts: int | str) -> int:
    """A seed below 2**63 for a library that has its own generator: `hash_of` without its last bit,
    in Python's integers. Each step needs one, and arrays of one number take ten times as long."""
    state = 0
    for part in parts:
        number = zlib.crc32(part.encode()) if isinstance(part, str) else part
        state = _mixed(state + _GOLDEN_INT + _mixed((number & _ALL_BITS) + _GOLDEN_INT))
    return state >> 1


def _mixed(number: int) -> int:
    """`mix` of one number."""
    number &= _ALL_BITS
    number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9 & _ALL_BITS
    number = (number ^ (number >> 27)) * 0x94D049BB133111EB & _ALL_BITS
    return number ^ (number >> 31)
