"""What the device gets of a batch, and that the host never waits for the device in a step.

Invariant: bytes are compared as the decoding threads made them with what a kernel reads at the end
of its step, while host, copies and kernels are delayed at random.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stoker.data.loading.loader import Loaded
from stoker.doctor.selftest.loop_ratio import MIXED, recipe_of, train_synthetic
from stoker.doctor.selftest.rows import Measured, Setup
from stoker.recipe.recipe import Recipe
from stoker.recipe.schedule import Batch
from stoker.train.device import CudaStreams
from stoker.train.loaders import build_loaders, prepare
from stoker.train.transfer import BatchTransfer, Copies, DeviceBatch, InPlace

FIRST_WATCHED, WATCHED = 20, 50
"""Steps that may wait, while kernels are chosen and compiled, and steps that may not."""
DELAY_S = 0.002
DELAY_CYCLES = 4_000_000
"""About two milliseconds of a GPU."""
DELAYED = 0.3
"""The share of batches that each place delays."""
LATE_READS = 3
"""Steps between a kernel's copy of a batch and the host's look at it."""


def measure_syncs(setup: Setup) -> Measured:
    """Steps in which PyTorch raises an error if the host waits for the device."""
    amp: dict[str, dict[str, Any]] = {
        "bf16": {"amp": "bf16"},
        "fp16": {"amp": "fp16"},
        "mixed": {"amp": "bf16", **MIXED},
        "micro-batches": {"amp": "bf16", "micro_batch": 16},
    }

    def watch(number: int) -> None:
        if number in (FIRST_WATCHED, FIRST_WATCHED + WATCHED):
            torch.cuda.set_sync_debug_mode("error" if number == FIRST_WATCHED else "default")

    for keys in amp.values():
        recipe = recipe_of(setup, "resnet18", 96, 128, **keys)
        try:
            train_synthetic(recipe, FIRST_WATCHED + WATCHED + 5, setup.ranks, watch)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    value = f"no wait in {WATCHED} steps each: {', '.join(amp)}"
    return Measured(value, "no wait for the device", True, {"steps": WATCHED, "recipes": amp})


class DelayedStreams(CudaStreams):
    """Streams of a GPU in which copies begin late at random."""

    def __init__(self, device: torch.device, chance: random.Random) -> None:
        super().__init__(device)
        self._chance = chance

    def copy(self, target: Tensor, source: Tensor) -> None:
        if self._chance.random() < DELAYED:
            with torch.cuda.stream(self._copy):
                torch.cuda._sleep(DELAY_CYCLES)  # type: ignore[no-untyped-call]
        super().copy(target, source)


def hashed_recipe(batch_size: int) -> Recipe:
    """Mixed by both methods, so that a batch has numbers of every kind."""
    return Recipe(
        model="resnet9_w2",
        image_size=32,
        batch_size=batch_size,
        epochs=1 << 10,
        mixup_alpha=0.2,
        cutmix_prob=0.5,
    )


def plan(steps: int, batch_size: int) -> Iterator[Batch]:
    """Batches whose images grow in the middle, and of which some are short, as at phase changes."""
    position = 0
    for step in range(steps):
        size = batch_size - 3 if step % 50 == 49 else batch_size
        yield Batch(step, position, size, 32 if step < steps // 2 else 40)
        position += size


def contents(loaded: Loaded) -> list[bytes]:
    """The bytes of a batch as the decoding threads made them."""
    drawn = loaded.drawn
    parts = [loaded.images, loaded.labels, drawn.share, drawn.boxes]
    return [np.ascontiguousarray(part).tobytes() for part in parts]


def read(batch: DeviceBatch) -> list[Tensor]:
    """The same, as work of the device reads them now: copies that stay there."""
    assert batch.mix is not None and batch.mix.boxes is not None
    parts = [batch.images, batch.labels, batch.mix.share, batch.mix.boxes]
    return [part.clone() for part in parts]


def differences(
    setup: Setup, transfer: BatchTransfer, chance: random.Random, steps: int
) -> tuple[int, int]:
    """Batches that arrived with other bytes, and all batches."""
    recipe = hashed_recipe(setup.sizes.batch_size)
    prepared = prepare(setup.dataset, recipe, setup.ranks)
    loaders = build_loaders(prepared, prepared.lanes, setup.ranks, transfer, lambda note: None)
    pending: deque[tuple[list[bytes], list[Tensor]]] = deque()
    wrong = count = 0

    def look() -> bool:
        expected, copies = pending.popleft()
        return [copy.cpu().numpy().tobytes() for copy in copies] != expected

    try:
        for loaded in loaders.loader.batches(plan(steps, recipe.batch_size)):
            expected = contents(loaded)
            batch = transfer.send(loaded)
            if chance.random() < DELAYED:
                time.sleep(chance.random() * DELAY_S)
            if setup.on_gpu and chance.random() < DELAYED:
                torch.cuda._sleep(DELAY_CYCLES)  # type: ignore[no-untyped-call]
            pending.append((expected, read(batch)))
            transfer.release(batch)
            count += 1
            if len(pending) > LATE_READS:
                wrong += look()
        wrong += sum(look() for _ in range(len(pending)))
    finally:
        loaders.close()
    return wrong, count


def measure_hashes(setup: Setup) -> Measured:
    """Bytes of images, labels and mixing numbers on the device against the decoding threads'."""
    chance = random.Random(0)
    transfer: BatchTransfer = InPlace()
    if setup.on_gpu:
        transfer = Copies(DelayedStreams(setup.ranks.device, chance))
    wrong, count = differences(setup, transfer, chance, setup.sizes.hashed_steps)
    where = "by the copy stream" if setup.on_gpu else "in place, as on every CPU"
    value = f"{wrong} of {count} batches differ ({where}, with delays)"
    return Measured(value, "0 differ", wrong == 0, {"wrong": wrong, "batches": count})
