"""What the plan's own choices would have cost on every day of four years of AWS prices.

    python benchmarks/plan_backtest.py [--data ../shared/data] [--svg docs/results/plan_days.svg]

The run is the preset imagenet-resnet50 on ImageNet's numbers of images. Its hours on each machine
are forecast once, by `stoker.plan.machines`; only prices change from day to day. Choices compared:
p4d.24xlarge in one fixed zone (use1-az1), the same machine in the day's cheapest zone, the day's
cheapest machine that ends within 3 hours, and the cheapest of all. Prices are those of the
package's history; the fixed zone's are in ../shared/data alone.
"""

from __future__ import annotations

import argparse
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path

import numpy as np
from pyarrow import parquet

from stoker.plan.estimate import START_S
from stoker.plan.gpu.operations import count_operations
from stoker.plan.machines import PlannedRun, RentalTerms, plan_machines
from stoker.plan.planned import BLOCKED_SHARE, DISK_BYTES_PER_S
from stoker.plan.probe import LoadingProbe
from stoker.plan.workload import workload_of
from stoker.price.history import days, offers_on
from stoker.recipe.resolve import resolve
from stoker.train.trials.memory import parameters

IMAGES, VALIDATION, CLASSES = 1_281_167, 50_000, 1000
MACHINE, ZONE = "p4d.24xlarge", "use1-az1"
PER_CORE = 500.0
"""Images that a core loads in a second at 160 to 224 px: about what docs/results/loader.md has."""
DEADLINE_H = 3.0
Costs = dict[date, float]


def quantile(values: Sequence[float], share: float) -> float:
    return float(np.quantile(values, share))


def planned() -> PlannedRun:
    recipe = resolve("imagenet-resnet50", {"amp": "fp16"}).recipe
    work = workload_of(recipe, IMAGES, VALIDATION, CLASSES, parameters=parameters(recipe, CLASSES))
    sizes = {stage.image_size for stage in work.stages}
    return PlannedRun(
        work=work,
        counts={size: count_operations(recipe.model, size, CLASSES) for size in sizes},
        precision="fp16",
        channels_last=True,
        micro_batch=recipe.micro_batch,
        probe=LoadingProbe(dict.fromkeys(sizes, PER_CORE), "assumed"),
    )


def machine_hours(run: PlannedRun) -> dict[str, float]:
    """Billed hours of the run on each AWS machine that can run it, as spot machines."""
    save_s = DISK_BYTES_PER_S.time_of(run.work.checkpoint_bytes) * BLOCKED_SHARE
    hours: dict[str, float] = {}
    for day in (days()[0], days()[len(days()) // 2], days()[-1]):
        terms = RentalTerms(hours_between=4.0, start_s=START_S, save_s=save_s, begins=day)
        plans, _ = plan_machines(run, offers_on(day), terms)
        for plan in plans:
            if plan.spot and plan.offer.spot:
                hours[plan.offer.machine] = plan.spot.middle / plan.offer.spot
    return hours


def fixed_zone(data: Path, hours: float) -> Costs:
    filters = [("instance", "==", MACHINE), ("zone", "==", ZONE)]
    rows = parquet.read_table(data / "aws_gpu_price_history.parquet", filters=filters).to_pylist()
    return {row["date"]: hours * row["spot"] for row in rows if row["spot"]}


def cheapest(hours: Mapping[str, float]) -> tuple[Costs, Counter[str]]:
    """Dollars by the day's cheapest machine of those with hours, and how often each was that."""
    machine: Costs = {}
    names: Counter[str] = Counter()
    for day in days():
        costs = {
            offer.machine: hours[offer.machine] * offer.spot
            for offer in offers_on(day)
            if offer.spot and offer.machine in hours
        }
        if costs:
            name = min(costs, key=lambda name: costs[name])
            names[name] += 1
            machine[day] = costs[name]
    return machine, names


def row(name: str, costs: Costs, over: Sequence[date]) -> str:
    values = [costs[day] for day in over]
    return (
        f"| {name} | {statistics.median(values):,.2f} | {quantile(values, 0.1):,.2f} | "
        f"{quantile(values, 0.9):,.2f} | {sum(values):,.0f} |"
    )


def svg(curves: Mapping[str, Costs], over: Sequence[date]) -> str:
    """Dollars of the run by day. A line breaks where days are missing."""
    width, height, left, floor = 760, 360, 56, 310
    first, last = over[0], over[-1]
    most = max(quantile(list(costs.values()), 0.99) for costs in curves.values())

    def place(day: date, dollars: float) -> str:
        x = left + (day - first).days / (last - first).days * (width - left - 16)
        return f"{x:.1f},{floor - min(dollars / most, 1.0) * (floor - 40):.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        "<title>Dollars of one imagenet-resnet50 run on AWS spot machines, by day</title>",
        "<style>text{font:13px sans-serif;fill:#222}.paper{fill:#fff}.grid{stroke:#ddd}"
        "@media(prefers-color-scheme:dark){text{fill:#ddd}.paper{fill:#15181c}"
        ".grid{stroke:#333}}</style>",
        '<rect class="paper" width="100%" height="100%"/>',
        f'<text x="{left}" y="22">Dollars of one run, by the day of its prices</text>',
    ]
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = floor - share * (floor - 40)
        parts.append(f'<line class="grid" x1="{left}" x2="{width - 16}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text x="8" y="{y + 4}">${share * most:,.0f}</text>')
    for year in range(first.year + 1, last.year + 1):
        x = place(date(year, 1, 1), 0).split(",")[0]
        parts.append(f'<text x="{x}" y="{floor + 18}">{year}</text>')
    hues = ("#d55e00", "#0072b2", "#009e73")
    for number, ((name, costs), hue) in enumerate(zip(curves.items(), hues, strict=True)):
        piece: list[str] = []
        before: date | None = None
        for day in over:
            if before and day - before > timedelta(days=14):
                parts.append(line(piece, hue))
                piece = []
            piece.append(place(day, costs[day]))
            before = day
        parts.append(line(piece, hue))
        y = floor + 38
        x = left + number * 235
        parts.append(f'<line x1="{x}" x2="{x + 22}" y1="{y - 4}" y2="{y - 4}" stroke="{hue}"/>')
        parts.append(f'<text x="{x + 28}" y="{y}">{name}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def line(points: Sequence[str], hue: str) -> str:
    return f'<polyline fill="none" stroke="{hue}" points="{" ".join(points)}"/>'


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    flags.add_argument("--data", type=Path, default=Path("../shared/data"))
    flags.add_argument("--svg", type=Path)
    parsed = flags.parse_args()
    hours = machine_hours(planned())
    fixed = fixed_zone(parsed.data, hours[MACHINE])
    zone, _ = cheapest({MACHINE: hours[MACHINE]})
    quick, quick_names = cheapest({n: h for n, h in hours.items() if h <= DEADLINE_H})
    slow, slow_names = cheapest(hours)
    over = sorted(set(fixed) & set(zone) & set(quick))
    print(f"{len(over):,} days; {hours[MACHINE]:.2f} billed hours on {MACHINE}\n")
    print("| choice | median $ | 10 % | 90 % | all days $ |\n|---|---|---|---|---|")
    curves = {
        f"{MACHINE}, {ZONE}": fixed,
        f"{MACHINE}, cheapest zone": zone,
        f"cheapest within {DEADLINE_H:g} hours": quick,
    }
    for name, costs in {**curves, "cheapest of all": slow}.items():
        print(row(name, costs, over))
    medians = [statistics.median(costs[day] for day in over) for costs in curves.values()]
    sums = [sum(costs[day] for day in over) for costs in curves.values()]
    print(f"\nthe zone saves {1 - medians[1] / medians[0]:.0%} of the median,", end=" ")
    print(
        f"{1 - sums[1] / sums[0]:.0%} over all days; the machine {1 - sums[2] / sums[1]:.0%} more"
    )
    for kind, names in (("within the time", quick_names), ("of all", slow_names)):
        often = ", ".join(
            f"{name} on {count:,} days ({hours[name]:.1f} h)"
            for name, count in names.most_common(3)
        )
        print(f"cheapest {kind}: {often}")
    if parsed.svg:
        parsed.svg.write_text(svg(curves, over), encoding="utf-8")


if __name__ == "__main__":
    main()
