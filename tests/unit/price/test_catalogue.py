"""SkyPilot catalogues, also from people who mean harm."""

from __future__ import annotations

import gzip
import os
from datetime import date
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clock import written_on
from golden import check_golden
from stoker.errors import BadRequest
from stoker.price import catalogue
from stoker.price.catalogue import Catalogue, Refused, catalogue_files, read_catalogue
from stoker.price.offer import Offer
from stoker.price.table import packaged_offers

DAY = date(2026, 11, 1)
REAL = Path(__file__).parents[4] / "shared" / "data" / "sky-catalogs" / "v8"
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
    + "a4-highgpu-8g,,,224.0,3968.0,,0.0,0.0,us-central1,us-central1-a\n"
    + ",B200,8.0,,,,90.0,16.0,us-central1,us-central1-a\n"
    + ",tpu-v5,8.0,,,,9.0,3.0,us-central1,us-central1-a\n"
)


@pytest.fixture(autouse=True)
def _later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "today", lambda: date(2026, 11, 17))


def written(text: str | bytes, path: Path, day: date = DAY) -> Path:
    return written_on(day, path, text)


def catalogue_of(text: str | bytes, folder: Path, provider: str = "aws") -> Catalogue:
    return read_catalogue(written(text, folder / "vms.csv"), provider)


def read(text: str | bytes, folder: Path, provider: str = "aws") -> list[Offer]:
    return catalogue_of(text, folder, provider).offers


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
        "a4-highgpu-8g": (90.0, 16.0),  # the machine is in the price of its GPUs
        "n1-standard-8+1xT4": (0.73, None),
    }
    assert offers["a3-megagpu-8g"].gpu == "H100"
    assert offers["a2-highgpu-1g"].gpu_memory_gib == 40


WRONG_ROWS = {
    "price is text": AWS.replace("9.25", "cheap"),
    "price is endless": AWS.replace("9.25", "inf"),
    "price is negative": AWS.replace("9.25", "-1"),
    "price is huge": AWS.replace("9.25", "1e99"),
    "price of a cluster": AWS.replace("9.25", "51200"),
    "count is text": AWS.replace("A100,8.0", "A100,many", 1),
    "control codes": AWS.replace("use1-az1", "\x1b[2Jx", 1),
    "long name": AWS.replace("use1-az1", "z" * 5000, 1),
}


@pytest.mark.parametrize("text", WRONG_ROWS.values(), ids=WRONG_ROWS.keys())
def test_a_row_without_sense_is_left_out_and_counted(text: str, tmp_path: Path) -> None:
    found = catalogue_of(text, tmp_path)
    assert (found.rows, found.skipped) == (6, 1)
    assert found.why.startswith("line 2: ") and found.why.isprintable()
    zones = {offer.zone for offer in found.offers if offer.machine == "p4d.24xlarge"}
    assert zones == {"use1-az2", "euw1-az1"}


HOSTILE = {
    "no catalogue": "a,b\n1,2\n",
    "empty": "",
    "bytes": b"\xff\xfe\x00\x01" * 100,
    "zeros": b"\0" * 1000,
    "most rows without sense": AWS.replace("us-east-1", "us\x1b[2J"),
    "endless cell": AWS.replace("use1-az1", "z" * 200_000),
    "open quote": AWS + '"',
}
NO_GPUS = {
    "no GPU": HEAD + "m5.large,,,2.0,8.0,,0.096,0.03,us-east-1,use1-az1\n",
    "no prices": HEAD + f"{P4D},,,us-east-1,use1-az1\n",
    "no rows": HEAD,
}


@pytest.mark.parametrize("text", NO_GPUS.values(), ids=NO_GPUS.keys())
def test_a_provider_may_rent_no_gpus(text: str, tmp_path: Path) -> None:
    assert read(text, tmp_path) == []


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_is_no_catalogue_is_refused(text: str | bytes, tmp_path: Path) -> None:
    with pytest.raises(Refused) as refusal:
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


def test_what_is_no_plain_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "vms.csv")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "folder.csv").mkdir()
    for name in ("vms.csv", "zero", "folder.csv", "none.csv"):
        with pytest.raises(Refused):
            read_catalogue(tmp_path / name, "aws")


def test_a_compressed_catalogue_has_the_same_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = gzip.compress(AWS.encode())
    path = tmp_path / "vms.csv.gz"
    assert read_catalogue(written(whole, path), "aws").offers == read(AWS, tmp_path)
    for damaged in (whole[:-20], AWS.encode(), whole[:30] + b"\0" * 50 + whole[80:]):
        with pytest.raises(Refused):
            read_catalogue(written(damaged, path), "aws")
    monkeypatch.setattr(catalogue, "MOST_CATALOGUE_BYTES", 1 << 20)
    with pytest.raises(Refused, match="more than 1 MB"):
        read_catalogue(written(gzip.compress(b"x" * (300 << 20)), path), "aws")


def test_a_table_has_the_day_of_its_file(tmp_path: Path) -> None:
    path = written(AWS, tmp_path / "v8" / "aws" / "vms.csv")
    assert read_catalogue(path, "aws").day == DAY
    assert {offer.date for offer in read_catalogue(path, "aws").offers} == {"2026-11-01"}
    assert read_catalogue(path, "aws", date(2026, 8, 22)).day == date(2026, 8, 22)
    assert read_catalogue(path, "aws", date(2026, 11, 2)).day == date(2026, 11, 2)
    with pytest.raises(BadRequest, match="--date 2026-11-03 is after the day"):
        read_catalogue(path, "aws", date(2026, 11, 3))
    # SkyPilot writes the checksum when a download succeeds, and dates the file when one fails.
    written("0" * 32, tmp_path / "v8" / ".meta" / "aws" / "vms.csv.md5", date(2026, 9, 1))
    assert read_catalogue(path, "aws").day == date(2026, 9, 1)


def test_a_file_with_an_impossible_day(tmp_path: Path) -> None:
    path = written(AWS, tmp_path / "vms.csv", date(2030, 1, 1))
    assert read_catalogue(path, "aws").day == date(2026, 11, 17)  # today
    written(AWS, path, date(1980, 1, 1))
    with pytest.raises(Refused, match="is dated 1980-01-01: state the day"):
        read_catalogue(path, "aws")
    os.utime(path, (1e12, 1e12))
    assert read_catalogue(path, "aws").day == date(2026, 11, 17)
    os.utime(path, (-1e12, -1e12))
    with pytest.raises(Refused, match="state the day"):
        read_catalogue(path, "aws")


class TestFolders:
    """Which files of a folder are catalogues, and whose."""

    def test_all_providers_at_once(self, tmp_path: Path) -> None:
        for name in ("aws", "gcp"):
            written(AWS, tmp_path / name / "vms.csv")
        written(gzip.compress(AWS.encode()), tmp_path / "lambda" / "vms.csv.gz")
        written("x", tmp_path / "common" / "images.csv")
        written("0", tmp_path / ".meta" / "aws" / "vms.csv.md5")
        assert list(catalogue_files(tmp_path)) == ["aws", "gcp", "lambda"]
        assert catalogue_files(tmp_path, "gcp") == {"gcp": tmp_path / "gcp" / "vms.csv"}
        assert list(catalogue_files(tmp_path / "gcp")) == ["gcp"]
        assert list(catalogue_files(tmp_path / "aws" / "vms.csv", "verda")) == ["verda"]

    def test_a_folder_with_another_name_is_refused(self, tmp_path: Path) -> None:
        written(AWS, tmp_path / "a\x1b[2J" / "vms.csv")
        [(name, path)] = catalogue_files(tmp_path).items()
        with pytest.raises(Refused, match="not named after a provider") as refusal:
            read_catalogue(path, name)
        assert str(refusal.value).isprintable()

    def test_too_many_folders(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(catalogue, "MOST_FOLDERS", 2)
        for name in "abc":
            (tmp_path / name).mkdir()
        with pytest.raises(BadRequest, match="has 3 folders"):
            catalogue_files(tmp_path)


@pytest.mark.skipif(not REAL.exists(), reason="no ../shared/data/sky-catalogs here")
def test_skypilots_own_catalogues() -> None:
    found = {name: read_catalogue(path, name) for name, path in catalogue_files(REAL).items()}
    assert len(found) == 15
    assert {name: each.skipped for name, each in found.items() if each.skipped} == {"gcp": 657}
    assert min(len({offer.machine for offer in each.offers}) for each in found.values()) >= 1
    known = {(offer.provider, offer.machine): offer for offer in packaged_offers()}
    for each in found.values():
        own = {offer.machine: offer for offer in each.offers}
        assert {m for p, m in known if p == each.provider} <= {*own}
        for machine, offer in own.items():
            if packaged := known.get((each.provider, machine)):
                assert (offer.gpu, offer.gpus) == (packaged.gpu, packaged.gpus)
    vast = {(o.gpu, o.gpu_memory_gib) for o in found["vast"].offers}
    assert {("RTX4090", 24.0), ("A100-80GB", 80.0)} <= vast
    assert {o.gpu_memory_gib for o in found["runpod"].offers if o.gpu == "H200"} == {141.0}


def test_sentences_golden(tmp_path: Path) -> None:
    path = tmp_path / "vms.csv"
    messages = []
    for name in ("no catalogue", "most rows without sense", "zeros"):
        with pytest.raises(BadRequest) as refusal:
            read(HOSTILE[name], tmp_path)
        messages.append(str(refusal.value))
    written(AWS, path)
    (tmp_path / "empty").mkdir()
    for call in (
        lambda: read_catalogue(path, "../x"),
        lambda: read_catalogue(path, "aws", date(9999, 1, 1)),
        lambda: catalogue_files(tmp_path / "none.csv", "aws"),
        lambda: catalogue_files(path),
        lambda: catalogue_files(path, "../x"),
        lambda: catalogue_files(tmp_path / "empty"),
        lambda: catalogue_files(tmp_path / "empty", "aws"),
    ):
        with pytest.raises(BadRequest) as refusal:
            call()
        messages.append(str(refusal.value))
    check_golden("price_catalogue", [line.replace(str(tmp_path), "FOLDER") for line in messages])
