"""`stoker plan`: the run in one line, a line for each machine worth a look, and how to launch it.

Invariants: no line is wider than the screen, down to 80 columns. Every figure has its range; a
machine on the frontier has a *: no other is both as fast and as cheap.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from datetime import date
from typing import Any

from stoker.plan.machines import MEMORY, NO_BF16, MachinePlan, PlannedRun, RentalTerms
from stoker.plan.ranges import FigureRange
from stoker.price.offers import Offer
from stoker.price.table import REFRESH, age_days, is_old
from stoker.text import cut, plural, shown

WIDE = 130
"""Columns that the table with more cells needs."""
ROOM = 15
"""Columns that a figure with its range needs."""
PROBLEMS = {
    MEMORY: "two images do not fit into the memory of",
    NO_BF16: "without bf16, so use --amp fp16 for",
}
WIDE_HEAD = f" {'other way $':>17} {'batch':>6}  where"


def work_lines(run: PlannedRun) -> list[str]:
    """What is planned, and what was measured for it."""
    work = run.work
    sizes = ", ".join(
        f"{stage.images:,} images at {stage.image_size} px in batches of {stage.batch_size:,}"
        for stage in work.stages
    )
    lines = [
        f"{shown(work.model)}, {run.precision}: {plural(work.epochs, 'epoch')} = {sizes}; "
        f"{plural(work.evaluations, 'evaluation')} of {work.evaluation_images:,} images"
    ]
    if not run.probe.images_per_core_s:
        return lines
    rates = ", ".join(
        f"{rate:,.0f} images/s at {size} px"
        for size, rate in sorted(run.probe.images_per_core_s.items())
    )
    return [*lines, f"one core loads {rates} ({shown(run.probe.source)})"]


def machine_lines(
    plans: Sequence[MachinePlan], best: Collection[int], width: int, *, spot: bool
) -> list[str]:
    """A heading, and a line for each plan. `best` holds the numbers of those on the frontier."""
    wide = width >= WIDE
    names = [f"{plan.offer.provider} {plan.offer.machine}".strip() for plan in plans]
    gpus = [f"{plan.offer.gpus or ''} {plan.offer.gpu}".strip() for plan in plans]
    name_width = min(max([len("machine"), *map(len, names)]), 44 if wide else 26)
    gpu_width = min(max([len("GPUs"), *map(len, gpus)]), 20 if wide else 10)
    hours_width = 17 if wide else 6
    price = "spot $" if spot else "on demand $"
    head = f"  {'machine':<{name_width}} {'GPUs':<{gpu_width}} {'img/s':>6} {'binds':<8}"
    lines = [f"{head} {'hours':>{hours_width}} {price:>17}{WIDE_HEAD if wide else ''}"]
    for number, (plan, name, gpu) in enumerate(zip(plans, names, gpus, strict=True)):
        mark = "*" if number in best else " "
        texts = f"{mark} {cut(name, name_width):<{name_width}} {cut(gpu, gpu_width):<{gpu_width}}"
        assert plan.estimate is not None  # the others are counted below the table
        hours, dollars = plan.rented(spot=spot)
        texts += f" {plan.estimate.images_per_s.middle:>6,.0f} {plan.estimate.binds:<8}"
        texts += f" {range_text(hours, hours_width)} {range_text(dollars, 17)}"
        lines.append(f"{texts}{wide_cells(plan, spot=spot) if wide else ''}".rstrip())
    return lines


def wide_cells(plan: MachinePlan, *, spot: bool) -> str:
    """The other way to rent, images at once on a GPU, and where."""
    _, other = plan.rented(spot=not spot)
    region = plan.offer.zone or plan.offer.region
    return f" {range_text(other, 17)} {plan.micro_batch:>6,}  {cut(region, 16)}"


def range_text(value: FigureRange | None, width: int) -> str:
    """The middle, with the range behind it where there is room."""
    if value is None:
        return f"{'-':>{width}}"
    if width < ROOM:
        return f"{digits(value.middle):>{width}}"
    text = f"{digits(value.middle)} ({digits(value.low)}-{digits(value.high)})"
    return f"{text:>{width}}"


def digits(value: float) -> str:
    """Two digits at least: 0.45, 4.5, 45, 4,500."""
    if value >= 10:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def launch_line(plan: MachinePlan, train: Sequence[str], *, spot: bool) -> str:
    """The command that rents the machine and trains on it, or trains on the user's own."""
    offer = plan.offer
    if not offer.provider:
        words = ["stoker", "train", *train, "--ranks", str(max(offer.gpus, 1))]
        return f"{' '.join(shlex.quote(word) for word in words)} on {shown(offer.machine)}"
    words = ["stoker", "launch", "sky", "--cloud", offer.provider, "--resource"]
    words += [f"instance_type={offer.machine}", *(() if spot else ("--on-demand",))]
    if region := offer.region if spot else offer.on_demand_region or offer.region:
        words += ["--region", region]
    words += ["--bucket", "URL", "--", "train", *train, "--ranks", str(offer.gpus)]
    return " ".join(shlex.quote(word) for word in words)


def closing_lines(
    rows: Sequence[MachinePlan],
    plans: Sequence[MachinePlan],
    unknown: Sequence[Offer],
    terms: RentalTerms,
) -> list[str]:
    """What the table leaves out of all plans, and what its figures stand on."""
    lines = ["* no other machine is both as fast and as cheap; in brackets: 90 % of cases"]
    able = [plan for plan in plans if not plan.problem]
    if len(rows) < len(able):
        lines.append(f"{len(rows)} of {plural(len(able), 'machine')}: --all shows every one")
    for problem, words in PROBLEMS.items():
        gpus = sorted({shown(plan.offer.gpu) for plan in plans if plan.problem == problem})
        if gpus:
            lines.append(f"{words}: {', '.join(gpus)}")
    if unknown:
        names = ", ".join(sorted({shown(offer.gpu) for offer in unknown}))
        lines.append(
            f"{plural(len(unknown), 'machine')} left out, as no published figure is near their "
            f"GPUs: {names}"
        )
    days = {(row.offer.provider or row.offer.machine, row.offer.date) for row in rows}
    dates = ", ".join(f"{shown(provider)} {day}" for provider, day in sorted(days))
    lines.append(
        f"prices: {dates}; spot machines are taken to last {plural(terms.hours_between, 'hour')}"
    )
    sources = sorted({row.source for row in rows if row.estimate})
    lines += [f"compute: {shown(source)}" for source in sources[:1]]
    return [*lines, *old_price_lines([row.offer for row in rows], terms.begins)]


def old_price_lines(offers: Sequence[Offer], now: date) -> list[str]:
    """A loud line where prices are old."""
    old = {
        f"{shown(offer.provider)} {plural(age_days(offer.date, now), 'day')}"
        for offer in offers
        if offer.provider and is_old(offer.date, now)
    }
    if not old:
        return []
    return [
        f"OLD PRICES: {', '.join(sorted(old))}. Their dollars have wider ranges, as AWS's prices "
        f"moved in such a time. Newer prices: {REFRESH}"
    ]


def figures_of(plans: Sequence[MachinePlan], now: date) -> list[dict[str, Any]]:
    """The plans as plain data."""
    return [
        {
            "provider": plan.offer.provider,
            "machine": plan.offer.machine,
            "gpu": plan.offer.gpu,
            "gpus": plan.offer.gpus,
            "fits": plan.estimate is not None,
            "images_at_once": plan.micro_batch,
            "images_per_s": data(plan.estimate.images_per_s) if plan.estimate else None,
            "binds": plan.estimate.binds if plan.estimate else None,
            "hours": data(plan.hours),
            "on_demand_dollars": data(plan.on_demand),
            "spot_hours": data(plan.spot_hours),
            "spot_dollars": data(plan.spot),
            "interruptions": plan.interruptions,
            "compute_source": plan.source,
            "price_source": plan.offer.source,
            "price_date": plan.offer.date,
            "price_age_days": age_days(plan.offer.date, now),
        }
        for plan in plans
    ]


def data(value: FigureRange | None) -> dict[str, float] | None:
    return None if value is None else {"low": value.low, "middle": value.middle, "high": value.high}
