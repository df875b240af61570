"""SkyPilot catalogues, also from people who mean harm."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from golden import check_golden
from stoker.errors import BadRequest
from stoker.price import catalogue
from stoker.price.catalogue import read_catalogue
from stoker.price.offer import Offer

DAY = date(2026, 11, 1)
HEAD = (
    "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,"
    "AvailabilityZone\n"
)
INFO = "\"{'Gpus': [{'Name': 'A100', 'Count': 8, 'MemoryInfo': {'SizeInMiB': 40960}}]}\""
P4D = f"p4d.24xlarge,A100,8.0,96.0,1152.0,{INFO}"
AWS = (
    HEAD
    + f"{P4D},21.957642,9.25,us-east-1,use1-az1\n"
    + f"{P4D},21.957642,7.25,us-east-1,use1-az2\n"
    + f"{P4D},25.25,,eu-west-1,euw1-az1\n"
    + "m5.large,,,2.0,8.0,,0.096,0.03,us-east-1,use1-az1\n"
    + "g6f.large,L4,0.125,2.0,8.0,\"{'MemoryInfo': {'SizeInMiB': 2861}}\",0.2,0.05,us-east-1,z\n"
    + "p9.large,X9,8.0,96.0,1152.0,,0.0,nan,us-east-1,use1-az1\n"
)
GCP = (
    HEAD
    + "a2-highgpu-1g,,,12.0,85.0,,0.74,0.37,us-central1,us-central1-a\n"
    + "a3-megagpu-8g,,,208.0,1872.0,,10.0,3.0,us-central1,us-central1-a\n"
    + "a3-highgpu-8g,,,208.0,1872.0,,9.0,2.0,us-central1,us-central1-a\n"
    + "n1-standard-8,,,8.0,30.0,,0.38,0.08,us-central1,us-central1-a\n"
    + "n1-standard-8,,,8.0,30.0,,0.38,0.08,us-west4,us-west4-a\n"
    + ",A100,1.0,,,,2.93,1.46,us-central1,us-central1-a\n"
    + ",H100,8.0,,,,80.0,20.0,us-central1,us-central1-a\n"
    + ",H100-MEGA,8.0,,,,83.0,25.0,us-central1,us-central1-a\n"
    + ",T4,1.0,,,,0.35,,us-central1,us-central1-a\n"
    + ",tpu-v5,8.0,,,,9.0,3.0,us-central1,us-central1-a\n"
)


@pytest.fixture(autouse=True)
def _later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "today", lambda: date(2026, 11, 17))


def read(text: str | bytes, folder: Path, provider: str = "aws") -> list[Offer]:
    path = folder / "vms.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_catalogue(path, provider, DAY)


def test_the_machines_of_a_catalogue(tmp_path: Path) -> None:
    offers = {(offer.machine, offer.zone): offer for offer in read(AWS, tmp_path)}
    assert {*offers} == {
        ("p4d.24xlarge", "use1-az1"),
        ("p4d.24xlarge", "use1-az2"),
        ("p4d.24xlarge", "euw1-az1"),
        ("g6f.large", "z"),
    }
    p4d = offers["p4d.24xlarge", "use1-az2"]
    assert (p4d.gpu, p4d.gpus, p4d.gpu_memory_gib) == ("A100-40GB", 8, 40)
    assert (p4d.on_demand, p4d.spot, p4d.region) == (21.957642, 7.25, "us-east-1")
    assert (p4d.source, p4d.date) == ("SkyPilot catalogue", "2026-11-01")
    assert offers["p4d.24xlarge", "euw1-az1"].spot is None
    assert (offers["g6f.large", "z"].gpu, offers["g6f.large", "z"].gpus) == ("L4-3GB", 1)


def test_gcps_machines_and_gpus_are_added(tmp_path: Path) -> None:
    offers = {offer.machine: offer for offer in read(GCP, tmp_path, "gcp")}
    prices = {name: (offer.on_demand, offer.spot) for name, offer in offers.items()}
    assert prices == {
        "a2-highgpu-1g": (3.67, 1.83),
        "a3-highgpu-8g": (89.0, 22.0),
        "a3-megagpu-8g": (93.0, 28.0),
        "n1-standard-8+1xT4": (0.73, None),
    }
    assert offers["a3-megagpu-8g"].gpu == "H100"
    assert offers["a2-highgpu-1g"].gpu_memory_gib == 40


HOSTILE = {
    "no catalogue": "a,b\n1,2\n",
    "empty": "",
    "bytes": b"\xff\xfe\x00\x01" * 100,
    "zeros": b"\0" * 1000,
    "price is text": AWS.replace("9.25", "cheap"),
    "price is endless": AWS.replace("9.25", "inf"),
    "price is negative": AWS.replace("9.25", "-1"),
    "price is huge": AWS.replace("9.25", "1e99"),
    "count is text": AWS.replace("A100,8.0", "A100,many"),
    "control codes": AWS.replace("use1-az1", "\x1b[2Jx"),
    "long name": AWS.replace("use1-az1", "z" * 5000),
    "endless cell": AWS.replace("use1-az1", "z" * 200_000),
    "open quote": AWS + '"',
    "no GPU": HEAD + "m5.large,,,2.0,8.0,,0.096,0.03,us-east-1,use1-az1\n",
    "no prices": HEAD + f"{P4D},,,us-east-1,use1-az1\n",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_is_no_catalogue_is_refused(text: str | bytes, tmp_path: Path) -> None:
    with pytest.raises(BadRequest) as refusal:
        read(text, tmp_path)
    assert str(refusal.value).isprintable()
    assert len(str(refusal.value)) < 700


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300), st.integers(0, len(AWS)))
def test_any_bytes_are_a_table_or_a_bad_request(tmp_path: Path, noise: bytes, at: int) -> None:
    data = AWS.encode()
    try:
        read(data[:at] + noise + data[at:], tmp_path)
    except BadRequest as refusal:
        assert str(refusal).isprintable()


def test_nothing_in_a_cell_is_run(tmp_path: Path) -> None:
    info = f"\"__import__('pathlib').Path({str(tmp_path / 'run')!r}).touch()\""
    offers = read(AWS.replace(INFO, info), tmp_path)
    assert offers[-1].gpu_memory_gib == 40  # from the table of corrections
    assert not (tmp_path / "run").exists()


def test_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "MOST_CATALOGUE_ROWS", 2)
    with pytest.raises(BadRequest, match="more than 2 rows"):
        read(AWS, tmp_path)
    monkeypatch.setattr(catalogue, "MOST_CATALOGUE_BYTES", 100)
    with pytest.raises(BadRequest, match="more than 0 MB"):
        read(AWS, tmp_path)


def test_sentences_golden(tmp_path: Path) -> None:
    path = tmp_path / "vms.csv"
    messages = []
    for name in ("no catalogue", "price is text", "no GPU", "zeros"):
        text = HOSTILE[name]
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(BadRequest) as refusal:
            read_catalogue(path, "aws", DAY)
        messages.append(str(refusal.value))
    for file, provider, day in (
        (tmp_path / "none.csv", "aws", DAY),
        (path, "../x", DAY),
        (path, "aws", date(9999, 1, 1)),
    ):
        with pytest.raises(BadRequest) as refusal:
            read_catalogue(file, provider, day)
        messages.append(str(refusal.value))
    check_golden("price_catalogue", [line.replace(str(tmp_path), "FOLDER") for line in messages])
