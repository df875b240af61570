"""Our loop against a bare PyTorch loop: the same model, batch and synthetic images, in turns.

Invariants: steps of both alternate in one process: when our loop asks for a batch, bare steps are
made and timed first, so that both run under the same load of the machine. Ours has events, spans,
metrics and checkpoints switched on, starts from bytes in the loader's memory, normalises and mixes
them; the bare loop gets floats that are on the device already. On a CPU single steps alternate. On
a GPU blocks of steps do, with a wait for the device between blocks only: a wait after each step
would hide what overlaps.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from stoker.data.loading.loader import BatchMemory, Loaded, PlainMemory
from stoker.doctor.selftest.rows import Measured, NotRun, Setup
from stoker.recipe.recipe import Recipe
from stoker.recipe.schedule import Batch, Timeline
from stoker.run.directory import Run
from stoker.run.events import Events
from stoker.survive.checkpoints import Checkpoints
from stoker.survive.divergence import LossWatch
from stoker.survive.remedies import Remedies
from stoker.survive.stopping import StopRequest
from stoker.train.attempt.assembly import build_watchdog
from stoker.train.attempt.loop import Guards, Loop, Records
from stoker.train.device import build_on_device, set_arithmetic
from stoker.train.loaders import Loaders
from stoker.train.mixing import draw_mix
from stoker.train.model.build import Normalise
from stoker.train.model_input import input_maker
from stoker.train.passes import AMP_TYPES
from stoker.train.process_group import Ranks
from stoker.train.records.saving import Saves
from stoker.train.records.step_log import StepLog
from stoker.train.records.verdicts import VerdictWatch
from stoker.train.shape_trial import ShapeTrial, compile_model
from stoker.train.state import TrainState
from stoker.train.step import Step

CLASSES = 100
WARM_UP = 10
"""Steps of each loop before the first that counts."""
GPU_BLOCK = 20
"""Steps between two waits for a GPU."""
BUFFERS = 4
LEAST = 0.97
"""The least that our loop may reach of a bare one on a GPU."""
WITHOUT_TIMM = "resnet9_w64"
"""What a GPU trains where timm is not installed."""
MIXED: dict[str, Any] = {
    "mixup_alpha": 0.2,
    "cutmix_prob": 0.5,
    "ema": True,
    "clip_grad": 1.0,
    "label_smoothing": 0.1,
}
Seconds = tuple[float, float]
"""Wall time, and CPU time of all threads."""


def clocks() -> Seconds:
    return time.perf_counter(), time.process_time()


class Bare:
    """A training step in plain PyTorch, in the recipe's precision."""

    def __init__(self, recipe: Recipe, ranks: Ranks) -> None:
        device = ranks.device
        self.model, _ = build_on_device(recipe, CLASSES, device)
        self._forward: Any = torch.compile(self.model) if recipe.compile else self.model
        self._optimizer = torch.optim.SGD(
            self.model.parameters(),
            lr=0.01,
            momentum=0.9,
            nesterov=True,
            weight_decay=1e-4,
            fused=device.type == "cuda" or None,
        )
        self._scaler = torch.amp.GradScaler(device.type, enabled=recipe.amp == "fp16")
        self._cast = (device.type, AMP_TYPES.get(recipe.amp), recipe.amp in AMP_TYPES)
        size = (recipe.batch_size, 3, recipe.image_size, recipe.image_size)
        self._images = torch.randn(size).to(device, memory_format=torch.channels_last)
        self._labels = torch.randint(0, CLASSES, (recipe.batch_size,), device=device)

    def step(self) -> None:
        with torch.autocast(*self._cast):
            logits = self._forward(self._images)
        loss = cross_entropy(logits.float(), self._labels)
        self._optimizer.zero_grad(set_to_none=True)
        self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        self._scaler.step(self._optimizer)
        self._scaler.update()


@dataclass
class SyntheticLoader:
    """Batches of noise, complete before they are asked for, as decoding threads hand them over."""

    recipe: Recipe
    before: Callable[[int], None] = lambda number: None
    """Called with the number of each batch before it is handed out."""
    memory: BatchMemory = field(default_factory=PlainMemory)

    def batches(self, plan: Iterable[Batch], waiting: object) -> Iterator[Loaded]:
        recipe, draw = self.recipe, np.random.default_rng(0)
        count, size = recipe.batch_size, recipe.image_size
        numbers, epochs = np.arange(count), np.zeros(count, np.int64)
        labels, drawn = draw.integers(0, CLASSES, count), draw_mix(recipe, size, numbers, epochs)
        filled: set[int] = set()
        for number, batch in enumerate(plan):
            self.before(number)
            images = self.memory.take((count, size, size, 3))
            if images.ctypes.data not in filled:
                filled.add(images.ctypes.data)
                images[:] = draw.integers(0, 256, images.shape, dtype=np.uint8)
            yield Loaded(batch, images, labels, numbers, epochs, drawn)
            self.memory.give_back(images)


@dataclass
class Turns:
    """Makes bare steps before our steps, and times both: for one step of each block its mean."""

    bare: Bare
    finish: Callable[[], None] = lambda: None
    """Waits for the device."""
    block: int = 1
    bare_s: list[Seconds] = field(default_factory=list)
    our_s: list[Seconds] = field(default_factory=list)
    _ours_began: Seconds | None = None

    def __call__(self, number: int) -> None:
        if number % self.block:
            return
        self.finish()
        began = clocks()
        if self._ours_began is not None:
            self.our_s.append(self._mean(self._ours_began, began))
        for _ in range(self.block):
            self.bare.step()
        self.finish()
        self._ours_began = clocks()
        self.bare_s.append(self._mean(began, self._ours_began))

    def _mean(self, began: Seconds, ended: Seconds) -> Seconds:
        return (ended[0] - began[0]) / self.block, (ended[1] - began[1]) / self.block


@dataclass(frozen=True)
class LoopTimes:
    """Seconds of a step, by blocks, of both loops."""

    bare: list[Seconds]
    ours: list[Seconds]
    saves: int
    """Checkpoints that our loop kept."""

    def ratio(self, clock: int) -> float:
        """The bare loop's time divided by ours, by the median block. 0: wall time, 1: CPU time."""
        pairs = zip(self.bare, self.ours, strict=True)
        return statistics.median(bare[clock] / max(ours[clock], 1e-9) for bare, ours in pairs)

    def step_ms(self, clock: int) -> tuple[float, float]:
        """Milliseconds of a bare step and of one of ours."""
        bare, ours = (
            1000 * statistics.median(block[clock] for block in blocks)
            for blocks in (self.bare, self.ours)
        )
        return bare, ours


def build_loop(
    recipe: Recipe, steps: int, folder: Path, model: nn.Module, loader: Any, ranks: Ranks
) -> Loop:
    """The real loop over the batches of a loader, in a run directory of its own."""
    run = Run(folder)
    events = Events(run.events_path(1, 0))
    timeline = Timeline.of(recipe, steps * recipe.batch_size)
    state = TrainState.fresh(recipe, model, ranks.device)
    to_input = input_maker(Normalise(), ranks.device, recipe.channels_last, recipe.amp)
    wrapped = compile_model(model, timeline) if recipe.compile else model
    step = Step(recipe, timeline, ranks, state, wrapped, to_input, Remedies(folder))
    losses = LossWatch(math.log(CLASSES))
    log = StepLog(events, losses.add)
    stop = StopRequest()
    saves = Saves(recipe, state, Checkpoints(folder), {}, log, first=True)
    loop = Loop(
        step=step,
        shape_trial=ShapeTrial(step, stop, leave=lambda: None),
        loaders=Loaders(loader, evaluator=None),
        guards=Guards(losses, build_watchdog(step, events, run.attempt_path(1)), stop, run),
        records=Records(events, log, saves, VerdictWatch(run, 1, events, step)),
    )
    loop.begin()
    return loop


def train_synthetic(recipe: Recipe, steps: int, ranks: Ranks, before: Callable[[int], None]) -> int:
    """Run the real loop over synthetic batches, in a folder that is removed; `before` is called
    before each batch. Returns the number of checkpoints that it kept."""
    set_arithmetic(recipe)
    model, _ = build_on_device(recipe, CLASSES, ranks.device)
    loader = SyntheticLoader(recipe, before)
    with tempfile.TemporaryDirectory() as name:
        loop = build_loop(recipe, steps, Path(name), model, loader, ranks)
        loader.memory = loop.step.batches.memory(BUFFERS)
        try:
            loop.run()
        finally:
            loop.guards.watchdog.close()
            loop.records.verdicts.close()
            loop.records.saves.checkpoints.join()
            loop.records.events.close()
        return len(loop.records.saves.checkpoints.names())


def alternate(recipe: Recipe, steps: int, ranks: Ranks) -> LoopTimes:
    """Steps of both loops in turns, without the first ones."""
    on_gpu = ranks.device.type == "cuda"
    block = GPU_BLOCK if on_gpu else 1
    turns = Turns(Bare(recipe, ranks), torch.cuda.synchronize if on_gpu else lambda: None, block)
    saves = train_synthetic(recipe, steps + 1, ranks, turns)
    first = -(-WARM_UP // block)
    return LoopTimes(turns.bare_s[first : len(turns.our_s)], turns.our_s[first:], saves)


def batch_that_fits(batch_size: int, device_bytes: int) -> int:
    """The batch for GPUs of 30 GB and more, half of it from 15 GB on, else a quarter."""
    return batch_size // (1 if device_bytes >= 30e9 else 2 if device_bytes >= 15e9 else 4)


def recipe_of(setup: Setup, model: str, image_size: int, batch_size: int, **keys: Any) -> Recipe:
    """A recipe for this device. On a CPU, and without timm, the model is our own."""
    if setup.on_gpu:
        total = torch.cuda.get_device_properties(setup.ranks.device).total_memory
        batch_size = batch_that_fits(batch_size, total)
        model = model if find_spec("timm") else WITHOUT_TIMM
    else:
        sizes, keys = setup.sizes, keys | {"amp": "off"}
        model, image_size, batch_size = sizes.model, sizes.image_size, sizes.batch_size
    return Recipe(model=model, image_size=image_size, batch_size=batch_size, epochs=1, **keys)


def measure_ratio(setup: Setup, model: str, image_size: int, batch: int, **keys: Any) -> Measured:
    """How our loop compares with a bare one. On a CPU the ratio is of CPU time, as other programs
    disturb it least, and has no limit: `benchmarks/loop.py` measures it on one core."""
    if keys.get("compile") and setup.quick:
        raise NotRun("--quick leaves out what compiles")
    recipe = recipe_of(setup, model, image_size, batch, **keys)
    times = alternate(recipe, setup.sizes.steps, setup.ranks)
    clock = 0 if setup.on_gpu else 1
    ratio, (bare_ms, our_ms) = times.ratio(clock), times.step_ms(clock)
    value = (
        f"{ratio:.3f} of a bare loop ({recipe.model}, {recipe.batch_size} of {recipe.image_size} "
        f"px, amp {recipe.amp}: {our_ms:.1f} ms, bare {bare_ms:.1f})"
    )
    figures = {"ratio": ratio, "ms": our_ms, "bare_ms": bare_ms, "recipe": recipe.values()}
    if not setup.on_gpu:
        return Measured(value, figures=figures)
    return Measured(value, f"at least {LEAST}", ratio >= LEAST, figures)
