"""The cost of measuring: our loop with spans, sampler and verdicts against the same loop without.

    python benchmarks/spans.py [--model resnet18] [--steps 200] [--torch-threads 1]

Both loops train the same model on the same synthetic images in one process. They take turns step by
step; which of them comes first alternates. The loop without measuring has no spans, no CPU times,
no figures in its events and no verdicts. The sampler's thread cannot take turns: its CPU time is
left out of every step and added at the end, as a share of the whole time. Events are written every
step, so that each step pays for its own. Medians and quartiles are of pairs of steps; rare work (a
sample, a verdict) is in the sums only. A cost of 0.01 is 1 % of a step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from figures import quartiles
from stoker.data.loading.loader import Loaded
from stoker.doctor.selftest.loop_ratio import CLASSES, SyntheticLoader, build_loop
from stoker.recipe.recipe import Recipe
from stoker.train.attempt.loop import Loop
from stoker.train.device import build_on_device
from stoker.train.process_group import Ranks
from stoker.train.records import step_log
from stoker.train.records.verdicts import STEPS_BEFORE_TRIAL

WARM_UP = STEPS_BEFORE_TRIAL + 5
"""Steps left out: by then the trial of a larger batch, made once in a run, is over."""


class NoLap:
    """A lap without measurements."""

    def parts(self) -> dict[str, float]:
        return {}

    times = parts

    def passed(self) -> bool:
        return True


class NoSpans:
    """Replaces spans and does nothing."""

    now = "other"
    _nothing: AbstractContextManager[None] = nullcontext()

    def __call__(self, name: str) -> AbstractContextManager[None]:
        return self._nothing

    def launched(self) -> None: ...

    def lap(self, shares: Mapping[str, Mapping[str, float]] | None = None) -> NoLap:
        return NoLap()


def build(recipe: Recipe, steps: int, folder: Path, measured: bool) -> Loop:
    ranks = Ranks.join()
    model, _ = build_on_device(recipe, CLASSES, ranks.device)
    loop = build_loop(recipe, steps, folder, model, SyntheticLoader(recipe), ranks)
    if not measured:
        loop.records.verdicts.close()
        nothing = lambda: None  # noqa: E731
        loop.records = replace(loop.records, verdicts=nothing)  # type: ignore[arg-type]
        loop.spans = loop.step.spans = NoSpans()  # type: ignore[assignment]
    loop.step.wrapped.train()
    return loop


def batches(loop: Loop) -> Iterator[Loaded]:
    recipe, draw = loop.step.recipe, np.random.default_rng(0)
    shape = (recipe.batch_size, recipe.image_size, recipe.image_size, 3)
    images = draw.integers(0, 256, shape, dtype=np.uint8)
    labels, numbers = draw.integers(0, CLASSES, recipe.batch_size), np.arange(recipe.batch_size)
    seconds = [(0.001, 0.002, 0.002, 0.001)]
    for batch in loop.timeline.batches():
        yield Loaded(batch, images, labels, numbers, numbers * 0, chunk_seconds=seconds)


def one_step(loop: Loop, loader: Iterator[Loaded]) -> None:
    """One turn of the training loop."""
    loop.between_steps()
    with loop.spans("data"):
        loaded = next(loader)
    loop.train_on(loaded)


def sampler_cpu_s(loop: Loop) -> float:
    """CPU time of the sampler's thread so far."""
    thread = loop.records.verdicts.sampler._thread
    if thread is None or thread.ident is None or not thread.is_alive():
        return 0.0
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))


def measure(recipe: Recipe, steps: int, torch_threads: int = 0) -> dict[str, float]:
    """The cost of measuring, as a share of a step and in microseconds."""
    step_log.STEPS_BETWEEN_READS = 1
    costs: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    with tempfile.TemporaryDirectory() as name:
        folders = {True: Path(name, "on"), False: Path(name, "off")}
        loops = {on: build(recipe, steps + WARM_UP, folders[on], on) for on in folders}
        if torch_threads:
            torch.set_num_threads(torch_threads)
        loaders = {on: batches(loop) for on, loop in loops.items()}
        began, sampler_began = time.perf_counter(), sampler_cpu_s(loops[True])
        for number in range(steps + WARM_UP):
            for on in (True, False) if number % 2 else (False, True):
                before = clocks(loops[True])
                one_step(loops[on], loaders[on])
                after = clocks(loops[True])
                costs[on].append((after[0] - before[0], after[1] - before[1]))
        wall = time.perf_counter() - began
        sampler = (sampler_cpu_s(loops[True]) - sampler_began) / wall
        loops[True].records.verdicts.close()
        for loop in loops.values():
            loop.guards.watchdog.close()
            loop.records.events.close()
    return summary(costs[True][WARM_UP:], costs[False][WARM_UP:], sampler)


def clocks(loop: Loop) -> tuple[float, float]:
    """Wall time, and CPU time of all threads except the sampler."""
    return time.perf_counter(), time.process_time() - sampler_cpu_s(loop)


def summary(
    on: list[tuple[float, float]], off: list[tuple[float, float]], sampler: float
) -> dict[str, float]:
    figures: dict[str, Any] = {"steps": len(on), "sampler_of_a_core": round(sampler, 5)}
    for column, clock in enumerate(("wall", "cpu")):
        pairs = [(a[column], b[column]) for a, b in zip(on, off, strict=True)]
        usual_s = statistics.median(without for _, without in pairs)
        added_us = quartiles([1e6 * (measured - without) for measured, without in pairs], 1)
        figures[f"{clock}_ms_without"] = round(1000 * usual_s, 3)
        figures |= {f"{clock}_added_us_{name}": value for name, value in added_us.items()}
        figures[f"{clock}_cost_median"] = round(added_us["median"] / 1e6 / usual_s, 5)
        whole = sum(measured for measured, _ in pairs) / sum(without for _, without in pairs)
        figures[f"{clock}_cost_sum"] = round(whole - 1, 5)
    cores = figures["cpu_ms_without"] / figures["wall_ms_without"]
    figures["cost"] = round(figures["cpu_cost_median"] + sampler / cores, 5)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument(
        "--torch-threads", type=int, default=0, help="0: the number that a run uses [0]"
    )
    flags = parser.parse_args()
    recipe = Recipe(
        model=flags.model,
        image_size=flags.image_size,
        batch_size=flags.batch_size,
        epochs=1,
        checkpoint_interval=3600.0,
    )
    print(json.dumps(measure(recipe, flags.steps, flags.torch_threads), indent=1))


if __name__ == "__main__":
    main()
