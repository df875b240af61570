"""`stoker prices`: the machines by GPU, the age of each table, and a machine's history.

Invariants: no line is wider than the screen, down to 80 columns. Prices are US dollars for an hour
of the whole machine; one from a table older than the limit has a * behind its date or provider.
"""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import date
from typing import Any

from stoker.price.catalogue import Catalogue
from stoker.price.history import DayPrice
from stoker.price.offer import Offer
from stoker.price.table import COLUMNS, LONGEST_AGE_DAYS, REFRESH, age_days, cell, is_old
from stoker.text import cut, harmless_cell, plural, shown, sparkline

NARROW, WIDE = 80, 130
"""Columns of the narrow table, and those that the wide one needs."""
ROWS_PER_GPU = 10
"""Lines for a GPU that the user asks for; without one, the cheapest machine of each GPU."""
WIDE_HEAD = " median  $/GPU vCPUs memory  spot region"
GPU_WIDTH, MACHINE_WIDTH = 19, 24


def chosen(offers: Iterable[Offer], rows: int) -> list[Offer]:
    """The cheapest machines by the price of one GPU: so many of each GPU, 0 for all. The GPU with
    the cheapest machine comes first."""
    gpus: dict[str, list[Offer]] = {}
    for offer in offers:
        gpus.setdefault(offer.gpu, []).append(offer)
    groups = [sorted(group, key=order) for group in gpus.values()]
    groups.sort(key=lambda group: order(group[0]))
    return [offer for group in groups for offer in group[: rows or None]]


def order(offer: Offer) -> tuple[float, float, str, str]:
    return (per_gpu(offer), offer.cheapest, offer.provider, offer.machine)


def per_gpu(offer: Offer) -> float:
    return round(offer.cheapest / offer.gpus, 3)


def offer_lines(offers: Sequence[Offer], width: int, now: date) -> list[str]:
    """A line for each offer, below a heading. Wide screens get vCPUs, memory and regions."""
    wide = width >= WIDE
    machine_width = max([len("machine"), *(len(shown(offer.machine)) for offer in offers)])
    machine_width = min(machine_width, 40 if wide else MACHINE_WIDTH)
    heads = f"{'GPU':<{GPU_WIDTH}} {'GiB':>3} {'GPUs':>4}  {'machine':<{machine_width}}"
    lines = [f"{heads} {'provider':<11} {'$/h':>6} {'spot':>6}{WIDE_HEAD if wide else ''}"]
    for offer in offers:
        memory = f"{offer.gpu_memory_gib:.0f}" if offer.gpu_memory_gib else "-"
        mark = "*" if is_old(offer.date, now) else ""
        texts = (
            f"{cut(offer.gpu, GPU_WIDTH):<{GPU_WIDTH}} {memory:>3} {offer.gpus:>4}  "
            f"{cut(offer.machine, machine_width):<{machine_width}} "
            f"{cut(offer.provider, 10) + mark:<11}"
        )
        prices = f"{money(offer.on_demand):>6} {money(offer.spot):>6}"
        lines.append(f"{texts} {prices}{wide_cells(offer) if wide else ''}".rstrip())
    return lines


def wide_cells(offer: Offer) -> str:
    region = cut(offer.zone or offer.region, 16)
    return (
        f" {money(offer.spot_median):>6} {money(per_gpu(offer)):>6} {offer.vcpus:>5.0f} "
        f"{offer.memory_gib:>6.0f}  {region}"
    )


def money(dollars: float | None) -> str:
    """Dollars in at most six columns; - without a price."""
    if dollars is None or dollars == float("inf"):
        return "-"
    return f"{dollars:.2f}" if dollars >= 0.995 else f"{dollars:.3f}"


def left_out_line(total: int, count: int) -> str:
    return (
        f"{plural(total - count, 'machine')} more: --gpu NAME shows those of a GPU, --all every one"
    )


def table_lines(offers: Iterable[Offer], now: date) -> list[str]:
    """Source, date and age of each provider's table, and what to do about old ones."""
    tables = {(offer.provider, offer.source, offer.date) for offer in offers}
    width = max(len("provider"), *(len(shown(name)) for name, _, _ in tables))
    lines = [f"{'provider':<{width}}  {'date':<10}  age       source"]
    for name, source, day in sorted(tables):
        mark = "*" if is_old(day, now) else " "
        age = plural(age_days(day, now), "day")
        lines.append(f"{shown(name):<{width}}  {day}{mark} {age:<9} {shown(source)}")
    if any(is_old(day, now) for _, _, day in tables):
        lines.append(f"* older than {LONGEST_AGE_DAYS} days; newer ones: {REFRESH}")
    return lines


def history_lines(machine: str, region: str, prices: Sequence[DayPrice], width: int) -> list[str]:
    """A machine's spot price year by year, and as a curve."""
    where = shown(region) if region else "the day's cheapest region and zone"
    spots = [price.spot for price in prices if price.spot is not None]
    lines = [
        f"{shown(machine)}: $/h in {where}",
        f"{plural(len(prices), 'day')} with prices from {prices[0].day} to {prices[-1].day}",
        f"{'year':<6} {'days':>5} {'spot median':>12} {'10 %':>8} {'90 %':>8} {'on demand':>10}",
    ]
    years = sorted({price.day.year for price in prices})
    lines += [year_line(str(year), [p for p in prices if p.day.year == year]) for year in years]
    if len(years) > 1:
        lines.append(year_line("all", prices))
    if spots:
        curve = sparkline(spots, min(width, 160) - 26)
        lines.append(f"spot {money(min(spots))} to {money(max(spots))} $/h  {curve}")
    return [*lines, "SkyPilot catalogue, the last prices of each day; days without rows left out"]


def year_line(name: str, prices: Sequence[DayPrice]) -> str:
    spots = sorted(price.spot for price in prices if price.spot is not None)
    demands = [price.on_demand for price in prices if price.on_demand is not None]
    tenth = spots[round((len(spots) - 1) * 0.1)] if spots else None
    ninth = spots[round((len(spots) - 1) * 0.9)] if spots else None
    middle = statistics.median(spots) if spots else None
    demand = statistics.median(demands) if demands else None
    return (
        f"{name:<6} {len(prices):>5} {money(middle):>12} {money(tenth):>8} {money(ninth):>8} "
        f"{money(demand):>10}"
    )


def csv_lines(offers: Iterable[Offer]) -> list[str]:
    """The offers as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for offer in offers:
        writer.writerow([harmless_cell(cell(getattr(offer, name))) for name in COLUMNS])
    return text.getvalue().splitlines()


def figures_of(offers: Iterable[Offer], now: date) -> dict[str, Any]:
    """The offers as plain data."""
    machines = [{**asdict(offer), "age_days": age_days(offer.date, now)} for offer in offers]
    return {"longest_age_days": LONGEST_AGE_DAYS, "machines": machines}


def history_figures(machine: str, region: str, prices: Sequence[DayPrice]) -> dict[str, Any]:
    """A machine's history as plain data."""
    days = [{**asdict(price), "day": price.day.isoformat()} for price in prices]
    return {"machine": machine, "region": region, "days": days}


def refreshed_line(catalogue: Catalogue, in_use: str) -> str:
    """What was read for a provider. `in_use` is the day of a newer table, which is kept."""
    machines = len({offer.machine for offer in catalogue.offers})
    text = f"{shown(catalogue.provider):<11} {catalogue.day}  {plural(machines, 'GPU machine')}"
    if catalogue.skipped:
        text += f"; {catalogue.skipped:,} of {plural(catalogue.rows, 'row')} left out: "
        text += shown(catalogue.why)
    return f"{text}; not taken: the table in use is of {in_use}" if in_use else text
