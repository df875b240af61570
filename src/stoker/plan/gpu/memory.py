"""Memory of training on a GPU for any batch, from one counted pass.

Invariants: the weights, gradients and momentum of SGD stay; each image adds what the counted pass
keeps for it at its peak. The allowances for the allocator, the CUDA context and the libraries are
those of `train/trials/device_memory.py`: none was fitted to the rows that this is checked against.
"""

from __future__ import annotations

from dataclasses import dataclass

from stoker.plan.gpu.operations import OperationCounts
from stoker.train.trials.device_memory import (
    ALLOCATOR_SHARE,
    CONTEXT_BYTES,
    LIBRARY_BYTES,
    NCCL_BYTES,
)
from stoker.train.trials.memory import FLOAT_BYTES


@dataclass(frozen=True)
class Framework:
    """What the software keeps of a pass."""

    fused_attention: bool = False
    """Attention keeps no matrix of weights, as PyTorch's fused kernels do; rows before 2023 do."""
    in_place_activations: bool = True
    """Activations write over their input, as timm's models do in PyTorch and MXNet's do not."""


PYTORCH = Framework()
MXNET = Framework(in_place_activations=False)


def parts(counts: OperationCounts, precision: str, framework: Framework) -> tuple[float, float]:
    """Bytes that stay, and bytes that each image adds."""
    one = counts.in_precision(precision)
    each = one.image_bytes
    if framework.fused_attention:
        each -= one.attention_bytes
    if not framework.in_place_activations:
        each += one.in_place_bytes
    stays = one.fixed_bytes + FLOAT_BYTES * counts.parameters
    share = 1 + ALLOCATOR_SHARE
    return share * stays + CONTEXT_BYTES + LIBRARY_BYTES, share * each


def memory_bytes(
    counts: OperationCounts,
    batch: int,
    precision: str,
    *,
    gpus: int = 1,
    framework: Framework = PYTORCH,
) -> int:
    """Bytes that each of `gpus` GPUs needs to train with `batch` images at once."""
    stays, each = parts(counts, precision, framework)
    return int(stays + batch * each + (NCCL_BYTES if gpus > 1 else 0))


def largest_batch(
    counts: OperationCounts,
    gpu_memory_bytes: int,
    precision: str,
    *,
    gpus: int = 1,
    framework: Framework = PYTORCH,
) -> int:
    """The most images at once that fit into the memory of a GPU; 0 where not one does."""
    stays, each = parts(counts, precision, framework)
    free = gpu_memory_bytes - stays - (NCCL_BYTES if gpus > 1 else 0)
    return max(int(free / each), 0)
