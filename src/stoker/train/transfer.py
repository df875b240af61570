"""The way of a batch from the decoding threads to the device.

    threads write -> block (pinned, one of a ring) -> copy stream -> slot (one of two) -> compute

Invariants: a block is handed out again only after its copy has passed. A slot is overwritten only
after the step that reads it, and read only after its copy: streams wait for each other's events,
and the host waits for none of them, unless the ring is used up. A block holds everything that a
step needs of its batch, so that a step has one copy. On a CPU nothing is copied.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stoker.data.loading.loader import BatchMemory, Loaded, PlainMemory
from stoker.train.device import COMPUTE, COPY, CudaStreams, Streams
from stoker.train.mixing import Mix, MixNumbers

Pixels = NDArray[np.uint8]

ALIGNED = 16
"""Bytes: where the numbers behind the images begin."""
NUMBERS = 8 + 4 * 8 + 4
"""Bytes of numbers for each image: its label, the edges of a box, a share."""
SLOTS = 2


@dataclass(frozen=True)
class DeviceBatch:
    """One rank's part of a batch on its device: bytes of images, labels, and how to mix them."""

    images: Tensor
    labels: Tensor
    mix: Mix | None = None
    slot: Any = None

    def part(self, begin: int, end: int) -> DeviceBatch:
        """A micro-batch."""
        mix = self.mix.part(begin, end) if self.mix else None
        return DeviceBatch(self.images[begin:end], self.labels[begin:end], mix)


class BatchTransfer(Protocol):
    """Brings batches to the device."""

    def memory(self, buffers: int) -> BatchMemory:
        """Memory for batches of one loader, of at most so many buffers."""
        ...

    def send(self, loaded: Loaded) -> DeviceBatch:
        """Bring a batch to the device; work that is launched from here on sees all of it."""
        ...

    def release(self, batch: DeviceBatch) -> None:
        """The work launched so far is the last that reads this batch."""
        ...


class InPlace:
    """On a CPU the model reads a batch where the threads wrote it."""

    def memory(self, buffers: int) -> BatchMemory:
        return PlainMemory()

    def send(self, loaded: Loaded) -> DeviceBatch:
        images, labels = torch.from_numpy(loaded.images), torch.from_numpy(loaded.labels)
        return DeviceBatch(images, labels, Mix.of(loaded.drawn))

    def release(self, batch: DeviceBatch) -> None:
        """Nothing was taken."""


class Views:
    """The parts of a block's or a slot's memory, for images of a shape."""

    def __init__(self, memory: Tensor, shape: tuple[int, ...]) -> None:
        count, self.memory = shape[0], memory
        parts = [math.prod(shape), -math.prod(shape) % ALIGNED, 8 * count, 32 * count, 4 * count]
        images, _, labels, boxes, share = torch.split(memory, parts)
        self.images = images.view(shape)
        self.labels = labels.view(torch.int64)
        self.boxes = boxes.view(torch.int64).view(count, 4)
        self.share = share.view(torch.float32)

    @staticmethod
    def size(shape: tuple[int, ...]) -> int:
        """Bytes that the parts need together."""
        return -(-math.prod(shape) // ALIGNED) * ALIGNED + NUMBERS * shape[0]


class Block(Views):
    """Host memory of one batch."""

    def __init__(self, memory: Tensor, shape: tuple[int, ...]) -> None:
        super().__init__(memory, shape)
        self.pixels: Pixels = self.images.numpy()
        self.numbers = self.labels.numpy(), self.boxes.numpy(), self.share.numpy()
        self.copied: Any = None
        """The event after its latest copy."""

    def write(self, loaded: Loaded) -> None:
        """Put the numbers of a batch behind its images."""
        labels, boxes, share = self.numbers
        labels[:] = loaded.labels
        drawn: MixNumbers | None = loaded.drawn
        if drawn is not None:
            share[:] = drawn.share
            if drawn.boxes is not None:
                boxes[:] = drawn.boxes


class Slot(Views):
    """Device memory of one batch."""

    def __init__(self, memory: Tensor, shape: tuple[int, ...], free: Any) -> None:
        super().__init__(memory, shape)
        self.free = free
        """The event after the latest work that used this memory."""


class Ring:
    """The blocks of one loader."""

    def __init__(self, streams: Streams, buffers: int) -> None:
        self._streams, self._most = streams, buffers
        self._shape: tuple[int, ...] = ()
        self._blocks: dict[int, Block] = {}
        """By the address of their images."""
        self._free: list[Block] = []
        self._made = 0

    def take(self, shape: tuple[int, ...]) -> Pixels:
        """Memory that no copy reads any more. Waits for the oldest copy if all of it is in use."""
        if shape != self._shape:
            while self._free:
                self._drop(self._free.pop())
            self._shape, self._made = shape, 0
        if not self._free or (self._made < self._most and not self._is_idle(self._free[0])):
            return self._make().pixels
        block = self._free.pop(0)
        if not self._is_idle(block):
            self._streams.wait_on_host(block.copied)
        return block.pixels

    def give_back(self, images: Pixels) -> None:
        block = self._blocks[address(images)]
        if images.shape == self._shape:
            self._free.append(block)
        else:
            self._drop(block)

    def block_of(self, images: Pixels) -> Block | None:
        """The block whose images these are."""
        return self._blocks.get(address(images))

    def _is_idle(self, block: Block) -> bool:
        return block.copied is None or self._streams.passed(block.copied)

    def _make(self) -> Block:
        block = Block(self._streams.host_memory(Views.size(self._shape)), self._shape)
        self._blocks[address(block.pixels)] = block
        self._made += 1
        return block

    def _drop(self, block: Block) -> None:
        """Forget a block of a past phase, after its copy: its memory may be used for anything."""
        if not self._is_idle(block):
            self._streams.wait_on_host(block.copied)
        del self._blocks[address(block.pixels)]


def address(images: Pixels) -> int:
    number: int = images.__array_interface__["data"][0]
    return number


class Copies:
    """Copies batches in a stream of their own, while the model computes the step before."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._rings: list[Ring] = []
        self._own = Ring(streams, SLOTS)
        self._slots: dict[tuple[int, ...], list[Slot]] = {}

    def memory(self, buffers: int) -> BatchMemory:
        self._rings.append(Ring(self._streams, buffers))
        return self._rings[-1]

    def send(self, loaded: Loaded) -> DeviceBatch:
        streams, block = self._streams, self._block_of(loaded)
        block.write(loaded)
        slot = self._next_slot(loaded.images.shape)
        streams.wait(COPY, slot.free)
        streams.copy(slot.memory, block.memory)
        block.copied = streams.mark(COPY)
        streams.wait(COMPUTE, block.copied)
        drawn: MixNumbers | None = loaded.drawn
        mix = None
        if drawn is not None:
            mix = Mix(slot.share, None if drawn.boxes is None else slot.boxes)
        return DeviceBatch(slot.images, slot.labels, mix, slot)

    def release(self, batch: DeviceBatch) -> None:
        batch.slot.free = self._streams.mark(COMPUTE)

    def _block_of(self, loaded: Loaded) -> Block:
        """The block that the batch was written to; a batch from elsewhere is copied into one."""
        for ring in self._rings:
            if (block := ring.block_of(loaded.images)) is not None:
                return block
        pixels = self._own.take(loaded.images.shape)
        self._own.give_back(pixels)
        block = self._own.block_of(pixels)
        assert block is not None
        np.copyto(pixels, loaded.images)
        return block

    def _next_slot(self, shape: tuple[int, ...]) -> Slot:
        """The slot of this shape that was used least recently. Those of a past phase are dropped:
        the device reuses their memory for work that it does after the steps that read them."""
        slots = self._slots.get(shape)
        if slots is None:
            slots, memory = [], self._streams.device_memory
            for _ in range(SLOTS):
                # Earlier work may use this memory until the compute stream has come here.
                memory_of_slot = memory(Views.size(shape))
                slots.append(Slot(memory_of_slot, shape, self._streams.mark(COMPUTE)))
            self._slots = {shape: slots}
        slots.append(slots.pop(0))
        return slots[-1]


def transfer_to(device: torch.device) -> BatchTransfer:
    """How batches get to this device."""
    return Copies(CudaStreams(device)) if device.type == "cuda" else InPlace()
