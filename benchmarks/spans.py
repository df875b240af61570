"""What measuring costs: our loop with its spans, probes and watch, against the same loop without.

    python benchmarks/spans.py [--model resnet18] [--steps 200] [--torch-threads 1]

Both loops train the same network on the same synthetic images in one process and take turns step
by step, the first one now ahead and now behind. Without measuring there are no spans, no marks of
the CPU, no figures in the events, no watch. The sampler's thread cannot take turns: its CPU time is
left out of every step and added at the end, as the share of the time that it is. Events are written
every step, so that each bears the cost of its own. Medians and quartiles are of pairs of steps;
what comes now and then (a probe, a verdict) is in the sums. A cost of 0.01 is 1 % of a step.
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

from loop import CLASSES, build_loop
from stoker.data.loading.loader import Loaded
from stoker.recipe.recipe import Recipe
from stoker.train.attempt.loop import Loop
from stoker.train.records import step_log as steplog
from stoker.train.records.verdicts import STEPS_BEFORE_TRIAL

WARM_UP = STEPS_BEFORE_TRIAL + 5
"""The trial of a larger batch comes once in the life of a run: it is over by then."""


class NoLap:
    """Nothing was measured."""

    def parts(self) -> dict[str, float]:
        return {}

    on_cpu = parts


class NoSpans:
    """Does nothing, in the place of spans."""

    now = "other"
    _nothing: AbstractContextManager[None] = nullcontext()

    def __call__(self, name: str) -> AbstractContextManager[None]:
        return self._nothing

    def launched(self) -> None: ...

    def lap(self, shares: Mapping[str, Mapping[str, float]] | None = None) -> NoLap:
        return NoLap()


def build(recipe: Recipe, steps: int, place: Path, measured: bool) -> Loop:
    loop, _ = build_loop(recipe, steps, place)
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
    spent = [(0.001, 0.002, 0.002, 0.001)]
    for batch in loop.timeline.batches():
        yield Loaded(batch, images, labels, numbers, numbers * 0, spent=spent)


def one_step(loop: Loop, coming: Iterator[Loaded]) -> None:
    """What the loop does over and over."""
    loop.between_steps()
    with loop.spans("data"):
        loaded = next(coming)
    loop.train_on(loaded)


def sampler_cpu_s(loop: Loop) -> float:
    """CPU time of the sampler's thread so far."""
    thread = loop.records.verdicts.sampler._thread
    if thread is None or thread.ident is None or not thread.is_alive():
        return 0.0
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))


def measure(recipe: Recipe, steps: int, torch_threads: int = 0) -> dict[str, float]:
    """The cost of measuring, as a share of a step and in microseconds."""
    steplog.STEPS_BETWEEN_READS = 1
    seen: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    with tempfile.TemporaryDirectory() as folder:
        places = {True: Path(folder, "on"), False: Path(folder, "off")}
        loops = {on: build(recipe, steps + WARM_UP, places[on], on) for on in places}
        if torch_threads:
            torch.set_num_threads(torch_threads)
        coming = {on: batches(loop) for on, loop in loops.items()}
        began, sampler_began = time.perf_counter(), sampler_cpu_s(loops[True])
        for number in range(steps + WARM_UP):
            for on in (True, False) if number % 2 else (False, True):
                before = clocks(loops[True])
                one_step(loops[on], coming[on])
                after = clocks(loops[True])
                seen[on].append((after[0] - before[0], after[1] - before[1]))
        wall = time.perf_counter() - began
        sampler = (sampler_cpu_s(loops[True]) - sampler_began) / wall
        loops[True].records.verdicts.close()
        for loop in loops.values():
            loop.guards.watchdog.close()
            loop.records.events.close()
    return summary(seen[True][WARM_UP:], seen[False][WARM_UP:], sampler)


def clocks(loop: Loop) -> tuple[float, float]:
    """Wall time, and CPU time of everybody but the sampler."""
    return time.perf_counter(), time.process_time() - sampler_cpu_s(loop)


def summary(
    on: list[tuple[float, float]], off: list[tuple[float, float]], sampler: float
) -> dict[str, float]:
    found: dict[str, Any] = {"steps": len(on), "sampler_of_a_core": round(sampler, 5)}
    for place, clock in enumerate(("wall", "cpu")):
        pairs = [(a[place], b[place]) for a, b in zip(on, off, strict=True)]
        usual = statistics.median(without for _, without in pairs)
        added = statistics.quantiles((measured - without for measured, without in pairs), n=4)
        found[f"{clock}_ms_without"] = round(1000 * usual, 3)
        for name, seconds in zip(("quarter", "median", "three_quarters"), added, strict=True):
            found[f"{clock}_added_us_{name}"] = round(1e6 * seconds, 1)
        found[f"{clock}_cost_median"] = round(added[1] / usual, 5)
        whole = sum(measured for measured, _ in pairs) / sum(without for _, without in pairs)
        found[f"{clock}_cost_sum"] = round(whole - 1, 5)
    busy = found["cpu_ms_without"] / found["wall_ms_without"]
    found["cost"] = round(found["cpu_cost_median"] + sampler / busy, 5)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--torch-threads", type=int, default=0, help="0: as a run has [0]")
    given = parser.parse_args()
    recipe = Recipe(
        model=given.model,
        image_size=given.image_size,
        batch_size=given.batch_size,
        epochs=1,
        checkpoint_interval=3600.0,
    )
    print(json.dumps(measure(recipe, given.steps, given.torch_threads), indent=1))


if __name__ == "__main__":
    main()
