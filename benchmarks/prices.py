"""The price tables of the package, made from the shared data, and what they show.

    python benchmarks/prices.py tables [--data ../shared/data]    writes src/stoker/price/tables
    python benchmarks/prices.py check                             makes them again and compares
    python benchmarks/prices.py results                           prints what the tables show

`machines.csv` becomes machines.csv of the package, with GPU names, counts and memories corrected.
`aws_gpu_price_history.parquet` becomes aws_history.parquet (of a day, a machine and a region the
on-demand price and the cheapest zone's spot price) and price_changes.csv (how far prices moved in
some days). Prices are rounded to the digits that the catalogue has, nothing else.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from stoker.price.corrections import TABLES, MachineFacts, corrected, with_linear_memory
from stoker.price.history import ON_DEMAND_UNIT, SPOT_UNIT, days, series
from stoker.price.hourly import ON_DEMAND, SPOT
from stoker.price.offer import Offer
from stoker.price.outlook import HORIZONS, NORMAL_90, WINDOW_DAYS, price_range, quantile
from stoker.price.table import table_bytes

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared" / "data"
SOURCE = "SkyPilot catalogue"
FIRST_DAY = pd.Timestamp("2022-11-22")
LEARNING_DAYS = 365
"""Days before the first range of the walk-forward check."""
EVERY_DAYS = 7
"""Days that a range of the check is used, until the next is made."""
MACHINE, FIXED_ZONE = "p4d.24xlarge", "use1-az1"


def machine_table(data: Path) -> bytes:
    """The package's table of machines."""
    with (data / "machines.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    facts = with_linear_memory([corrected(facts_of(row)) for row in rows])
    offers = [offer_of(row, each) for row, each in zip(rows, facts, strict=True)]
    return table_bytes(sorted(offers, key=lambda offer: (offer.provider, offer.machine)))


def facts_of(row: dict[str, str]) -> MachineFacts:
    return MachineFacts(
        provider=row["provider"],
        machine=row["instance"],
        gpu=row["gpu"],
        gpus=float(row["gpus"]),
        gpu_memory_gib=float(row["gpu_memory_gib"]) if row["gpu_memory_gib"] else None,
        vcpus=float(row["vcpus"]),
        memory_gib=float(row["memory_gib"]),
    )


def offer_of(row: dict[str, str], facts: MachineFacts) -> Offer:
    price = {name: float(text) if text else None for name, text in row.items() if "_usd_h" in name}
    return Offer(
        provider=facts.provider,
        machine=facts.machine,
        gpu=facts.gpu,
        gpus=int(facts.gpus),
        gpu_memory_gib=facts.gpu_memory_gib,
        vcpus=facts.vcpus,
        memory_gib=facts.memory_gib,
        on_demand=price["on_demand_usd_h"],
        on_demand_median=price["on_demand_median_usd_h"],
        on_demand_region=row["on_demand_region"],
        spot=price["spot_min_usd_h"],
        spot_median=price["spot_median_usd_h"],
        region=row["spot_min_region"] or row["on_demand_region"],
        zone="",
        source=SOURCE,
        date=row["catalogue_date"],
        correction=facts.correction,
    )


def read_history(data: Path) -> pd.DataFrame:
    """The rows with a price, as whole numbers."""
    rows = pd.read_parquet(data / "aws_gpu_price_history.parquet")
    rows["on_demand"] = (rows.on_demand.astype("f8") * ON_DEMAND_UNIT).round().astype("Int32")
    rows["spot"] = (rows.spot.astype("f8") * SPOT_UNIT).round().astype("Int32")
    return rows[rows.on_demand.notna() | rows.spot.notna()]


def condensed(rows: pd.DataFrame) -> pa.Table:
    """Of each day, machine and region the row with the lowest spot price."""
    order = ["instance", "region", "date", "spot", "zone"]
    rows = rows.sort_values(order, na_position="last", kind="stable")
    rows = rows.drop_duplicates(["instance", "region", "date"])
    newest = rows.sort_values("date", kind="stable").drop_duplicates("instance", keep="last")
    facts = {
        row.instance: corrected(
            MachineFacts(
                provider="aws",
                machine=row.instance,
                gpu=row.gpu,
                gpus=row.gpus,
                gpu_memory_gib=None,
                vcpus=row.vcpus,
                memory_gib=row.memory_gib,
            )
        )
        for row in newest.itertuples()
    }
    each = rows.instance.map(facts)
    zone = rows.zone.where(rows.spot.notna(), "")
    return pa.table(
        {
            "machine": pa.array(rows.instance, pa.string()),
            "region": pa.array(rows.region, pa.string()),
            "day": pa.array(rows.date, pa.date32()),
            "on_demand": pa.array(rows.on_demand, pa.int32()),
            "spot": pa.array(rows.spot, pa.int32()),
            "zone": pa.array(zone, pa.string()),
            "gpu": pa.array([f.gpu for f in each], pa.string()),
            "gpus": pa.array([int(f.gpus) for f in each], pa.int32()),
            "gpu_memory_gib": pa.array([f.gpu_memory_gib for f in each], pa.float64()),
            "vcpus": pa.array([f.vcpus for f in each], pa.float64()),
            "memory_gib": pa.array([f.memory_gib for f in each], pa.float64()),
        }
    )


def write_history(table: pa.Table, path: Path) -> None:
    """Neighbouring days differ little: their differences are packed, then compressed."""
    packed = ("day", "on_demand", "spot")
    pq.write_table(
        table,
        path,
        compression="zstd",
        compression_level=22,
        row_group_size=len(table),
        data_page_size=1 << 24,
        write_statistics=False,
        store_schema=False,
        use_dictionary=[name for name in table.column_names if name not in packed],
        column_encoding=dict.fromkeys(packed, "DELTA_BINARY_PACKED"),
    )


def log_prices(rows: pd.DataFrame, column: str, place: str) -> pd.DataFrame:
    """The logarithm of a price: a row for a day (also one without rows), a column for a machine and
    a zone or region."""
    prices = rows[rows[column].notna()].drop_duplicates(["date", "instance", place])
    day = (pd.to_datetime(prices.date) - FIRST_DAY).dt.days
    prices = prices.assign(day=day, log=np.log(prices[column].astype("f8")))
    wide = prices.pivot(index="day", columns=["instance", place], values="log")
    return wide.reindex(range(day.max() + 1))


class SpotChanges:
    """How a machine's spot price changed in the zone that was its cheapest on the first day."""

    def __init__(self, rows: pd.DataFrame) -> None:
        logs = log_prices(rows, "spot", "zone")
        self._logs = logs.to_numpy()
        machines = logs.columns.get_level_values(0)
        self._cheapest = np.stack([self._cheapest_of(machines == m) for m in machines.unique()], 1)

    def _cheapest_of(self, own: np.ndarray) -> np.ndarray:
        """The column of a machine's cheapest zone on each day; -1 for a day without prices."""
        logs = np.where(own & np.isfinite(self._logs), self._logs, np.inf)
        return np.where(np.isfinite(logs).any(axis=1), logs.argmin(axis=1), -1)

    def __len__(self) -> int:
        return len(self._logs)

    def over(self, horizon: int) -> np.ndarray:
        """The change from each day on, a column for a machine; NaN where a price is missing."""
        first = np.arange(len(self) - horizon)[:, None]
        zone = self._cheapest[: len(first)]
        change = self._logs[first + horizon, zone] - self._logs[first, zone]
        return np.where(zone < 0, np.nan, change)


def finite(changes: np.ndarray) -> np.ndarray:
    return changes[np.isfinite(changes)]


def before(changes: np.ndarray, day: int, horizon: int) -> np.ndarray:
    """The changes over `horizon` days that ended in the WINDOW_DAYS up to a day."""
    last = day - horizon + 1
    return finite(changes[max(last - WINDOW_DAYS, 0) : max(last, 0)])


def demand_changes(rows: pd.DataFrame) -> dict[int, np.ndarray]:
    """How the cheapest region's on-demand price of a machine changed in each time, over the whole
    history."""
    logs = log_prices(rows, "on_demand", "region").T.groupby(level=0).min().T.to_numpy()
    return {days: finite(logs[days:] - logs[:-days]) for days in HORIZONS}


def change_table(rows: pd.DataFrame) -> bytes:
    """The range of the newest spot prices, and of on-demand prices, as factors."""
    spot, demand = SpotChanges(rows), demand_changes(rows)
    last = len(spot) - 1
    lines = ["kind,days,low,median,high,changes,first_day,last_day,source"]

    def add(kind: str, horizon: int, logs: list[float], changes: np.ndarray, first: int) -> None:
        factors = ",".join(f"{factor:.4f}" for factor in np.exp(logs))
        days = [str((FIRST_DAY + pd.Timedelta(days=day)).date()) for day in (first, last)]
        lines.append(f"{kind},{horizon},{factors},{len(changes)},{','.join(days)},{SOURCE}")

    for horizon in HORIZONS:
        changes, tail = before(spot.over(horizon), last, horizon), quantile(horizon)
        logs = [*np.quantile(changes, [tail, 0.5, 1 - tail])]
        add(SPOT, horizon, logs, changes, last - WINDOW_DAYS + 1)
    for horizon, changes in demand.items():
        edge = NORMAL_90 * float(np.sqrt(np.mean(changes**2)))
        add(ON_DEMAND, horizon, [-edge, float(np.median(changes)), edge], changes, 0)
    return ("\n".join(lines) + "\n").encode()


def coverage(spot: SpotChanges) -> pd.DataFrame:
    """Walk forward: on a day make the ranges from the days before, each at least as wide as those
    of shorter times; count the days after. A row for a day and a horizon."""
    changes = {horizon: spot.over(horizon) for horizon in HORIZONS}
    found = []
    for day in range(LEARNING_DAYS, len(spot), EVERY_DAYS):
        low, high, last = 0.0, 0.0, HORIZONS[0]
        for horizon, every in changes.items():
            known, tail, wider = before(every, day, horizon), quantile(horizon), 1.0
            if len(known):
                edges = np.quantile(known, [tail, 1 - tail])
                low, high, last = min(low, edges[0]), max(high, edges[1]), horizon
            else:  # the history was not that long yet: as `price_range` does beyond its table
                wider = (horizon / last) ** 0.5
            after = finite(every[day : day + EVERY_DAYS])
            held = (after >= low * wider - 1e-6) & (after <= high * wider + 1e-6)
            year = (FIRST_DAY + pd.Timedelta(days=day)).year
            found.append((horizon, year, len(after), int(held.sum())))
    return pd.DataFrame(found, columns=["days", "year", "all", "held"])


def make_tables(data: Path, folder: Path) -> None:
    (folder / "machines.csv").write_bytes(machine_table(data))
    rows = read_history(data)
    write_history(condensed(rows), folder / "aws_history.parquet")
    (folder / "price_changes.csv").write_bytes(change_table(rows))


def check(data: Path) -> int:
    """Compare the tables with new ones: the CSVs by their bytes, the history by its values."""
    with tempfile.TemporaryDirectory() as name:
        make_tables(data, Path(name))
        wrong = [
            file
            for file in ("machines.csv", "price_changes.csv")
            if (TABLES / file).read_bytes() != (Path(name) / file).read_bytes()
        ]
        history = "aws_history.parquet"
        if not pq.read_table(TABLES / history).equals(pq.read_table(Path(name) / history)):
            wrong.append(history)
    print(f"differ: {', '.join(wrong)}" if wrong else "the tables are those of the data")
    return 1 if wrong else 0


def results(data: Path) -> None:
    rows = read_history(data)
    print_size(rows)
    print("\n| days | spot | on demand |\n|---|---|---|")
    for horizon in HORIZONS:
        ranges = [price_range(horizon, kind) for kind in (SPOT, ON_DEMAND)]
        texts = " | ".join(f"{low:.2f} to {high:.2f}" for low, high in ranges)
        print(f"| {horizon} | {texts} |")
    counts = coverage(SpotChanges(rows))
    print("\n| days | changes | held by the 90 % range | by year |\n|---|---|---|---|")
    for horizon, own in counts.groupby("days"):
        years = own.groupby("year")[["all", "held"]].sum()
        years = years[years["all"] > 0]
        by_year = ", ".join(f"{y} {r.held / r['all']:.1%}" for y, r in years.iterrows())
        total = own["all"].sum()
        print(f"| {horizon} | {total:,} | {own.held.sum() / total:.1%} | {by_year} |")
    print("\n| days | on-demand prices | changed | held by the range |\n|---|---|---|---|")
    for horizon, changes in demand_changes(rows).items():
        low, high = np.log(price_range(horizon, ON_DEMAND))
        held = (changes >= low) & (changes <= high)
        moved = (np.abs(changes) > 1e-6).mean()
        print(f"| {horizon} | {len(changes):,} | {moved:.1%} | {held.mean():.1%} |")
    print_machine(rows)


def print_size(rows: pd.DataFrame) -> None:
    file = TABLES / "aws_history.parquet"
    table = pq.read_table(file)
    print(f"{file.name}: {file.stat().st_size:,} bytes, {len(table):,} rows from {len(rows):,}")
    print(f"{len(days()):,} days, {table['machine'].to_pandas().nunique()} machines")
    packed = condensed(rows)
    print(f"equal to the data in every row: {packed.equals(table)}")


def print_machine(rows: pd.DataFrame) -> None:
    """What the hours of a run on MACHINE would have cost, day by day."""
    own = rows[(rows.instance == MACHINE) & rows.spot.notna()]
    own = own.assign(price=own.spot.astype("f8") / SPOT_UNIT)
    every = {
        "the day's cheapest zone (package)": pd.Series(
            [price.spot for price in series(MACHINE) if price.spot is not None]
        ),
        "the day's median zone": own.groupby("date").price.median(),
        f"one fixed zone ({FIXED_ZONE})": own[own.zone == FIXED_ZONE].groupby("date").price.min(),
        "on demand, cheapest region": pd.Series(
            [price.on_demand for price in series(MACHINE) if price.on_demand is not None]
        ),
    }
    print(f"\n| {MACHINE} | days | $/h median (p10-p90) | 45 minutes | 3 hours |")
    print("|---|---|---|---|---|")
    for name, prices in every.items():
        low, middle, high = prices.quantile([0.1, 0.5, 0.9])
        print(
            f"| {name} | {len(prices):,} | {middle:.2f} ({low:.2f}-{high:.2f}) "
            f"| {0.75 * middle:.2f} | {3 * middle:.2f} |"
        )
    cheapest, fixed = (list(every.values())[n].median() for n in (0, 2))
    print(f"\nthe cheapest zone saves {1 - cheapest / fixed:.0%} against {FIXED_ZONE} (medians)")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("tables", "check", "results"))
    parser.add_argument("--data", type=Path, default=SHARED)
    parsed = parser.parse_args()
    if parsed.what == "tables":
        make_tables(parsed.data, TABLES)
    elif parsed.what == "check":
        return check(parsed.data)
    else:
        results(parsed.data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
