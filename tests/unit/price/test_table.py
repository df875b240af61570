"""Price tables as files: exact, dated, and refused where they are damaged."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden import check_golden
from stoker.errors import BadRequest
from stoker.price.offer import Offer
from stoker.price.offers import newest_offers
from stoker.price.table import (
    COLUMNS,
    WrongTable,
    age_days,
    is_old,
    packaged_offers,
    parse_table,
    table_bytes,
    user_folder,
    user_offers,
    write_user_table,
)

OFFER = Offer(
    provider="aws",
    machine="p4d.24xlarge",
    gpu="A100-40GB",
    gpus=8,
    gpu_memory_gib=40.0,
    vcpus=96.0,
    memory_gib=1152.0,
    on_demand=20.0,
    on_demand_region="us-east-2",
    spot=7.5,
    spot_median=None,
    region="us-east-2",
    zone="use2-az1",
    source="SkyPilot catalogue",
    date="2026-11-01",
)
PRICE = st.none() | st.integers(1, 10**9).map(lambda n: n / 1e5)
TEXT = st.text(st.characters(categories=["L", "N", "P"]), max_size=30)


def test_the_package_has_every_machine_with_source_and_date() -> None:
    offers = packaged_offers()
    assert len(offers) == 420
    assert len({(offer.provider, offer.machine) for offer in offers}) == 420
    assert {offer.provider: offer.date for offer in offers} == {
        "aws": "2026-08-22",
        "azure": "2025-09-11",
        "gcp": "2026-08-21",
        "lambda": "2026-08-03",
        "nebius": "2026-07-22",
        "paperspace": "2025-09-11",
        "runpod": "2026-08-22",
    }
    assert all(offer.source for offer in offers)


@given(PRICE, PRICE, TEXT, st.integers(1, 16))
def test_a_table_is_read_as_it_was_written(
    demand: float | None, spot: float | None, zone: str, gpus: int
) -> None:
    offer = replace(OFFER, on_demand=demand, spot=spot, zone=zone, gpus=gpus)
    assert parse_table(table_bytes([OFFER, offer])) == [OFFER, offer]


LINE = table_bytes([OFFER]).decode().splitlines()[1]
DAMAGES = {
    "no text": b"\xff\xfe\x00",
    "other columns": b"a,b\n1,2\n",
    "empty": b"",
    "cut off": table_bytes([OFFER])[:-30],
    "price is text": table_bytes([OFFER]).replace(b"7.5", b"many"),
    "price is endless": table_bytes([OFFER]).replace(b"7.5", b"inf"),
    "price is no number": table_bytes([OFFER]).replace(b"7.5", b"nan"),
    "price is negative": table_bytes([OFFER]).replace(b"7.5", b"-7.5"),
    "price is huge": table_bytes([OFFER]).replace(b"7.5", b"1e300"),
    "half a GPU": table_bytes([OFFER]).replace(b",8,", b",8.5,"),
    "no GPUs": table_bytes([OFFER]).replace(b",8,", b",0,"),
    "no day": table_bytes([OFFER]).replace(b"2026-11-01", b"2026-13-01"),
    "control codes": table_bytes([OFFER]).replace(b"use2-az1", b"\x1b[2J"),
    "long cell": table_bytes([OFFER]).replace(b"use2-az1", b"z" * 400),
    "another provider": table_bytes([OFFER]).replace(b"aws", b"gcp"),
    "path": table_bytes([OFFER]).replace(b"aws", b"../x"),
    "no row": (",".join(COLUMNS) + "\n").encode(),
    "two dates": table_bytes([OFFER, replace(OFFER, date="2026-11-02")]),
    "open quote": table_bytes([OFFER]).replace(b"use2-az1", b'"use2'),
}


@pytest.mark.parametrize("data", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_table_is_named_and_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "aws.csv").write_bytes(data)
    with pytest.raises(BadRequest) as refusal:
        newest_offers(tmp_path)
    message = str(refusal.value)
    assert f"rm {tmp_path / 'aws.csv'}" in message
    assert "--refresh FILE --provider aws" in message
    assert message.isprintable()


def test_too_many_rows_are_refused() -> None:
    data = (",".join(COLUMNS) + "\n" + f"{LINE}\n" * 200_001).encode()
    with pytest.raises(WrongTable, match="more than 200,000 rows"):
        parse_table(data)


def test_the_newer_table_counts(tmp_path: Path) -> None:
    packaged = [offer for offer in newest_offers(tmp_path) if offer.provider == "aws"]
    write_user_table([OFFER, replace(OFFER, spot=9.0, region="us-west-2", zone="z")], tmp_path)
    own = [offer for offer in newest_offers(tmp_path) if offer.provider == "aws"]
    assert len(packaged) == 64
    assert [(o.machine, o.spot, o.spot_median, o.zone) for o in own] == [
        ("p4d.24xlarge", 7.5, 8.25, "use2-az1")
    ]
    write_user_table([replace(OFFER, date="2026-01-01")], tmp_path)
    assert [offer for offer in newest_offers(tmp_path) if offer.provider == "aws"] == packaged


def test_a_new_provider_is_added(tmp_path: Path) -> None:
    write_user_table([replace(OFFER, provider="verda")], tmp_path)
    assert len(newest_offers(tmp_path)) == 421
    assert list(user_offers(tmp_path)) == ["verda"]


def test_the_users_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert user_folder() == tmp_path / "stoker" / "prices"
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_folder() == tmp_path / ".local" / "share" / "stoker" / "prices"


def test_ages() -> None:
    now = date(2026, 11, 1)
    assert age_days("2026-08-03", now) == 90
    assert age_days("2027-01-01", now) == 0
    assert [is_old(day, now) for day in ("2026-08-03", "2026-08-02")] == [False, True]


def test_sentences_golden(tmp_path: Path) -> None:
    messages = []
    for name in ("cut off", "half a GPU", "no row", "no text"):
        (tmp_path / "aws.csv").write_bytes(DAMAGES[name])
        with pytest.raises(BadRequest) as refusal:
            user_offers(tmp_path)
        messages.append(str(refusal.value).replace(str(tmp_path), "FOLDER"))
    check_golden("price_tables", messages)
