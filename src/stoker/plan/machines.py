"""What a run takes on each machine that can be rented: its rates, whether it fits, hours, dollars.

Invariants: a machine whose GPU has no basis for a forecast is left out, and counted. A batch that
does not fit into the memory of a GPU is cut into micro-batches, as the product does; a machine on
which not even two images fit is kept and marked. Dollars are expected values with a range; that of
a price is the range of the days from its table until the run ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from itertools import pairwise

from stoker.plan.estimate import Estimate, MachineRates, estimate
from stoker.plan.gpu.compute import MeasuredRow, forecast_compute
from stoker.plan.gpu.known import KnownGpu, UnknownGpu, gpu_named
from stoker.plan.gpu.memory import largest_batch
from stoker.plan.gpu.operations import OperationCounts
from stoker.plan.gpu.scaling import efficiency
from stoker.plan.probe import LoadingProbe
from stoker.plan.ranges import FigureRange
from stoker.plan.spot import SpotForecast, SpotTerms, forecast_spot
from stoker.plan.workload import Workload, WorkStage
from stoker.price.hourly import ON_DEMAND, SPOT
from stoker.price.offers import Offer
from stoker.price.outlook import price_range
from stoker.price.table import age_days
from stoker.recipe.schedule import cuts, micro_cuts

MEMORY, NO_BF16 = "memory", "bf16"
BF16_FROM = 8.0
"""The compute capability from which on a GPU has bf16 (NVIDIA, CUDA C++ Programming Guide)."""
LEAST_IMAGES = 2
"""A rank trains with at least two images at once: BatchNorm needs them."""
FREE_CORES = 1
"""Cores for each GPU that its training thread uses, and loading does not."""
CORE_RANGE = FigureRange(0.6, 1.0, 1.4)
"""How fast a rented machine's vCPU loads, compared with a core of the machine that was measured. An
assumption: no published figure compares them on JPEG decoding."""


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """What is to be trained, as far as no machine changes it."""

    work: Workload
    counts: Mapping[int, OperationCounts]
    """By image size."""
    precision: str
    channels_last: bool
    micro_batch: int
    """The recipe's: the most images at once on a GPU; 0: no limit."""
    probe: LoadingProbe
    """Images that one core loads in a second: measured."""
    calibrations: Mapping[str, MeasuredRow] = field(default_factory=dict)
    """Rows that were measured on a GPU of the user's, by the GPU's key."""


@dataclass(frozen=True, kw_only=True)
class MachinePlan:
    """A run on one machine."""

    offer: Offer
    estimate: Estimate | None
    """None where the machine cannot run it."""
    problem: str = ""
    """Why it cannot: MEMORY or NO_BF16."""
    micro_batch: int = 0
    """Images at once on each GPU, in the stage that has least."""
    source: str = ""
    """What the forecast of the GPU stands on."""
    on_demand: FigureRange | None = None
    """Dollars; None where the machine is not offered on demand."""
    hours: FigureRange | None = None
    """Of a run that nothing interrupts, with its saves and its start."""
    spot: FigureRange | None = None
    spot_hours: FigureRange | None = None
    interruptions: float = 0.0

    def rented(self, *, spot: bool) -> tuple[FigureRange | None, FigureRange | None]:
        """Hours and dollars as a spot machine or on demand; None where it is not to be had so."""
        return (self.spot_hours, self.spot) if spot else (self.hours, self.on_demand)


@dataclass(frozen=True, kw_only=True)
class RentalTerms:
    """How machines are rented."""

    hours_between: float
    """Hours that a spot machine is expected to last."""
    start_s: FigureRange
    save_s: FigureRange
    begins: date
    """The day of the run. A price of an earlier day has a wider range."""
    checkpoint_interval: float = 0.0

    def price(self, offer: Offer, kind: str, run_hours: float) -> FigureRange | None:
        """Dollars for an hour of a machine until the run ends; None where it is not offered so. A
        machine without a provider has the price that its owner states."""
        dollars = offer.spot if kind == SPOT else offer.on_demand
        if dollars is None:
            return None
        if not offer.provider:
            return FigureRange.exactly(dollars)
        low, high = price_range(age_days(offer.date, self.begins) + run_hours / 24, kind)
        return FigureRange(dollars * low, dollars, dollars * high)


def plan_machines(
    run: PlannedRun, offers: Iterable[Offer], terms: RentalTerms
) -> tuple[list[MachinePlan], list[Offer]]:
    """The run on each machine, and the offers of which nothing is known."""
    plans, unknown = [], []
    for offer in offers:
        try:
            gpu = gpu_named(offer.gpu, offer.gpu_memory_gib)
            plans.append(priced(plan_on(run, offer, gpu), terms))
        except UnknownGpu:
            unknown.append(offer)
    return plans, unknown


def plan_on(run: PlannedRun, offer: Offer, gpu: KnownGpu) -> MachinePlan:
    """The time of a run on one machine. Raises UnknownGpu where there is no basis for it."""
    if run.precision == "bf16" and float(gpu.capability) < BF16_FROM:
        return MachinePlan(offer=offer, estimate=None, problem=NO_BF16)
    compute, loading, sizes, source = [], [], [], ""
    low, middle, high = efficiency(offer.gpus, run.precision)
    cores = max(offer.vcpus - FREE_CORES * offer.gpus, 0.5 * offer.vcpus)
    for stage in run.work.stages:
        counts = run.counts[stage.image_size]
        images = images_at_once(run, stage, offer.gpus, counts, gpu)
        sizes.append(images)
        if images < LEAST_IMAGES:
            continue
        one = forecast_compute(
            counts,
            gpu,
            images,
            run.precision,
            run.channels_last,
            measured=run.calibrations.get(gpu.key),
        )
        source = one.source
        each = FigureRange(one.low, one.images_per_s, one.high)
        compute.append(each * FigureRange(low, middle, high) * offer.gpus)
        loading.append(CORE_RANGE * (cores * run.probe.images_per_core_s[stage.image_size]))
    if min(sizes) < LEAST_IMAGES:
        return MachinePlan(offer=offer, estimate=None, problem=MEMORY)
    rates = MachineRates(compute=tuple(compute), loading=tuple(loading), efficiency=middle)
    return MachinePlan(
        offer=offer, estimate=estimate(run.work, rates), micro_batch=min(sizes), source=source
    )


def images_at_once(
    run: PlannedRun, stage: WorkStage, gpus: int, counts: OperationCounts, gpu: KnownGpu
) -> int:
    """Images that each GPU trains with at once: its share of the batch, cut until it fits; below
    LEAST_IMAGES where that is not possible."""
    share = max(end - begin for begin, end in pairwise(cuts(stage.batch_size, gpus)))
    most = largest_batch(counts, gpu.memory_bytes, run.precision, gpus=gpus)
    if most < LEAST_IMAGES:
        return 0
    wanted = min(share, run.micro_batch or share)
    offsets = micro_cuts(share, 0 if wanted <= most and wanted == share else min(wanted, most))
    return max(end - begin for begin, end in pairwise(offsets))


def priced(plan: MachinePlan, terms: RentalTerms) -> MachinePlan:
    """The plan with its hours and dollars."""
    if plan.estimate is None:
        return plan
    offer, work = plan.offer, plan.estimate.work_s * (1 / 3600)
    calm = [interrupted(hours, terms, edge, calm=True) for edge, hours in edges(work)]
    hours = FigureRange(*(each.machine_h for each in calm))
    plan = replace(plan, hours=hours)
    if price := terms.price(offer, ON_DEMAND, hours.middle):
        plan = replace(plan, on_demand=hours * price)
    low, middle, high = (interrupted(each, terms, edge) for edge, each in edges(work))
    billed = FigureRange(low.low_h, middle.machine_h, max(high.high_h, middle.machine_h))
    price = terms.price(offer, SPOT, middle.wall_h)
    if price is None:
        return plan
    return replace(
        plan,
        spot=billed * price,
        spot_hours=FigureRange(
            low.low_h, middle.wall_h, max(high.wall_h, high.high_h, middle.wall_h)
        ),
        interruptions=middle.interruptions,
    )


def edges(hours: FigureRange) -> tuple[tuple[str, float], ...]:
    return ("low", hours.low), ("middle", hours.middle), ("high", hours.high)


def interrupted(
    work_hours: float, terms: RentalTerms, edge: str, *, calm: bool = False
) -> SpotForecast:
    """The machine hours of so much work, at one edge of what a start and a save take."""
    return forecast_spot(
        work_hours,
        SpotTerms(
            hours_between=float("inf") if calm else terms.hours_between,
            start_s=getattr(terms.start_s, edge),
            save_s=getattr(terms.save_s, edge),
            checkpoint_interval=terms.checkpoint_interval,
        ),
    )
