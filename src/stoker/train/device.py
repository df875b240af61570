"""What depends on the device: arithmetic, memory layout, streams, and numbers that are read late.

Invariants: the host waits for the device only where it reads numbers that have not arrived. Then it
looks at an event again and again, so that signals are handled. Only `Streams` uses CUDA's streams,
events and pinned memory for copies; tests replace it with a recording fake.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from stoker.errors import BadRequest
from stoker.host.gpu import wait_for
from stoker.recipe.recipe import Recipe
from stoker.survive.checkpoint import PlainCopy, SnapshotCopy
from stoker.train.model.build import Normalise, build_model

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
DETERMINISTIC_WORKSPACES = (":4096:8", ":16:8")
"""With these values of the variable cuBLAS sums in the same order each time."""


def fix_workspace(recipe: Recipe) -> None:
    """Let cuBLAS be deterministic if the recipe asks for that: before it starts, which is when it
    reads the variable. A value that the user has set stays."""
    if recipe.deterministic:
        os.environ.setdefault(WORKSPACE, DETERMINISTIC_WORKSPACES[0])


def set_arithmetic(recipe: Recipe) -> None:
    """Set the precision and the kernels of this process. Raises BadRequest for bf16 on a GPU that
    does not have it: PyTorch would emulate it, slower than fp32."""
    if recipe.amp == "bf16" and torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability()
        if torch.version.cuda and major < 8:
            raise BadRequest(
                f"--amp bf16 needs a GPU of compute capability 8.0 or newer, and "
                f"{torch.cuda.get_device_name()} has {major}.{minor}: use --amp fp16"
            )
    fix_workspace(recipe)
    tf32 = recipe.amp == "tf32"
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = not recipe.deterministic
    torch.use_deterministic_algorithms(recipe.deterministic, warn_only=True)


def seed_device(device: torch.device, seed: int, *, python: bool = False) -> None:
    """Seed the random generators that a step on this device may use; with `python` also those of
    Python and numpy, which no model of ours or timm's uses."""
    # torch.manual_seed records the caller's stack for every device type, present or not: slow.
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index].manual_seed(seed)
    if python:
        random.seed(seed)
        np.random.seed(seed % 2**32)


def memory_format(recipe: Recipe) -> torch.memory_format:
    """The memory layout of weights and images."""
    return torch.channels_last if recipe.channels_last else torch.contiguous_format


def build_on_device(
    recipe: Recipe, classes: int, device: torch.device
) -> tuple[nn.Module, Normalise]:
    """The recipe's model on the device, in the recipe's memory layout, and the input it expects."""
    model, normalise = build_model(recipe, classes)
    return model.to(device=device, memory_format=memory_format(recipe)), normalise  # type: ignore[call-overload]


COPY, COMPUTE = "copy", "compute"
"""The streams: batches are copied in one, and the model computes in the other."""


class Streams(Protocol):
    """Memory, copies and events of a device with streams. Work in one stream happens in order; work
    in two happens in any order, except where one waits for an event of the other."""

    def host_memory(self, size: int) -> Tensor:
        """Bytes on the host that the device can copy from or to without the host's help."""
        ...

    def device_memory(self, size: int) -> Tensor:
        """Bytes on the device. Earlier work of COMPUTE may still use them."""
        ...

    def copy(self, target: Tensor, source: Tensor) -> None:
        """Copy between host and device, in COPY, some time later."""
        ...

    def mark(self, stream: str) -> Any:
        """An event that passes when all work so far in a stream is done."""
        ...

    def wait(self, stream: str, event: Any) -> None:
        """Let later work in a stream begin after the event. The host does not wait."""
        ...

    def passed(self, event: Any) -> bool:
        """Whether an event has passed."""
        ...

    def wait_on_host(self, event: Any) -> None:
        """Return when the event has passed."""
        ...


class CudaStreams:
    """The streams of a GPU: the current one computes, a second one copies."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._compute = torch.cuda.current_stream(device)
        self._copy = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def host_memory(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def device_memory(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.uint8, device=self._device)

    def copy(self, target: Tensor, source: Tensor) -> None:
        with torch.cuda.stream(self._copy):
            target.copy_(source, non_blocking=True)

    def mark(self, stream: str) -> torch.cuda.Event:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self._of(stream))
        return event

    def wait(self, stream: str, event: torch.cuda.Event) -> None:
        self._of(stream).wait_event(event)

    def passed(self, event: torch.cuda.Event) -> bool:
        return bool(event.query())  # type: ignore[no-untyped-call]

    def wait_on_host(self, event: torch.cuda.Event) -> None:
        wait_for(event)

    def _of(self, stream: str) -> torch.cuda.Stream:
        return self._copy if stream == COPY else self._compute


class LateNumbers:
    """A few numbers of a device, copied to the host without waiting for them."""

    def __init__(self, numbers: Tensor) -> None:
        self._event: Any = None
        self._numbers = numbers.detach()
        if numbers.is_cuda:
            self._numbers = self._numbers.to("cpu", non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()

    def passed(self) -> bool:
        """Whether they can be read without waiting."""
        return self._event is None or bool(self._event.query())

    def numbers(self) -> Tensor:
        """The numbers, when they have arrived."""
        if self._event is not None:
            wait_for(self._event)
        return self._numbers


class StateCopies:
    """Copies the state of training to the host for a checkpoint, in a stream of its own.

    The host waits for nothing: the copies begin when the steps so far are done, the next step
    begins when the copies are done, and the thread that saves waits before it reads them.
    """

    def __init__(self, streams: Streams, device_type: str = "cuda") -> None:
        self._streams, self._device_type = streams, device_type
        self._begun = False

    def __call__(self, tensor: Tensor) -> Tensor:
        tensor = tensor.detach()
        if tensor.device.type != self._device_type or not tensor.nbytes:
            return tensor.to("cpu", copy=True)  # a counter on the host, or nothing
        if not self._begun:
            self._streams.wait(COPY, self._streams.mark(COMPUTE))
            self._begun = True
        memory = self._streams.host_memory(tensor.nbytes)
        # In the layout of the device: one copy of bytes, without a kernel that arranges them.
        copy = memory.view(tensor.dtype).as_strided(tensor.shape, tensor.stride())
        self._streams.copy(copy, tensor)
        return copy

    def end(self) -> Callable[[], None]:
        copied, self._begun = self._streams.mark(COPY), False
        self._streams.wait(COMPUTE, copied)
        return lambda: self._streams.wait_on_host(copied)


def state_copy(device: torch.device) -> SnapshotCopy:
    """How the state of training on this device is copied for a checkpoint."""
    return StateCopies(CudaStreams(device)) if device.type == "cuda" else PlainCopy()
