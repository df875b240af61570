"""A run on a machine of which a benchmark tells: at measured rates, or forecast from them.

Invariants: a stage whose model, image size and precision were measured goes at that rate, which has
loading in it. Another one is forecast only on a machine without a GPU (`cpu.py`), with a wider
range. A rate that loading set says nothing about a GPU, and calibrates none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import harmonic_mean

from stoker.errors import BadRequest
from stoker.plan.bench.result import BenchResult
from stoker.plan.bench.rows import BenchRow, Figures
from stoker.plan.estimate import COMPUTE, FORWARD_TIMES, estimate_of, longest
from stoker.plan.gpu.compute import MeasuredRow
from stoker.plan.gpu.known import UnknownGpu, gpu_named
from stoker.plan.gpu.operations import OperationCounts, count_operations
from stoker.plan.machines import MachinePlan, PlannedRun, RentalTerms, priced
from stoker.plan.measured.cpu import MeasuredCell, forecast_cpu
from stoker.plan.ranges import FigureRange
from stoker.plan.workload import WorkStage
from stoker.price.offers import Offer
from stoker.recipe.model_file import is_own
from stoker.recipe.recipe import Recipe
from stoker.text import plural, shown
from stoker.train.model.names import check_model

SAME_CELL = 0.18
"""Half the width of the range around the time of a measured step, as a share. Rates of a machine
change while a run goes on: its neighbours, its clock, its page cache (docs/results/plan.md)."""
OTHER_BATCH = 0.25
"""The same, where another batch size of the model was measured."""
MOST_UNEVEN = 0.9
MOST_ROWS = 30
"""Rows that a forecast stands on; more of them change nothing, and counting takes a second each."""
MOST_WAITING = 0.05
"""The share of a step spent waiting for images above which a rate says nothing about a GPU."""
MOST_LOADING = 0.5
"""The most of a step on a CPU that is taken for loading, where a forecast takes it out."""
RUN_START_S = FigureRange(1.0, 1.5, 2.5)
"""What the start and the end of a run take besides those of a benchmark's cell: the trial save that
another process reads back, the records, the last save."""


@dataclass(frozen=True)
class StageRate:
    """Images a second of one stage, its evaluations, and what binds."""

    images_per_s: FigureRange
    evaluation: FigureRange
    binds: str
    row: BenchRow
    """What it stands on."""


def plan_on_measured(run: PlannedRun, result: BenchResult, terms: RentalTerms) -> MachinePlan:
    """The run on the machine of a result file. Raises BadRequest where the file has no row that
    says anything about it."""
    rates = [stage_rate(run, stage, result) for stage in run.work.stages]
    times = [
        rate.images_per_s.time_of(stage.images)
        for rate, stage in zip(rates, run.work.stages, strict=True)
    ]
    row = rates[longest(times)].row
    figures = row.figures
    assert figures is not None
    binds = [rate.binds for rate in rates]
    plan = MachinePlan(
        offer=offer_of(result),
        estimate=estimate_of(run.work, times, rates[-1].evaluation, binds),
        micro_batch=min(stage.batch_size for stage in run.work.stages),
        source=f"measured {result.created[:10]} by {shown(row.cell.label())}",
    )
    start = FigureRange.around(figures.setup_s + figures.first_step_s, SAME_CELL) + RUN_START_S
    return priced(plan, replace(terms, start_s=start))


def plan_measured(
    run: PlannedRun, results: Iterable[BenchResult], terms: RentalTerms
) -> list[MachinePlan]:
    """The run on the machines of result files. A machine with a GPU whose rows are of other models
    is left out: it calibrates the forecasts on its GPU instead. Raises BadRequest for a file that
    tells nothing."""
    plans = []
    for result in results:
        try:
            plans.append(plan_on_measured(run, result, terms))
        except BadRequest:
            if not calibrations(run, [result]):
                raise
    return plans


def offer_of(result: BenchResult) -> Offer:
    """The machine of a result file as one that can be had at its stated price."""
    gpus, price = gpus_of(result), result.price
    return Offer(
        provider="",
        machine=result.machine,
        gpu=str(gpus[0].get("name", "")) if gpus else "CPU",
        gpus=len(gpus),
        gpu_memory_gib=None,
        vcpus=0.0,
        memory_gib=0.0,
        on_demand=price.dollars if price else None,
        spot=None,
        spot_median=None,
        region="",
        zone="",
        source=price.source if price else "",
        date=price.date if price else result.created[:10],
    )


def gpus_of(result: BenchResult) -> Sequence[Mapping[str, object]]:
    """The GPUs that a result file states; it may come from a stranger."""
    gpus = result.environment.get("gpus")
    return [gpu for gpu in gpus if isinstance(gpu, Mapping)] if isinstance(gpus, list) else []


def ranks_of(result: BenchResult) -> int:
    """The ranks that a run has on the machine of a result file: one for each GPU."""
    return max(len(gpus_of(result)), 1)


def stage_rate(run: PlannedRun, stage: WorkStage, result: BenchResult) -> StageRate:
    """The rate of a stage. Raises BadRequest where no row says anything about it."""
    able = rows_of(run, result)
    same = [
        row
        for row in able
        if (row.cell.model, row.cell.image_size) == (run.work.model, stage.image_size)
    ]
    if not same and able and not gpus_of(result):
        return forecast_rate(run, stage, able)
    if not same:
        model, size, ranks = shown(run.work.model), stage.image_size, ranks_of(result)
        raise BadRequest(
            f"the benchmark of {shown(result.machine)} has no row of {model} at {size} px, "
            f"{run.precision}, with {plural(ranks, 'rank')}: measure it with stoker bench "
            f"train DATA --model {model} --image-size {size}"
        )
    row = min(same, key=lambda row: abs(row.cell.batch_size - stage.batch_size))
    is_same = row.cell.batch_size == stage.batch_size
    figures = row.figures
    assert figures is not None
    share = max(SAME_CELL if is_same else OTHER_BATCH, unevenness(figures))
    rate = rate_range(harmonic_mean(figures.rates), share)
    evaluation = rate * FORWARD_TIMES
    if figures.evaluation_images_per_s:
        evaluation = rate_range(figures.evaluation_images_per_s, share)
    return StageRate(rate, evaluation, figures.limit or COMPUTE, row)


def rate_range(images_per_s: float, share: float) -> FigureRange:
    """A rate whose time is known to within a share."""
    return FigureRange(images_per_s / (1 + share), images_per_s, images_per_s / (1 - share))


def unevenness(figures: Figures) -> float:
    """Half the width of what the repeats showed, as a share; below 1, whatever they were."""
    speed = figures.speed
    return min(speed.half / speed.median, MOST_UNEVEN)


def rows_of(run: PlannedRun, result: BenchResult) -> list[BenchRow]:
    """The rows with figures, in the precision of the run and with as many ranks as GPUs."""
    wanted = run.precision, ranks_of(result)
    return [
        row for row in result.rows if row.figures and (row.cell.precision, row.cell.ranks) == wanted
    ]


def forecast_rate(run: PlannedRun, stage: WorkStage, rows: Sequence[BenchRow]) -> StageRate:
    """The rate of a stage that was not measured, on a machine without a GPU. Loading shares its
    cores with the model: it is taken out of the measured rates, and added again."""
    loading_s = LoadingSeconds(run.probe.images_per_core_s, run.probe.cores)
    cells = []
    for row in rows[:MOST_ROWS]:
        assert row.figures is not None
        measured_s = 1 / row.figures.speed.median
        taken_s = min(loading_s(row.cell.image_size), MOST_LOADING * measured_s)
        if counts := counts_of(row, run.work.classes):
            cells.append(MeasuredCell(counts, row.cell.batch_size, 1 / (measured_s - taken_s)))
    one = forecast_cpu(run.counts[stage.image_size], stage.batch_size, cells)
    added_s = loading_s(stage.image_size)
    rate = FigureRange(
        *(1 / (1 / each + added_s) for each in (one.low, one.images_per_s, one.high))
    )
    nearest = min(rows, key=lambda row: abs(row.cell.image_size - stage.image_size))
    return StageRate(rate, rate * FORWARD_TIMES, COMPUTE, nearest)


@dataclass(frozen=True)
class LoadingSeconds:
    """Seconds of all cores to load an image of some size, from the sizes that were measured."""

    images_per_core_s: Mapping[int, float]
    cores: int

    def __call__(self, image_size: int) -> float:
        if not self.images_per_core_s:
            return 0.0
        nearest = min(self.images_per_core_s, key=lambda size: abs(size - image_size))
        seconds = 1 / (self.images_per_core_s[nearest] * self.cores)
        return seconds * (image_size / nearest) ** 2


def calibrations(run: PlannedRun, results: Iterable[BenchResult]) -> dict[str, MeasuredRow]:
    """For each GPU of some result files, the row that calibrates forecasts on it: of one GPU, in
    the run's precision, of the run's own model where there is one, and the fastest."""
    rows: dict[str, BenchRow] = {}
    for result in results:
        for row in result.rows:
            gpu = gpu_of(row)
            if gpu is None or row.figures is None or row.cell.precision != run.precision:
                continue
            if row.cell.ranks > 1 or row.figures.data_share > MOST_WAITING or not is_known(row):
                continue
            known = rows.get(gpu)
            if known is None or merit(run, row) > merit(run, known):
                rows[gpu] = row
    measured = {gpu: measured_row(run, row) for gpu, row in rows.items()}
    return {gpu: row for gpu, row in measured.items() if row}


def gpu_of(row: BenchRow) -> str | None:
    """The key of the GPU that a row was measured on; None where it is none of the table."""
    if row.figures is None or row.figures.device["kind"] != "cuda":
        return None
    device = row.figures.device
    try:
        return gpu_named(device["name"], device["memory_bytes"] / 2**30).key
    except (UnknownGpu, BadRequest):
        return None


def merit(run: PlannedRun, row: BenchRow) -> tuple[bool, float]:
    assert row.figures is not None
    return row.cell.model == run.work.model, row.figures.speed.median


def measured_row(run: PlannedRun, row: BenchRow) -> MeasuredRow | None:
    counts = counts_of(row, run.work.classes)
    if counts is None or row.figures is None:
        return None
    return MeasuredRow(
        counts=counts,
        batch=row.cell.batch_size,
        images_per_s=row.figures.speed.median,
        channels_last=run.channels_last,
    )


def is_known(row: BenchRow) -> bool:
    """Whether a row is of a model that can be built here. The name may come from a stranger: code
    of the user's own does not run for it, and nothing is fetched."""
    try:
        check_model(Recipe(model=row.cell.model, image_size=row.cell.image_size))
    except BadRequest:
        return False
    return not is_own(row.cell.model)


def counts_of(row: BenchRow, classes: int) -> OperationCounts | None:
    """What a step of a row's model does; None for one that cannot be built or counted here."""
    try:
        return (
            count_operations(row.cell.model, row.cell.image_size, classes)
            if is_known(row)
            else None
        )
    except BadRequest:
        return None
