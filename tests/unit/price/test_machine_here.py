"""What this machine costs: by a flag, or by what its metadata service says over HTTP."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from chaos.metadata import Metadata
from golden import check_golden
from stoker.price import catalogue
from stoker.price import machine_here as module
from stoker.price.catalogue import read_catalogue
from stoker.price.hourly import ON_DEMAND, SPOT, STATED, HourlyPrice
from stoker.price.machine_here import machine_here, price_here, price_or_reason, why_unknown
from stoker.price.table import write_user_table
from stoker.survive import spot as spot_module

AWS = {
    "instance-type": "p4d.24xlarge",
    "placement/region": "us-east-1",
    "placement/availability-zone-id": "use1-az1",
    "instance-life-cycle": "spot",
}
GCP = {
    "machine-type": "projects/123/machineTypes/a2-highgpu-1g",
    "/zone": "projects/123/zones/us-central1-a",
    "scheduling/preemptible": "FALSE",
}
AZURE = {"vmSize": "Standard_NC24ads_A100_v4", "location": "eastus", "priority": ""}
CATALOGUE = """\
Region,AvailabilityZone,InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,\
SpotPrice
us-east-1,use1-az1,p4d.24xlarge,A100,8,96,1152,20.5,9.5
us-east-1,use1-az2,p4d.24xlarge,A100,8,96,1152,20.5,8.5
"""


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Metadata]:
    metadata = Metadata()
    monkeypatch.setenv("STOKER_METADATA_URL", metadata.url)
    yield metadata
    metadata.close()


def azure_answer(**changes: str) -> dict[str, str]:
    return {"/metadata/instance/compute?": json.dumps({**AZURE, **changes})}


def test_the_flag_wins_and_nothing_is_asked(service: Metadata) -> None:
    service.machine = AWS
    price = price_here(1.25, "aws")
    assert price is not None
    assert (price.dollars, price.kind, price.source) == (1.25, STATED, "--price-per-hour")
    assert service.asked == 0


def test_aws_spot_in_a_region_of_the_history(service: Metadata) -> None:
    service.machine = {**AWS, "placement/availability-zone-id": "use1-az9"}
    price = price_here(None, "aws")
    assert price == HourlyPrice(
        dollars=price.dollars if price else 0,
        kind=SPOT,
        source="SkyPilot catalogue, cheapest zone of us-east-1",
        date="2026-08-22",
        provider="aws",
        machine="p4d.24xlarge",
        zone="use1-az9",
    )
    assert price and 5 < price.dollars < 21.957
    assert why_unknown("aws") == ""


def test_aws_on_demand(service: Metadata) -> None:
    service.machine = {**AWS, "instance-life-cycle": "on-demand"}
    price = price_here(None, "aws")
    assert price is not None
    assert (price.kind, price.dollars, price.source) == (ON_DEMAND, 21.95764, "SkyPilot catalogue")


def test_a_users_table_knows_the_zone(
    service: Metadata, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue, "today", lambda: date(2026, 11, 17))
    (tmp_path / "vms.csv").write_text(CATALOGUE)
    found = read_catalogue(tmp_path / "vms.csv", "aws", date(2026, 11, 1))
    write_user_table(found.offers, tmp_path / "prices")
    service.machine = AWS
    price = price_or_reason(None, "aws", tmp_path / "prices")
    assert isinstance(price, HourlyPrice)
    assert (price.dollars, price.date) == (9.5, "2026-11-01")


def test_gcp(service: Metadata) -> None:
    service.machine = GCP
    price = price_here(None, "gcp")
    assert price is not None
    assert (price.dollars, price.kind, price.zone) == (3.6734, ON_DEMAND, "us-central1-a")
    service.machine = {**GCP, "scheduling/preemptible": "TRUE"}
    price = price_here(None, "gcp")
    assert price is not None
    assert (price.dollars, price.kind) == (2.4083, SPOT)
    assert price.source == "SkyPilot catalogue, median of the regions"


def test_gcp_does_not_name_attached_gpus(service: Metadata) -> None:
    service.machine = {**GCP, "machine-type": "projects/1/machineTypes/n1-standard-8"}
    assert price_here(None, "gcp") is None
    assert "no on-demand price of gcp's n1-standard-8" in why_unknown("gcp")


@pytest.mark.parametrize(
    ("priority", "kind", "dollars"),
    [("", ON_DEMAND, 3.673), ("Regular", ON_DEMAND, 3.673), ("Spot", SPOT, 0.4775)],
)
def test_azure(service: Metadata, priority: str, kind: str, dollars: float) -> None:
    service.machine = azure_answer(priority=priority)
    price = price_here(None, "azure")
    assert price is not None
    assert (price.kind, price.dollars, price.zone) == (kind, dollars, "eastus")


HOSTILE = {
    "control codes": "\x1b[2Jp4d",
    "long": "p" * 5000,
    "path": "../../etc/passwd",
    "empty": " ",
    "page": "<html>log in</html>",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_answer_is_no_price(service: Metadata, text: str) -> None:
    service.machine = {**AWS, "instance-type": text}
    assert price_here(None, "aws") is None
    assert why_unknown("aws").isprintable()
    assert len(why_unknown("aws")) < 600


@pytest.mark.parametrize("text", ["", "[]", "{", '{"vmSize": 3}', "null"])
def test_an_azure_answer_of_another_shape(service: Metadata, text: str) -> None:
    service.machine = {"/metadata/instance/compute?": text}
    assert price_here(None, "azure") is None


def test_without_a_provider_nothing_is_asked(
    service: Metadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spot_module, "DMI_ENTRIES", {"aws": ("sys_vendor", "no such vendor")})
    assert price_here(None, "auto") is None
    assert price_here(None, "off") is None
    assert service.asked == 0


def test_no_service_is_no_failure() -> None:
    """The URL of conftest.py is a port on which nothing listens."""
    assert price_here(None, "aws") is None
    assert "no valid answer" in why_unknown("aws")


def test_a_silent_service_takes_a_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of all requests holds where each single one is still within its own."""
    released = threading.Event()
    monkeypatch.setattr(module, "LONGEST_S", 0.05)
    monkeypatch.setitem(module.PROVIDERS, "aws", lambda service: released.wait() or None)
    answer = machine_here("aws")
    released.set()
    assert answer == "aws's metadata service does not answer within 0.05 s"


def test_a_service_that_accepts_and_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("STOKER_METADATA_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setattr(spot_module, "TIMEOUT_S", 0.1)
        assert price_here(None, "aws") is None


def test_a_damaged_table_is_a_reason(
    service: Metadata, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    folder = tmp_path / "stoker" / "prices"
    folder.mkdir(parents=True)
    (folder / "aws.csv").write_text("rubbish")
    service.machine = AWS
    assert price_here(None, "aws") is None
    assert "is damaged" in why_unknown("aws")


def test_the_price_in_words(service: Metadata, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spot_module, "DMI_ENTRIES", {})
    service.machine = {**AWS, "instance-life-cycle": "on-demand"}
    price = price_here(None, "aws")
    assert price is not None
    texts = [price.text(), replace(price, kind=SPOT, dollars=7.5129).text()]
    service.machine = {**AWS, "instance-type": "t3.large"}
    texts.append(why_unknown("aws"))
    service.machine = {**AWS, "instance-type": "../x"}
    texts.append(why_unknown("aws"))
    service.machine = {"instance-type": "p4d.24xlarge"}
    texts += [why_unknown("aws"), why_unknown("off"), why_unknown("auto")]
    check_golden("price_here", texts)
