"""What each rank of a cell does: train on the packed set, and time it.

Invariants: steps are the real `Step` with the recipe's model, optimiser, precision, mixing, loader
and gradient exchange; only the learning rate is close to zero, so that nothing diverges. The first
steps (compiling, choosing kernels, filling the loader's queue) are excluded and reported. The next
pass reads from the disk where the kernel can drop the set from the page cache; every repeat then
makes the same steps with the same images again, so that repeats differ by chance alone. An
evaluation of about as many images comes last. A rank writes its figures or its reason to a file of
its own, and nothing anywhere else.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count, islice
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import nn

from stoker.commit import write_json
from stoker.data.dataset import Dataset
from stoker.data.loading.loader import Loaded
from stoker.errors import BAD_REQUEST, FAILED, FINISHED, StokerError
from stoker.host import proc
from stoker.host.counters import kernel_text, process_start_s
from stoker.host.limits import usable_cores
from stoker.host.out_of_memory import is_out_of_memory
from stoker.host.page_cache import cached_share, drop
from stoker.host.sampler import Sampler
from stoker.measure.clocks import clock_of
from stoker.measure.facts_from_events import WARM_UP
from stoker.measure.gradient_exchange import GradientExchange
from stoker.measure.spans import Lap, Spans, shares_of
from stoker.plan.bench.rows import CRASHED, NO_MEMORY, OK, REFUSED
from stoker.plan.bench.utilisation import training_flops
from stoker.recipe.model_file import ModelCode
from stoker.recipe.recipe import Recipe
from stoker.recipe.resolve import recorded_recipe
from stoker.recipe.schedule import Batch, Timeline
from stoker.survive.remedies import MEMORY, Remedies, Trouble
from stoker.text import one_line, plural
from stoker.train.attempt.garbage import collecting_by_schedule
from stoker.train.evaluate import Evaluator
from stoker.train.loaders import Loaders, Prepared, build_loaders, prepare
from stoker.train.model.own_code import trust
from stoker.train.model_input import input_maker
from stoker.train.process_group import Ranks
from stoker.train.shape_trial import compile_model
from stoker.train.state import TrainState
from stoker.train.step import Step
from stoker.train.trials.compute import NO_RUN, harmless

LEAST_WARM_UP = 5
"""Steps that are excluded, at least; more where the loader prefetches more batches."""


@dataclass(frozen=True)
class CellJob:
    """What a rank is to measure."""

    data: str
    recipe: Recipe
    steps: int
    repeats: int
    memory_bytes: int
    """Most memory of a GPU; 0: all of it. That of a process is limited when it is started."""
    code: ModelCode | None

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> CellJob:
        code = value["code"]
        return cls(
            value["data"],
            recorded_recipe(value["recipe"], "the job of a cell"),
            value["steps"],
            value["repeats"],
            value["memory_bytes"],
            ModelCode(Path(code["path"]), code["function"], code["text"]) if code else None,
        )


def run_rank(folder: Path, job: CellJob) -> int:
    """Measure, and write figures or a reason to `rank-N.json`; returns the exit code."""
    ranks: Ranks | None = None
    try:
        trust(job.code)
        ranks = Ranks.join()
        limit_gpu(ranks.device, job.memory_bytes)
        figures = {"outcome": OK, **measure(job, ranks)}
        code = FINISHED
        ranks.leave()
    except Exception as error:
        outcome, code = outcome_of(error)
        figures = {"outcome": outcome, "reason": reason_of(error, job.recipe)}
        if outcome == CRASHED:
            write_json(folder / rank_file(ranks.rank if ranks else 0), figures)
            raise
    write_json(folder / rank_file(ranks.rank if ranks else 0), figures)
    return code


def rank_file(rank: int) -> str:
    return f"rank-{rank}.json"


def outcome_of(error: Exception) -> tuple[str, int]:
    """The outcome that an error means, and its exit code."""
    if is_out_of_memory(error) or (isinstance(error, Trouble) and error.kind == MEMORY):
        return NO_MEMORY, FAILED
    if isinstance(error, StokerError):
        return REFUSED, BAD_REQUEST
    return CRASHED, FAILED


def reason_of(error: Exception, recipe: Recipe) -> str:
    """One line: why there are no figures."""
    if isinstance(error, Trouble):
        return f"a step of {plural(recipe.batch_size, 'image')} of {recipe.image_size} px"
    if isinstance(error, StokerError):
        return one_line(str(error))
    return one_line(f"{type(error).__name__}: {error}")


def limit_gpu(device: torch.device, memory_bytes: int) -> None:
    if memory_bytes and device.type == "cuda":
        whole = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(memory_bytes / whole, 1.0), device)


def measure(job: CellJob, ranks: Ranks) -> dict[str, Any]:
    """All figures of this rank. Raises what a step or a loader raises."""
    recipe = replace(harmless(job.recipe), compile=job.recipe.compile)
    dataset = Dataset(job.data)
    prepared = prepare(dataset, recipe, ranks)
    step = build_step(prepared, ranks)
    loaders = build_loaders(prepared, prepared.lanes, ranks, step.batches, lambda note: None)
    sampler = Sampler()
    try:
        with collecting_by_schedule() as collect:
            return timed(job, prepared, TimedSteps(step, loaders, collect), sampler)
    finally:
        sampler.close()
        loaders.close()


def build_step(prepared: Prepared, ranks: Ranks) -> Step:
    """The step as an attempt builds it, with the same wrapping and compiling."""
    recipe, model = prepared.recipe, prepared.model
    state = TrainState.fresh(recipe, model, ranks.device)
    spans = Spans(clock_of(ranks.device))
    wrapped, exchange = wrapped_model(prepared, ranks, spans)
    to_input = input_maker(prepared.normalise, ranks.device, recipe.channels_last, recipe.amp)
    parts = (recipe, prepared.timeline, ranks, state, wrapped, to_input, Remedies(NO_RUN), spans)
    step = Step(*parts, exchange, class_weights=prepared.weights_on(ranks.device))
    step.train_mode()
    return step


def wrapped_model(
    prepared: Prepared, ranks: Ranks, spans: Spans
) -> tuple[nn.Module, GradientExchange | None]:
    wrapped = ranks.wrap(prepared.model)
    exchange = ranks.watch_exchange(wrapped, spans)
    ranks.settle(wrapped, prepared.model, prepared.recipe.image_size)
    if prepared.recipe.compile:
        wrapped = compile_model(wrapped, prepared.timeline)
    return wrapped, exchange


def timed(
    job: CellJob,
    prepared: Prepared,
    trial: TimedSteps,
    sampler: Sampler,
) -> dict[str, Any]:
    """Warm up, make the first pass and the repeats; returns the figures of this rank."""
    step, loaders = trial.step, trial.loaders
    ranks, recipe, split = step.ranks, prepared.recipe, prepared.split
    warm_up = max(prepared.fit.prefetch + 2, LEAST_WARM_UP)
    shards = split.source.files(range(len(split.shards)))
    if ranks.local_rank == 0:
        drop(shards)
    ranks.meet()
    cached = cached_share(shards)
    setup_s = time.monotonic() - process_start_s()
    plan = repeated(prepared.timeline, warm_up, job.steps, job.repeats + 1)
    trial.begin(plan)
    first_s = trial.seconds_of(1)
    warm_up_s = first_s + trial.seconds_of(warm_up - 1)
    cold = trial.pass_of(job.steps)
    trial.forget()
    sampler.begin()
    repeats = [trial.pass_of(job.steps) for _ in range(job.repeats)]
    taken = sampler.take()
    events = trial.events()
    probe = {"kind": "probe", "step": len(events) - 1, **taken}
    return {
        "setup_s": setup_s,
        "first_step_s": first_s,
        "warm_up_steps": warm_up,
        "warm_up_s": warm_up_s,
        "cached_before": cached,
        "cold": cold,
        "repeats": repeats,
        "events": [start_event(ranks, loaders), *events, probe],
        "memory_bytes": peak_memory(ranks.device),
        "evaluation": timed_evaluation(step, loaders.evaluator, recipe, job.steps),
        "flops_per_image": training_flops(recipe, len(prepared.dataset.classes)),
        "device": device_facts(ranks.device),
        "state": {**processor_state(), "gpus": taken.get("gpus", [])},
    }


def repeated(timeline: Timeline, warm_up: int, steps: int, times: int) -> Iterator[Batch]:
    """The batches of the warm-up, then the next ones again and again."""
    batches = list(islice(timeline.batches(), warm_up + steps))
    yield from batches[:warm_up]
    for _ in range(times):
        yield from batches[warm_up:]


class TimedSteps:
    """Steps with batches from the loader, timed between points at which all ranks have finished."""

    def __init__(self, step: Step, loaders: Loaders, collect: Callable[[int], None]) -> None:
        self.step, self.loaders, self._collect = step, loaders, collect
        self._batches: Iterator[Loaded] = iter(())
        self._records: list[tuple[int, dict[str, float], Lap, dict[str, Any]]] = []

    def begin(self, plan: Iterator[Batch]) -> None:
        """Let the loader begin with the batches of a plan."""
        self._batches = self.loaders.loader.batches(plan)
        self.step.spans.lap()

    def seconds_of(self, steps: int) -> float:
        """Make some steps; returns their seconds."""
        self._finish()
        began = time.perf_counter()
        for _ in range(steps):
            self._make()
        self._finish()
        return time.perf_counter() - began

    def pass_of(self, steps: int) -> dict[str, float]:
        """Make some steps; returns the images of all ranks, and the seconds."""
        before = len(self._records)
        seconds = self.seconds_of(steps)
        return {"images": sum(record[0] for record in self._records[before:]), "seconds": seconds}

    def forget(self) -> None:
        """Drop the events of all steps so far."""
        self._records.clear()

    def events(self) -> list[dict[str, Any]]:
        """What a run records of these steps. A GPU's times are read here, when they have passed."""
        return [
            {"kind": "step", "step": n, "batch": size, "work": work, **sent, **lap.times()}
            for n, (size, work, lap, sent) in enumerate(self._records)
        ]

    def _make(self) -> None:
        step = self.step
        with step.spans("data"):
            loaded = next(self._batches)
        step(loaded)
        lap = step.spans.lap(shares_of(loaded.work))
        self._records.append((loaded.batch.size, loaded.work, lap, sent_by(step.exchange)))
        self._collect(len(self._records))

    def _finish(self) -> None:
        if self.step.ranks.device.type == "cuda":
            torch.cuda.synchronize(self.step.ranks.device)
        self.step.ranks.meet()


def timed_evaluation(
    step: Step, evaluator: Evaluator | None, recipe: Recipe, steps: int
) -> dict[str, float] | None:
    """The images of all ranks in an evaluation as long as some steps, and its seconds; None for a
    set without images for it. One batch comes before, to choose kernels."""
    if evaluator is None:
        return None
    share = -(-evaluator.images // step.ranks.world)
    batches = -(-share // evaluator.batch_size)
    wanted = -(-steps * recipe.batch_size // (step.ranks.world * evaluator.batch_size))
    evaluate_some(step, evaluator, recipe, 1)
    began = time.perf_counter()
    evaluate_some(step, evaluator, recipe, min(batches, wanted))
    images = min(evaluator.images, wanted * evaluator.batch_size * step.ranks.world)
    return {"images": images, "seconds": time.perf_counter() - began}


def evaluate_some(step: Step, evaluator: Evaluator, recipe: Recipe, batches: int) -> None:
    """Evaluate so many batches of each rank's share."""
    turns = count()
    model = step.state.evaluated_model
    evaluator.run(model, recipe.image_size, step.to_input, lambda: next(turns) >= batches)
    if step.ranks.device.type == "cuda":
        torch.cuda.synchronize(step.ranks.device)
    step.ranks.meet()


def sent_by(exchange: GradientExchange | None) -> dict[str, Any]:
    """What this rank sent since the last call; empty for one rank."""
    if exchange is None:
        return {}
    sent, seconds = exchange.take()
    return {"sent": {"bytes": sent, "seconds": seconds}}


def start_event(ranks: Ranks, loaders: Loaders) -> dict[str, Any]:
    """What a run records of the start of an attempt, as far as a verdict reads it."""
    return {
        "kind": "attempt",
        "step": -WARM_UP,
        "world": ranks.world,
        "local_world": ranks.local_world,
        "loading_threads": loaders.loader.threads,
        "environment": {
            "host": socket.gethostname(),
            "cores": usable_cores(),
            "threads": torch.get_num_threads(),
        },
    }


def peak_memory(device: torch.device) -> int:
    """Bytes at the highest point: allocated on a GPU, else resident of this process."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    kib = proc.fields(kernel_text("/proc/self/status")).get("VmHWM")
    return 0 if kib is None else kib * 1024


def device_facts(device: torch.device) -> dict[str, Any]:
    if device.type != "cuda":
        return {"kind": "cpu", "name": "", "memory_bytes": 0}
    properties = torch.cuda.get_device_properties(device)
    return {"kind": "cuda", "name": properties.name, "memory_bytes": properties.total_memory}


def processor_state() -> dict[str, float | None]:
    """The mean clock of the cores and the highest temperature now; None where neither is told."""
    clocks = re.findall(r"^cpu MHz\s*:\s*([\d.]+)", kernel_text("/proc/cpuinfo"), re.MULTILINE)
    zones = Path("/sys/class/thermal").glob("thermal_zone*/temp")
    degrees = [n for zone in zones if (n := proc.single(kernel_text(str(zone)))) is not None]
    return {
        "cpu_mhz": fmean(map(float, clocks)) if clocks else None,
        "temperature_c": max(degrees) / 1000 if degrees else None,
    }
