"""How long a run takes on a machine, from the rate of each resource: pure functions.

A step needs the model's passes, the exchange of gradients, and a batch from the loader. The
exchange is in the measured efficiency of several GPUs; loading runs beside the passes. So each
stage of a run goes at

    images/s = min(one GPU x GPUs x efficiency, cores x images that one core loads)

Evaluations and the start come on top; `spot.py` adds saves and interruptions.

Invariants: a resource that is faster never makes the run longer. Ranges are those of `ranges.py`:
the errors of all stages come together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stoker.plan.ranges import FigureRange
from stoker.plan.workload import Workload

COMPUTE, DATA, EXCHANGE = "compute", "data", "exchange"
COSTLY_EXCHANGE = 0.8
"""Below this efficiency of several GPUs, the exchange of gradients is what binds."""
START_S = FigureRange(20.0, 60.0, 240.0)
"""From the start of the command to the first step: imports, the model, the trial save, the first
batch. An assumption: no rented GPU machine has been timed."""
FORWARD_TIMES = FigureRange(2.0, 3.0, 4.0)
"""Images a second of a forward pass for each one of training: a backward pass computes twice as
much, and an evaluation has no optimiser."""


@dataclass(frozen=True, kw_only=True)
class MachineRates:
    """Images a second of one machine, for each stage of a run."""

    compute: tuple[FigureRange, ...]
    """Of training on all GPUs, their exchange included."""
    loading: tuple[FigureRange, ...]
    efficiency: float = 1.0
    """What each of several GPUs keeps of the rate of one; part of `compute`."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The time of a run that nothing interrupts, without saves."""

    images_per_s: FigureRange
    """Over all stages, without evaluations."""
    binds: str
    """The resource that sets the rate of the longest stage."""
    training_s: FigureRange
    evaluating_s: FigureRange

    @property
    def work_s(self) -> FigureRange:
        """Seconds of steps and evaluations."""
        return self.training_s + self.evaluating_s


def estimate(work: Workload, rates: MachineRates) -> Estimate:
    """The time that the work takes at these rates."""
    stages = list(zip(work.stages, rates.compute, rates.loading, strict=True))
    times = [compute.at_most(loading).time_of(stage.images) for stage, compute, loading in stages]
    forward = (rates.compute[-1] * FORWARD_TIMES).at_most(rates.loading[-1])
    binds = [binding(compute, loading, rates.efficiency) for _, compute, loading in stages]
    return estimate_of(work, times, forward, binds)


def estimate_of(
    work: Workload, times: Sequence[FigureRange], evaluation: FigureRange, binds: Sequence[str]
) -> Estimate:
    """The estimate of a run whose stages take these times and are bound by these resources;
    `evaluation` is the rate of evaluations."""
    training, evaluating = total(times), FigureRange.exactly(0.0)
    if work.evaluated_images:
        evaluating = evaluation.time_of(work.evaluated_images)
    return Estimate(
        images_per_s=training.time_of(work.trained_images),
        binds=binds[longest(times)],
        training_s=training,
        evaluating_s=evaluating,
    )


def longest(times: Sequence[FigureRange]) -> int:
    """The number of the stage that takes longest."""
    return max(range(len(times)), key=lambda number: times[number].middle)


def binding(compute: FigureRange, loading: FigureRange, efficiency: float) -> str:
    """The resource that is slowest."""
    if loading.middle < compute.middle:
        return DATA
    return EXCHANGE if efficiency < COSTLY_EXCHANGE else COMPUTE


def total(ranges: Iterable[FigureRange]) -> FigureRange:
    return sum(ranges, start=FigureRange.exactly(0.0))
