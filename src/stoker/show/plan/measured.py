"""`stoker plan`: a run on machines that were measured, one line each, with what it is made of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stoker.plan.bench.result import BenchResult
from stoker.plan.machines import MachinePlan
from stoker.plan.ranges import FigureRange
from stoker.show.cost import money
from stoker.text import clock, shown


def here_lines(plan: MachinePlan, result: BenchResult) -> list[str]:
    """The run on this machine: in all, and its parts."""
    estimate, hours = plan.estimate, plan.hours
    assert estimate is not None and hours is not None
    other_s = 3600 * hours.middle - estimate.work_s.middle
    parts = [
        f"training {clock(estimate.training_s.middle)}",
        *(
            [f"evaluating {clock(estimate.evaluating_s.middle)}"]
            if estimate.evaluating_s.middle
            else []
        ),
        f"start and saves {clock(other_s)}",
    ]
    rows = [
        f"measured: {shown(row.cell.label())}: {row.speed.median:,.0f} images/s "
        f"({row.speed.low:,.0f} to {row.speed.high:,.0f})"
        for row in result.rows
        if row.speed
    ]
    return [*rows, plan_line(plan), f"that is: {', '.join(parts)}"]


def measured_lines(
    plans: Sequence[MachinePlan], elsewhere: Sequence[BenchResult] = ()
) -> list[str]:
    """A line for each machine of a result file. `elsewhere`: files that are of another set."""
    notes = [
        f"{shown(result.machine)} was measured on another set "
        f"({shown(Path(result.data.path).name)}): its images may load faster or slower"
        for result in elsewhere
    ]
    return [*(f"{plan_line(plan)} ({plan.source})" for plan in plans), *notes]


def plan_line(plan: MachinePlan) -> str:
    """Rate, time and dollars on one machine, each with its range."""
    estimate, hours = plan.estimate, plan.hours
    assert estimate is not None and hours is not None
    rate = estimate.images_per_s
    text = (
        f"{shown(plan.offer.machine)}: {span_text(hours)}, at {rate.middle:,.0f} images/s "
        f"({rate.low:,.0f} to {rate.high:,.0f}), slowed by {shown(estimate.binds)}"
    )
    if plan.on_demand is None:
        return f"{text}; no price: --price-per-hour states one"
    dollars = plan.on_demand
    low, middle, high = map(money, (dollars.low, dollars.middle, dollars.high))
    return f"{text}; {middle} ({low} to {high})"


def span_text(hours: FigureRange) -> str:
    """A time with its range."""
    low, middle, high = (clock(3600 * each) for each in (hours.low, hours.middle, hours.high))
    return f"{middle} ({low} to {high})"
