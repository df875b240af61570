"""The history of AWS's prices: small, exact, and with its gaps."""

from __future__ import annotations

import importlib.util
import sys
from datetime import date
from pathlib import Path

import pytest

from stoker.errors import BadRequest
from stoker.price.history import FILE, days, gaps, local_offers_on, machines, offers_on, series
from stoker.price.offers import local_offers

ROOT = Path(__file__).parents[3]
SHARED = ROOT.parent / "shared" / "data"
MOST_BYTES = 1_000_000


def test_it_is_small() -> None:
    assert FILE.stat().st_size < MOST_BYTES


def test_days_and_gaps() -> None:
    assert len(days()) == 1258
    assert (days()[0], days()[-1]) == (date(2022, 11, 22), date(2026, 8, 22))
    assert gaps() == [
        (date(2022, 11, 23), date(2022, 12, 1)),
        (date(2026, 4, 1), date(2026, 7, 12)),
    ]


@pytest.mark.parametrize(
    ("day", "nearest"),
    [
        (date(2026, 5, 1), "take 2026-03-31 or 2026-07-13"),
        (date(2020, 1, 1), "take 2022-11-22;"),
        (date(2027, 1, 1), "take 2026-08-22;"),
    ],
)
def test_a_day_without_rows_is_refused_with_the_nearest(day: date, nearest: str) -> None:
    with pytest.raises(BadRequest, match=nearest):
        offers_on(day)


def test_offers_of_a_day() -> None:
    offers = {offer.machine: offer for offer in offers_on(date(2025, 3, 1))}
    p4d = offers["p4d.24xlarge"]
    assert (p4d.gpu, p4d.gpus, p4d.on_demand, p4d.spot) == ("A100-40GB", 8, 32.7726, 4.7003)
    assert (p4d.region, p4d.zone, p4d.date) == ("ap-northeast-2", "apne2-az4", "2025-03-01")
    local = [o for o in local_offers_on(date(2025, 3, 1)) if o.machine == "p4d.24xlarge"]
    assert min(offer.spot for offer in local if offer.spot) == 4.7003
    assert len({offer.region for offer in local}) == len(local) > 5


def test_names_are_those_of_the_package() -> None:
    """The catalogue of the time had other GPU names, and no GPUs for p5.4xlarge."""
    offers = {offer.machine: offer for offer in offers_on(date(2025, 8, 12))}
    assert (offers["p5.4xlarge"].gpu, offers["p5.4xlarge"].gpus) == ("H100", 1)
    assert offers["p6-b200.48xlarge"].gpu == "B200"
    assert all(offer.gpu_memory_gib for offer in offers.values())


def test_a_series() -> None:
    prices = series("p4d.24xlarge")
    assert len(prices) == 1258
    spots = sorted(price.spot for price in prices if price.spot is not None)
    assert (spots[0], spots[len(spots) // 2]) == (2.1958, 5.6202)
    east = series("p4d.24xlarge", "us-east-1")
    cheapest = {price.day: price.spot for price in prices}
    assert all(p.zone.startswith("use1-") for p in east if p.spot)
    assert all((cheapest[p.day] or 0) <= p.spot for p in east if p.spot)


def test_an_unknown_machine_or_region_is_refused() -> None:
    with pytest.raises(BadRequest, match="no machine 'p9'"):
        series("p9")
    with pytest.raises(BadRequest, match=r"only in .*us-east-1"):
        series("p4d.24xlarge", "mars-1")


def test_the_newest_local_offers_are_those_of_the_last_day(tmp_path: Path) -> None:
    assert {offer.date for offer in local_offers("aws", tmp_path)} == {"2026-08-22"}
    assert local_offers("gcp", tmp_path) == []


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/data, the tables' source")
def test_the_tables_are_those_of_the_data(capsys: pytest.CaptureFixture[str]) -> None:
    """Every price of the data is in the package, to the last digit of the catalogue."""
    spec = importlib.util.spec_from_file_location("prices", ROOT / "benchmarks" / "prices.py")
    assert spec and spec.loader
    script = importlib.util.module_from_spec(spec)
    sys.modules["prices"] = script
    spec.loader.exec_module(script)
    assert script.check(SHARED) == 0, capsys.readouterr().out
    rows = script.read_history(SHARED)
    own = rows[(rows.instance == "g5.xlarge") & rows.spot.notna()]
    lowest = (own.groupby("date").spot.min() / 1e4).to_dict()
    assert {p.day: p.spot for p in series("g5.xlarge") if p.spot is not None} == lowest
    assert len(machines()) == rows.instance.nunique()
