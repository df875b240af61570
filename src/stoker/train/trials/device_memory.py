"""Peak memory of training, predicted without a GPU, a dataset or the memory itself.

Invariants: nothing is computed and nothing is allocated. The model's tensors are fake (shapes on
the meta device that behave like tensors of a CPU), and the real forward pass, backward pass and
optimiser run on them. A meter adds up the bytes of all storages that are alive, by kind, and keeps
the sums of the moment with the highest total.

`python benchmarks/memory.py` compares this with the allocations of real steps on a CPU. What only
a GPU has (context, libraries, gaps between blocks) is an allowance, given by the constants below.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from stoker.errors import BadRequest
from stoker.recipe.recipe import Recipe
from stoker.text import plural
from stoker.train.device import memory_format
from stoker.train.model.build import check_image_sizes
from stoker.train.model.optimizer_names import BUILT_IN
from stoker.train.optim import build_optimizer, tensors_of
from stoker.train.passes import AMP_TYPES, forward
from stoker.train.trials.memory import model_of_shapes

GB = 1e9
"""Decimal, for cards too: most cards sold as 16 GB let a process use 15.5 to 17 of these."""
CONTEXT_BYTES = int(0.5 * GB)
"""CUDA context with its kernels: 0.3 to 0.45 GB (pytorch issues 107667 and 109888), rounded up."""
LIBRARY_BYTES = int(0.5 * GB)
"""Workspaces of cuDNN and cuBLAS. cuDNN chooses an algorithm whose workspace fits, so this is what
it should have to choose well, not what it must have."""
NCCL_BYTES = int(0.5 * GB)
"""Buffers of NCCL (4 MiB for each channel and peer), where there are several ranks."""
ALLOCATOR_SHARE = 0.05
"""Gaps between blocks and rounding (512 bytes to 2 MiB) of PyTorch's caching allocator."""
INPUT_BUFFERS = 2
"""Batches of bytes on the GPU: one in use, one that is copied."""

WEIGHTS, GRADIENTS, OPTIMISER, AVERAGE = "weights", "gradients", "optimiser", "moving average"
INPUT, ACTIVATIONS, TEMPORARIES = "input", "activations", "temporaries"
ALLOCATOR, LIBRARIES = "allocator", "CUDA context, libraries"
KINDS = (WEIGHTS, GRADIENTS, OPTIMISER, AVERAGE, INPUT, ACTIVATIONS, TEMPORARIES)
Sums = dict[str, int]

FLOAT32_ON_CUDA = {functional.layer_norm, functional.group_norm, functional.softmax}
FLOAT32_ON_CUDA |= {torch.softmax, Tensor.softmax}
"""What autocast computes in 32 bits on CUDA but not on a CPU, as far as image models use it."""


class StorageMeter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of live storages by kind; `peak` has the sums at their highest total."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sums: Sums = dict.fromkeys(KINDS, 0)
        self.peak: Sums = dict(self.sums)
        self._live: dict[int, tuple[str, int, weakref.ref[Any]]] = {}

    def add(self, tensor: Tensor, kind: str = TEMPORARIES) -> Tensor:
        """Count a tensor's storage once. A temporary one may turn out to be of another kind."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        before = self._live.get(key)
        if before is None:
            gone = weakref.ref(storage, lambda _: self._remove(key))
            self._live[key] = (kind, storage.nbytes(), gone)
            self.sums[kind] += storage.nbytes()
        elif before[0] == TEMPORARIES != kind:
            self._live[key] = (kind, *before[1:])
            self.sums[TEMPORARIES] -= before[1]
            self.sums[kind] += before[1]
        if sum(self.sums.values()) > sum(self.peak.values()):
            self.peak = dict(self.sums)
        return tensor

    def _remove(self, key: int) -> None:
        kind, size, _ = self._live.pop(key)
        self.sums[kind] -= size

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.add(leaf)
        return result


class CudaPrecision(TorchFunctionMode):
    """Makes autocast of a CPU choose the precision that autocast of CUDA chooses."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in FLOAT32_ON_CUDA and args and args[0].is_floating_point():
            args = (args[0].float(), *args[1:])
        return func(*args, **(kwargs or {}))


class NeedsNumbers(BadRequest):
    """A model chooses its way by the numbers in its input, so shapes do not tell its memory."""


@dataclass(frozen=True)
class Peak:
    """The most memory that a rank needs at once, by kind, for so many images at once."""

    images: int
    image_size: int
    parts: Sums

    @property
    def total(self) -> int:
        return sum(self.parts.values())


@dataclass
class Prediction:
    """Predicts the memory of one of `world` ranks. With `gpu` unset: that of a CPU, whose real
    allocations can be measured. Raises BadRequest where the model does not take the images, and
    NeedsNumbers where it needs more than their shapes."""

    recipe: Recipe
    classes: int
    world: int = 1
    gpu: bool = True

    def __post_init__(self) -> None:
        recipe = self.recipe
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)
        self._model = model_of_shapes(recipe, self.classes)
        with refused_without_numbers(recipe):
            check_image_sizes(self._model, recipe, self.classes)
        with self._fake:
            fill_with_fakes(self._model, memory_format(recipe))
            self._optimizer = build_optimizer(recipe, self._model)
            self._set_gradients()
            with refused_without_numbers(recipe, by_optimizer=True):
                self._optimizer.step()  # makes the optimiser's state
        self._sums: dict[tuple[int, int, bool, bool], Sums] = {}

    def training(self, share: int, images: int, image_size: int) -> Peak:
        """The peak of a step over `share` images, of which `images` pass at once."""
        # DDP's buckets hold the gradient all the time, and so does accumulation.
        keeps_gradient = self.world > 1 or images < share
        sums = self._simulated(images, image_size, True, keeps_gradient)
        return self._peak(sums, images, image_size, share)

    def evaluation(self, images: int, image_size: int) -> Peak:
        """The peak of an evaluation. The gradient of the last step is still there."""
        sums = self._simulated(images, image_size, False, True)
        return self._peak(sums, images, image_size, images)

    def _peak(self, sums: Sums, images: int, image_size: int, share: int) -> Peak:
        parts = dict(sums)
        if self.gpu:
            parts[INPUT] += INPUT_BUFFERS * share * image_size**2 * 3
            parts[ALLOCATOR] = int(ALLOCATOR_SHARE * sum(parts.values()))
            parts[LIBRARIES] = CONTEXT_BYTES + LIBRARY_BYTES + NCCL_BYTES * (self.world > 1)
        return Peak(images, image_size, parts)

    def _simulated(self, images: int, image_size: int, trains: bool, keeps_gradient: bool) -> Sums:
        case = (images, image_size, trains, keeps_gradient)
        if case not in self._sums:
            with self._fake, CudaPrecision() if self.gpu else nullcontext():
                self._set_gradients() if keeps_gradient else self._optimizer.zero_grad()
                meter = self._meter()
                with meter, refused_without_numbers(self.recipe):
                    self._pass(meter, images, image_size, trains)
            self._sums[case] = meter.peak
        return self._sums[case]

    def _set_gradients(self) -> None:
        for weight in self._model.parameters():
            weight.grad = torch.empty_like(weight) if weight.requires_grad else None

    def _meter(self) -> StorageMeter:
        """A meter that has counted what stays in memory between steps."""
        meter = StorageMeter()
        for tensor in tensors_of(self._model):
            meter.add(tensor, WEIGHTS)
            if tensor.grad is not None:
                meter.add(tensor.grad, GRADIENTS)
        meter.sums[AVERAGE] = meter.sums[WEIGHTS] if self.recipe.ema else 0
        for state in self._optimizer.state.values():
            for value in state.values():
                if isinstance(value, Tensor):
                    meter.add(value, OPTIMISER)
        return meter

    def _pass(self, meter: StorageMeter, images: int, image_size: int, trains: bool) -> None:
        """What a step or an evaluation does with some images, as in `Step` and `Evaluator`."""
        recipe = self.recipe
        # A GPU makes the input in the precision of the recipe, mixed at once.
        precision = AMP_TYPES.get(recipe.amp, torch.float32) if self.gpu else torch.float32
        pixels = torch.empty(images, image_size, image_size, 3, dtype=precision).permute(0, 3, 1, 2)
        pixels = meter.add(pixels.contiguous(memory_format=memory_format(recipe)), INPUT)
        labels = meter.add(torch.empty(images, dtype=torch.int64), INPUT)
        self._model.train(trains)
        if not trains:
            with torch.no_grad():
                functional.cross_entropy(forward(self._model, pixels, recipe.amp), labels)
            return
        keep = partial(meter.add, kind=ACTIVATIONS)
        with (
            gradients_counted(self._model, meter),
            torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        ):
            logits = forward(self._model, pixels, recipe.amp)
            losses = functional.cross_entropy(logits, labels, reduction="none")
            losses.sum().backward()  # type: ignore[no-untyped-call]
        del logits, losses
        # A fused optimiser of a GPU changes weights in place; others need room for a while.
        if not self.gpu or self.recipe.optimizer not in BUILT_IN:
            with refused_without_numbers(recipe, by_optimizer=True):
                self._optimizer.step()


@contextmanager
def refused_without_numbers(recipe: Recipe, *, by_optimizer: bool = False) -> Iterator[None]:
    """Raise NeedsNumbers where a model, or the optimiser, chooses its way by numbers, which shapes
    do not have."""
    try:
        yield
    except (BadRequest, RuntimeError) as error:
        by_numbers = isinstance(error, DataDependentOutputException)
        if not by_numbers and "on meta tensors" not in str(error):
            raise
        if by_optimizer:
            raise NeedsNumbers(
                f"the memory of --optimizer {recipe.optimizer} cannot be predicted: its steps "
                "depend on the numbers in the gradient; predict with --optimizer adamw, which "
                "needs about as much"
            ) from error
        raise NeedsNumbers(
            f"the memory of {recipe.model} cannot be predicted: its passes depend on the numbers "
            "in the images, not on their size alone; choose another --model, or leave out --memory"
        ) from error


@contextmanager
def gradients_counted(model: nn.Module, meter: StorageMeter) -> Iterator[None]:
    """Count the gradients that backward passes inside this block make."""

    def count(weight: Tensor) -> None:
        if weight.grad is not None:
            meter.add(weight.grad, GRADIENTS)

    weights = [weight for weight in model.parameters() if weight.requires_grad]
    handles = [
        weight.register_post_accumulate_grad_hook(count)  # type: ignore[no-untyped-call]
        for weight in weights
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def fill_with_fakes(model: nn.Module, layout: torch.memory_format) -> None:
    """Replace each tensor of a model, inside a fake mode, with a fake one of its shape."""
    fakes: dict[Tensor, Tensor] = {}
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is None:
                    continue
                if tensor not in fakes:  # two modules may share a weight
                    form = layout if tensor.ndim == 4 else torch.contiguous_format
                    fake = torch.empty(tensor.shape, dtype=tensor.dtype, memory_format=form)
                    is_weight = isinstance(tensor, nn.Parameter)
                    fakes[tensor] = nn.Parameter(fake, tensor.requires_grad) if is_weight else fake
                tensors[name] = fakes[tensor]  # type: ignore[assignment]


def refuse_too_large(recipe: Recipe, classes: int, free_bytes: int) -> None:
    """Raise BadRequest for a batch that does not fit into memory, before it is tried. A model whose
    memory cannot be predicted is not refused."""
    images, size = (
        min(recipe.micro_batch or recipe.batch_size, recipe.batch_size),
        recipe.image_size,
    )
    try:
        prediction = Prediction(recipe, classes, gpu=False)
        needed = prediction.training(recipe.batch_size, max(images, 2), size).total
    except NeedsNumbers:
        return
    if needed <= free_bytes:
        return
    least = prediction.training(recipe.batch_size, 2, size).total
    each = max((needed - least) / max(images - 2, 1), 1)
    fits = 2 + max(int((free_bytes - least) / each) // 2 * 2, 0)
    raise BadRequest(
        f"{plural(images, 'image')} of {size} px at once through {recipe.model} need about "
        f"{needed / GB:,.1f} GB, and {free_bytes / GB:,.1f} GB are free: lower "
        f"--batch-size or --micro-batch to {fits:,}, or --image-size"
    )
