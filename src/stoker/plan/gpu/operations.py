"""What a training step computes, moves and keeps: counted on shapes, without a GPU or weights.

Invariants: nothing is computed and nothing is allocated. The real forward and backward pass run on
the meta device, and every kernel is recorded with its multiply-adds and the bytes that it reads and
writes. The batch of the pass is a prime number: what is a multiple of it grows with the batch,
everything else is counted once a batch. Autocast's casts are kernels too (`casts.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from stoker.errors import BadRequest
from stoker.plan.gpu.casts import MetaAutocast
from stoker.recipe.recipe import Recipe
from stoker.train.trials.device_memory import (
    ACTIVATIONS,
    GRADIENTS,
    INPUT,
    TEMPORARIES,
    WEIGHTS,
    StorageMeter,
    fill_with_fakes,
    gradients_counted,
)
from stoker.train.trials.memory import model_of_shapes

BATCH = 61
"""Images of the counted pass: a prime number that divides no usual width of a layer."""

VIEWS = {
    *("view", "_unsafe_view", "t", "transpose", "permute", "expand", "detach", "detach_", "alias"),
    *("as_strided", "as_strided_", "squeeze", "squeeze_", "unsqueeze", "unsqueeze_", "select"),
    *("slice", "split", "split_with_sizes", "chunk", "unbind", "empty", "new_empty", "empty_like"),
    *(
        "empty_strided",
        "new_empty_strided",
        "unfold",
        "diagonal",
        "lift_fresh",
        "device",
        "view_as",
    ),
    *("resize_", "set_", "is_same_size", "_reshape_alias", "reshape", "sym_size", "narrow"),
}
"""Operations that start no kernel."""
KINDS = {
    "batch_norm": {
        *("native_batch_norm", "cudnn_batch_norm", "_native_batch_norm_legit"),
        *("_native_batch_norm_legit_functional", "_batch_norm_with_update", "batch_norm_backward"),
        *("native_batch_norm_backward", "cudnn_batch_norm_backward"),
    },
    "layer_norm": {
        *("native_layer_norm", "native_layer_norm_backward"),
        *("native_group_norm", "native_group_norm_backward"),
    },
    "softmax": {"_softmax", "_softmax_backward_data"},
    "cast": {"_to_copy"},
    "copy": {
        *("clone", "copy_", "cat", "stack", "roll", "constant_pad_nd", "index", "index_put"),
        *("index_put_", "index_select", "gather", "repeat", "im2col", "col2im", "flip"),
        *("slice_backward", "select_backward", "pixel_shuffle", "new_zeros", "zeros_like", "fill_"),
        *("zero_", "zeros", "select_scatter", "slice_scatter", "embedding"),
        *("reflection_pad2d", "reflection_pad2d_backward", "unfold_backward", "index_add_"),
    },
    "pool": {
        *("max_pool2d_with_indices", "max_pool2d_with_indices_backward", "avg_pool2d"),
        *("avg_pool2d_backward", "_adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward"),
        *("upsample_nearest2d", "upsample_nearest2d_backward", "upsample_bilinear2d"),
        *("upsample_bilinear2d_backward", "adaptive_max_pool2d", "adaptive_max_pool2d_backward"),
        *("upsample_bicubic2d", "upsample_bicubic2d_backward"),
    },
    "reduction": {"sum", "mean", "var_mean", "var", "std", "amax", "amin", "max", "norm"},
    "activation": {
        *("relu", "relu_", "threshold_backward", "silu", "silu_", "silu_backward", "gelu"),
        *("gelu_backward", "sigmoid", "sigmoid_", "sigmoid_backward", "hardtanh", "hardtanh_"),
        *("hardtanh_backward", "hardswish", "hardswish_", "hardswish_backward", "hardsigmoid"),
        *("hardsigmoid_", "hardsigmoid_backward", "leaky_relu", "leaky_relu_", "elu", "elu_"),
        *("leaky_relu_backward", "elu_backward", "tanh", "tanh_", "tanh_backward", "mish"),
        *("mish_", "mish_backward", "softplus", "softplus_backward", "_prelu_kernel"),
        *("_prelu_kernel_backward", "clamp", "clamp_"),
    },
}
KIND_OF = {name: kind for kind, names in KINDS.items() for name in names}


class Operation(NamedTuple):
    """One kernel, a matrix product or a pass over memory: figures for one image."""

    kind: str
    """dense, pointwise, depthwise, grouped, linear, attention, or a name of KINDS, or other."""
    backward: bool
    macs: float
    read: float
    """Bytes."""
    written: float
    """Bytes."""
    fixed: int
    """Bytes read and written once a batch, such as weights."""
    inputs: int = 0
    """Channels of the input in one group, or the length of a row that is multiplied."""
    outputs: int = 0
    """Channels of the output in one group, or columns of a product."""
    groups: int = 1
    kernel: int = 1
    """Elements of a convolution's window."""
    positions: float = 0.0
    """Pixels of the output, or rows of a product."""


@dataclass(frozen=True)
class PassCounts:
    """A forward and backward pass in one precision."""

    operations: tuple[tuple[Operation, int], ...]
    """Each operation with how often it occurs."""
    image_bytes: float
    """Bytes that each image of a batch adds to the peak of memory."""
    attention_bytes: float
    """The part of them that only explicit attention keeps, and a fused kernel does not."""
    fixed_bytes: int
    """Bytes at the peak of memory whatever the batch, without the optimiser's state."""
    in_place_bytes: float = 0.0
    """Bytes of each image that activations save by writing over their input."""


@dataclass(frozen=True)
class OperationCounts:
    """What a model does with an image in training, in 16 bits with autocast and in 32 bits."""

    model: str
    image_size: int
    parameters: int
    tensors: int
    """Parameter tensors: an optimiser works on each."""
    amp: PassCounts
    fp32: PassCounts

    def in_precision(self, precision: str) -> PassCounts:
        """The pass in `fp32`, `tf32` or a 16-bit precision."""
        return self.fp32 if precision in ("fp32", "tf32") else self.amp

    @property
    def gmacs(self) -> float:
        """Multiply-adds of a forward pass of one image, in 10^9."""
        rows = self.fp32.operations
        return sum(op.macs * times for op, times in rows if not op.backward) / 1e9


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records every kernel of the passes inside its block."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: Counter[Operation] = Counter()
        self.backward = False
        self.in_place_bytes = 0.0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name not in VIEWS:
            inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
            outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
            read, fixed_read = moved_bytes(inputs)
            written, fixed_written = moved_bytes(outputs)
            fixed = fixed_read + fixed_written
            operation = Operation("other", self.backward, 0.0, read, written, fixed)
            self.operations[classified(operation, name, args, result)] += 1
            if KIND_OF.get(name) == "activation" and name.endswith("_"):
                self.in_place_bytes += written
        return result


def moved_bytes(tensors: list[Tensor]) -> tuple[float, int]:
    """Bytes of some tensors: for each image, and once a batch."""
    each, fixed = 0.0, 0
    for tensor in tensors:
        # An expanded tensor repeats what its storage has once.
        size = min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())
        if size % BATCH:
            fixed += size
        else:
            each += size / BATCH
    return each, fixed


def classified(operation: Operation, name: str, args: Any, result: Any) -> Operation:
    """The operation with its kind, its multiply-adds and its shape."""
    if name == "convolution":
        return convolution(operation, args[1], result, args[8], 1)
    if name == "convolution_backward":
        return convolution(operation, args[2], args[0], args[9], sum(args[10][:2]))
    if name in ("mm", "addmm", "bmm", "baddbmm", "dot", "mv", "addmv"):
        left, right = args[-2:] if name in ("mm", "bmm") else args[1:3]
        return product(operation, left, right, name)
    return operation._replace(kind=KIND_OF.get(name, "other"))


def convolution(
    operation: Operation, weight: Tensor, output: Tensor, groups: int, passes: int
) -> Operation:
    """A convolution, or the `passes` products of its backward pass."""
    inputs, kernel = weight.shape[1], weight[0, 0].numel()
    if groups > 1:
        kind = "depthwise" if inputs == 1 else "grouped"
    else:
        kind = "dense" if kernel > 1 else "pointwise"
    return operation._replace(
        kind=kind,
        macs=output.numel() * inputs * kernel * passes / BATCH,
        inputs=inputs,
        outputs=weight.shape[0] // groups,
        groups=groups,
        kernel=kernel,
        positions=output[0, 0].numel(),
    )


def product(operation: Operation, left: Tensor, right: Tensor, name: str) -> Operation:
    """A product of matrices: one for a layer, or many for attention."""
    if right.dim() < 2:
        return operation
    rows, inner, columns = left.shape[-2], left.shape[-1], right.shape[-1]
    matrices = left.shape[0] if left.dim() == 3 else 1
    return operation._replace(
        kind="attention" if name in ("bmm", "baddbmm") else "linear",
        macs=matrices * rows * inner * columns / BATCH,
        inputs=inner,
        outputs=columns,
        groups=max(matrices // BATCH, 1),
        positions=rows / BATCH if matrices == 1 else rows,
    )


class BatchMeter(StorageMeter):  # type: ignore[no-untyped-call]
    """Counts what does not grow with the batch as weights, such as their 16-bit copies."""

    def add(self, tensor: Tensor, kind: str = TEMPORARIES) -> Tensor:
        grows = tensor.untyped_storage().nbytes() % BATCH == 0
        if not grows and kind in (TEMPORARIES, ACTIVATIONS):
            kind = WEIGHTS
        return super().add(tensor, kind)


def count_operations(model_name: str, image_size: int, classes: int) -> OperationCounts:
    """The counts of a model that Stoker can build. Raises BadRequest for a name or an image size
    that it cannot, and for a model whose passes depend on the numbers in the images."""
    recipe = Recipe(model=model_name, image_size=image_size)
    model = model_of_shapes(recipe, classes)
    try:
        return counts_of(model, model_name, image_size)
    except BadRequest:
        raise
    except Exception as error:  # models raise errors of many kinds
        raise BadRequest(
            f"the operations of {model_name} at {image_size} px cannot be counted: "
            f"{str(error).splitlines()[0][:200]}; choose another --image-size or --model"
        ) from error


def counts_of(model: nn.Module, name: str, image_size: int) -> OperationCounts:
    """The counts of a model whose tensors are on the meta device; it is changed."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    return OperationCounts(
        model=name,
        image_size=image_size,
        parameters=sum(weight.numel() for weight in weights),
        tensors=len(weights),
        amp=count_pass(model, image_size, True),
        fp32=count_pass(model, image_size, False),
    )


def count_pass(
    model: nn.Module,
    image_size: int,
    narrow: bool,
    layout: torch.memory_format = torch.channels_last,
) -> PassCounts:
    """The counts of a forward and backward pass with autocast (`narrow`) or in 32 bits."""
    recorder, meter, casts = Recorder(), BatchMeter(), MetaAutocast(narrow)
    with torch.device("meta"):
        fill_with_fakes(model, layout)
        model.train()
        images = torch.empty(BATCH, 3, image_size, image_size).contiguous(memory_format=layout)
        labels = torch.empty(BATCH, dtype=torch.int64)
        for weight in (*model.parameters(), *model.buffers()):
            meter.add(weight, WEIGHTS)
        meter.add(images, INPUT)
        keep = partial(meter.add, kind=ACTIVATIONS)
        with (
            meter,
            recorder,
            gradients_counted(model, meter),
            torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        ):
            with casts:
                loss = functional.cross_entropy(model(images), labels)
            with marked_backward(recorder):
                loss.backward()  # type: ignore[no-untyped-call]
        model.zero_grad()
    fixed = meter.peak[WEIGHTS] + meter.peak[GRADIENTS]
    grows = sum(meter.peak.values()) - fixed
    return PassCounts(
        operations=tuple(recorder.operations.items()),
        image_bytes=grows / BATCH,
        attention_bytes=casts.attention_bytes / BATCH,
        fixed_bytes=fixed,
        in_place_bytes=recorder.in_place_bytes,
    )


@contextmanager
def marked_backward(recorder: Recorder) -> Iterator[None]:
    """Record the kernels inside this block as those of the backward pass."""
    recorder.backward = True
    try:
        yield
    finally:
        recorder.backward = False
