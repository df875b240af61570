"""What AWS's GPU machines cost on each day from 2022-11-22 to 2026-08-22, region by region.

Invariants: of a day, a machine and a region there is the on-demand price, to a thousandth of a
cent, and the spot price of its cheapest zone, to a hundredth of a cent: the catalogue's last of the
day. A day without rows is absent, never filled in. `benchmarks/prices.py` makes the file; any
Parquet reader reads it, with the prices as whole numbers.
"""

from __future__ import annotations

from bisect import bisect
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cache
from typing import Any

from stoker.errors import BadRequest
from stoker.price.corrections import TABLES
from stoker.price.offer import Offer, over_regions
from stoker.text import shown

FILE = TABLES / "aws_history.parquet"
SOURCE = "SkyPilot catalogue"
ON_DEMAND_UNIT, SPOT_UNIT = 1e5, 1e4
"""Whole numbers of the file for a dollar."""
TEXTS = ["machine", "region", "zone", "gpu"]
"""Columns that repeat a few texts: they stay numbers in memory."""


@dataclass(frozen=True)
class DayPrice:
    """What a machine cost on a day, in one region or in the cheapest."""

    day: date
    on_demand: float | None
    spot: float | None
    region: str
    """Of the spot price; without one, of the on-demand price."""
    zone: str


@cache
def table() -> Any:
    """The whole history, sorted by machine, region and day."""
    import pyarrow.parquet as parquet

    with parquet.ParquetFile(FILE, read_dictionary=TEXTS) as file:
        return file.read(use_threads=False)


@cache
def days() -> tuple[date, ...]:
    """The days that have rows, in order."""
    import pyarrow.compute as compute

    return tuple(sorted(compute.unique(table()["day"]).to_pylist()))


def check_day(day: date) -> None:
    """Raise BadRequest, with the nearest days that have rows, where a day has none."""
    known = days()
    at = bisect(known, day)
    if at and known[at - 1] == day:
        return
    nearest = [near.isoformat() for near in (*known[max(at - 1, 0) : at], *known[at : at + 1])]
    raise BadRequest(
        f"the price history has no rows of {day}: take {' or '.join(nearest)}; it has "
        f"{len(known):,} days from {known[0]} to {known[-1]}"
    )


def offers_on(day: date) -> list[Offer]:
    """AWS's machines at their cheapest prices on a day. Raises BadRequest for a day without rows;
    the message names the nearest days that have some."""
    return over_regions(local_offers_on(day))


def local_offers_on(day: date) -> list[Offer]:
    """AWS's machines on a day, one offer for each region. Raises BadRequest for a day without
    rows."""
    import pyarrow.compute as compute

    check_day(day)
    rows = table().filter(compute.equal(table()["day"], day)).to_pylist()
    return [offer_of(row) for row in rows]


def offer_of(row: dict[str, Any]) -> Offer:
    return Offer(
        provider="aws",
        machine=row["machine"],
        gpu=row["gpu"],
        gpus=row["gpus"],
        gpu_memory_gib=row["gpu_memory_gib"],
        vcpus=row["vcpus"],
        memory_gib=row["memory_gib"],
        on_demand=dollars(row["on_demand"], ON_DEMAND_UNIT),
        on_demand_region=row["region"],
        spot=dollars(row["spot"], SPOT_UNIT),
        spot_median=None,
        region=row["region"],
        zone=row["zone"],
        source=SOURCE,
        date=row["day"].isoformat(),
    )


def dollars(value: int | None, unit: float) -> float | None:
    return None if value is None else value / unit


def machines() -> list[str]:
    """The machines of the history, by name."""
    import pyarrow.compute as compute

    return sorted(compute.unique(table()["machine"]).to_pylist())


def series(machine: str, region: str = "") -> list[DayPrice]:
    """What a machine cost on each day that has rows of it: in a region, or the cheapest prices of
    all. Raises BadRequest where the history does not have the machine, or not there."""
    import pyarrow.compute as compute

    if machine not in machines():
        raise BadRequest(
            f"the price history has no machine '{shown(machine)}', only AWS's GPU machines, such "
            "as p4d.24xlarge: 'stoker prices --provider aws --all' lists them"
        )
    rows = table().filter(compute.equal(table()["machine"], machine))
    if region:
        regions = sorted(compute.unique(rows["region"]).to_pylist())
        if region not in regions:
            raise BadRequest(
                f"the price history has no {machine} in '{shown(region)}', only in "
                f"{', '.join(regions)}"
            )
        rows = rows.filter(compute.equal(rows["region"], region))
    by_day: dict[date, list[DayPrice]] = {}
    for row in rows.select(["day", "region", "zone", "on_demand", "spot"]).to_pylist():
        demand, spot = dollars(row["on_demand"], ON_DEMAND_UNIT), dollars(row["spot"], SPOT_UNIT)
        price = DayPrice(row["day"], demand, spot, row["region"], row["zone"])
        by_day.setdefault(price.day, []).append(price)
    return [cheapest(by_day[day]) for day in sorted(by_day)]


def cheapest(prices: list[DayPrice]) -> DayPrice:
    """The lowest on-demand and spot price of a day, which may be of two regions."""
    demand = min([p.on_demand for p in prices if p.on_demand is not None], default=None)
    spots = [(p.spot, p.zone, p.region) for p in prices if p.spot is not None]
    spot, zone, region = min(spots, default=(None, "", prices[0].region))
    return DayPrice(prices[0].day, demand, spot, region, zone)


def gaps() -> list[tuple[date, date]]:
    """The first and last day of each stretch without rows."""
    one = timedelta(days=1)
    pairs = zip(days(), days()[1:], strict=False)
    return [(before + one, after - one) for before, after in pairs if after - before > one]
