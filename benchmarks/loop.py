"""Our loop against a bare PyTorch loop: the same model, batch and synthetic images.

    python benchmarks/loop.py [--model resnet18] [--steps 120] [--checkpoint-every 10]

Steps of both alternate in one process: when our loop requests its next batch, a bare step is run
and timed first, so that both run under the same load of the machine. Ours has events, spans,
metrics and checkpoints switched on, starts from bytes and normalises them; the bare loop gets
floats. The ratio is the bare loop's time divided by ours, of CPU time (all threads) and of wall
time; 1 means that our loop adds nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from figures import quartiles
from stoker.data.loading.loader import Loaded
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
from stoker.train.loaders import Loaders
from stoker.train.model.build import Normalise, build_model
from stoker.train.model_input import input_maker
from stoker.train.process_group import Ranks
from stoker.train.records.saving import Saves
from stoker.train.records.step_log import StepLog
from stoker.train.records.verdicts import VerdictWatch
from stoker.train.shape_trial import ShapeTrial
from stoker.train.state import TrainState
from stoker.train.step import Step

CLASSES = 100
WARM_UP = 10


def clocks() -> tuple[float, float]:
    """Wall time, and CPU time of all threads."""
    return time.perf_counter(), time.process_time()


class Bare:
    """A training step in plain PyTorch."""

    def __init__(self, recipe: Recipe, ranks: Ranks) -> None:
        self.model = build_model(recipe, CLASSES)[0].to(memory_format=torch.channels_last)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), lr=0.01, momentum=0.9, nesterov=True, weight_decay=1e-4
        )
        size = (recipe.batch_size, 3, recipe.image_size, recipe.image_size)
        self.images = torch.randn(size).to(ranks.device, memory_format=torch.channels_last)
        self.labels = torch.randint(0, CLASSES, (recipe.batch_size,), device=ranks.device)

    def step(self) -> None:
        loss = cross_entropy(self.model(self.images), self.labels)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()


class Interleaved:
    """A loader of synthetic batches that runs a bare step before each batch."""

    def __init__(self, recipe: Recipe, bare: Bare) -> None:
        self.bare = bare
        draw = np.random.default_rng(0)
        shape = (recipe.batch_size, recipe.image_size, recipe.image_size, 3)
        self.images = draw.integers(0, 256, shape, dtype=np.uint8)
        self.labels = draw.integers(0, CLASSES, recipe.batch_size)
        self.bare_steps: list[tuple[float, float]] = []
        self.our_steps: list[tuple[float, float]] = []

    def batches(self, plan: Iterable[Batch], waiting: object) -> Iterator[Loaded]:
        ours_began: tuple[float, float] | None = None
        for batch in plan:
            bare_began = clocks()
            if ours_began is not None:
                ours = (bare_began[0] - ours_began[0], bare_began[1] - ours_began[1])
                self.our_steps.append(ours)
            self.bare.step()
            ours_began = clocks()
            self.bare_steps.append((ours_began[0] - bare_began[0], ours_began[1] - bare_began[1]))
            numbers = np.arange(batch.size)
            yield Loaded(batch, self.images, self.labels, numbers, numbers * 0)


def build_loop(
    recipe: Recipe, steps: int, folder: Path, model: nn.Module, loader: Any, ranks: Ranks
) -> Loop:
    """A loop over synthetic batches."""
    run = Run(folder)
    events = Events(run.events_path(1, 0))
    timeline = Timeline.of(recipe, steps * recipe.batch_size)
    state = TrainState.fresh(recipe, model, ranks.device)
    to_input = input_maker(Normalise(), ranks.device, channels_last=True, amp=recipe.amp)
    step = Step(recipe, timeline, ranks, state, model, to_input, Remedies(folder))
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


def measure(recipe: Recipe, steps: int) -> dict[str, float]:
    """Ratios of the bare loop's cost to ours, by the median step and by the sum of all."""
    with tempfile.TemporaryDirectory() as name:
        ranks = Ranks.join()
        model = build_model(recipe, CLASSES)[0]
        model = model.to(ranks.device, memory_format=torch.channels_last)
        loader = Interleaved(recipe, Bare(recipe, ranks))
        loop = build_loop(recipe, steps, Path(name), model, loader, ranks)
        loop.run()
        loop.guards.watchdog.close()
        loop.records.verdicts.close()
        saves = len(loop.records.saves.checkpoints.names())
    bare = loader.bare_steps[WARM_UP : len(loader.our_steps)]
    ours = loader.our_steps[WARM_UP:]
    figures: dict[str, float] = {"steps": len(ours), "saves_kept": saves}
    for column, clock in enumerate(("wall", "cpu")):
        bare_s, our_s = [step[column] for step in bare], [step[column] for step in ours]
        ratios = quartiles([a / b for a, b in zip(bare_s, our_s, strict=True)], 4)
        figures[f"{clock}_ms_bare"] = round(1000 * statistics.median(bare_s), 2)
        figures[f"{clock}_ms_ours"] = round(1000 * statistics.median(our_s), 2)
        figures |= {f"{clock}_ratio_{name}": ratio for name, ratio in ratios.items()}
        figures[f"{clock}_ratio_sum"] = round(sum(bare_s) / sum(our_s), 4)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--checkpoint-every", type=float, default=10.0, help="seconds [10]")
    flags = parser.parse_args()
    recipe = Recipe(
        model=flags.model,
        image_size=flags.image_size,
        batch_size=flags.batch_size,
        epochs=1,
        checkpoint_interval=flags.checkpoint_every,
    )
    print(json.dumps(measure(recipe, flags.steps), indent=1))


if __name__ == "__main__":
    main()
