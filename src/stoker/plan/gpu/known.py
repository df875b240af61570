"""What is known of each GPU: memory, bandwidth and peak arithmetic.

Invariants: every spelling of a GPU (a provider's, the driver's, a published table's) leads to one
key. Every figure has a source: the page with which it was compared, or that it was recalled. A name
that the table does not have raises UnknownGpu.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from stoker.errors import BadRequest
from stoker.text import shown

USABLE = 0.97
"""Share of a card's memory that a process can have: the driver and ECC keep the rest."""
SHARE = 0.7
"""Less memory than this part of a card's means that a machine has a share of the card."""


class UnknownGpu(BadRequest):
    """There is no basis for a forecast on this GPU."""


@dataclass(frozen=True, kw_only=True)
class KnownGpu:
    """The figures of one GPU; peaks in TFLOPS without sparsity, bandwidth in 10^9 bytes/s."""

    key: str
    names: tuple[str, ...]
    memory_gib: float
    bandwidth: float
    fp16: float
    """With 32-bit accumulation, as training computes; bf16 is as fast where the GPU has it."""
    tf32: float
    fp32: float
    capability: str
    generation: str
    source: str
    """The pages that the figures were compared with; "recalled" where there are none."""

    @property
    def memory_bytes(self) -> int:
        """Bytes that a process can have."""
        return int(USABLE * self.memory_gib * 2**30)

    def peak(self, precision: str) -> float:
        """TFLOPS of products in `fp32`, `tf32` or a 16-bit precision; a GPU without tf32 computes
        in fp32."""
        if precision == "fp32":
            return self.fp32
        if precision == "tf32":
            return self.tf32 or self.fp32
        return self.fp16


@cache
def gpus() -> dict[str, KnownGpu]:
    """All GPUs of the table by their keys."""
    text = files("stoker.plan.gpu").joinpath("tables", "gpus.toml").read_text()
    return {
        key: KnownGpu(key=key, names=tuple(entry.pop("names")), **entry)
        for key, entry in tomllib.loads(text).items()
    }


def plain(name: str) -> str:
    """A name without its maker, its brand, spaces, dashes and capitals."""
    return re.sub(r"nvidia|tesla|geforce|quadro(?=p)|[^a-z0-9]", "", name.lower())


@cache
def spellings() -> dict[str, str]:
    """The key of each plain spelling."""
    return {plain(name): key for key, gpu in gpus().items() for name in (key, *gpu.names)}


def gpu_named(name: str, memory_gib: float | None = None) -> KnownGpu:
    """The GPU of a name in any spelling; where one name stands for several sizes, the memory
    decides. Raises UnknownGpu for a name that is not in the table."""
    spelling = plain(name)
    if spelling == "rtx6000":  # two generations share this name
        spelling = "rtxpro6000" if (memory_gib or 24) > 48 else "quadrortx6000"
    key = spellings().get(spelling)
    if key is None:
        known = ", ".join(sorted(gpus()))
        raise UnknownGpu(
            f"nothing is known of the GPU '{shown(name)}': name one of {known}, or measure on it "
            "with stoker bench train and pass its result file"
        )
    if memory_gib and memory_gib < SHARE * gpus()[key].memory_gib:
        raise UnknownGpu(
            f"{memory_gib:g} GiB of a {key}, which has {gpus()[key].memory_gib:g}, are a share of "
            "one GPU: nothing is known of its speed; choose a machine with whole GPUs"
        )
    base, _, size = key.partition("-")
    if memory_gib and size.endswith("GB") and abs(gpus()[key].memory_gib - memory_gib) > 8:
        others = [gpu for gpu in gpus().values() if gpu.key.startswith(f"{base}-")]
        return min(others, key=lambda gpu: abs(gpu.memory_gib - memory_gib))
    return gpus()[key]
