"""A SkyPilot catalogue, a CSV that anyone may have written, becomes a price table.

Invariants: the file is untrusted: its size, rows and cells have limits, and nothing of it is run. A
row that is not a GPU machine is left out; a row that makes no sense ends the reading. GPU names,
counts and memories are corrected as in the package's own table.

GCP's catalogue lists machines and GPUs apart: a price is the sum of both in one zone, for the
machines of the package's table (n1-standard-8+1xT4 is n1-standard-8 with one T4).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from stoker.errors import BadRequest
from stoker.price.corrections import MachineFacts, corrected, gpu_name, with_linear_memory
from stoker.price.offer import Offer
from stoker.price.table import (
    MOST_BYTES,
    MOST_ROWS,
    PROVIDER,
    WrongTable,
    number,
    packaged_offers,
    today,
)
from stoker.text import one_line, shown

SOURCE = "SkyPilot catalogue"
COLUMNS = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "SpotPrice", "Region")
"""Columns that a catalogue must have. It may have vCPUs, MemoryGiB, AvailabilityZone, GpuInfo."""
MOST_CATALOGUE_BYTES, MOST_CATALOGUE_ROWS = 4 * MOST_BYTES, 10 * MOST_ROWS
MOST_CHARACTERS = 100
GPU_MEMORY = re.compile(r"'SizeInMiB': (\d{3,7})\b")
ZERO = re.compile(r"0+(\.0*)?")
COMBINED = re.compile(r"(.+)\+\d+x.+")


@dataclass(frozen=True)
class CatalogueRow:
    """A row of a catalogue, with its texts and numbers checked."""

    machine: str
    gpu: str
    gpus: float
    vcpus: float
    memory_gib: float
    gpu_memory_gib: float | None
    price: float | None
    spot: float | None
    region: str
    zone: str


def read_catalogue(path: Path, provider: str, day: date) -> list[Offer]:
    """The GPU machines of a catalogue in each zone, sorted. Raises BadRequest where the file cannot
    be read, is not a catalogue, or has no GPU machine."""
    name = shown(str(path))
    if not PROVIDER.fullmatch(provider):
        raise BadRequest(f"--provider must be a name such as aws, not '{shown(provider)}'")
    if day > today():
        raise BadRequest(f"--date {day} is in the future: give the day of the catalogue")
    try:
        if not path.is_file():
            raise BadRequest(f"no file at {name}: --refresh needs a SkyPilot catalogue")
        if path.stat().st_size > MOST_CATALOGUE_BYTES:
            raise WrongTable(f"it has more than {MOST_CATALOGUE_BYTES >> 20} MB")
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = list(lines_of(csv.DictReader(file, strict=True)))
    except (OSError, UnicodeDecodeError, csv.Error, WrongTable) as error:
        why = one_line(error.strerror if isinstance(error, OSError) else str(error))
        raise BadRequest(
            f"{name} is not a SkyPilot catalogue: {shown(why)}; take "
            f"catalogs/v8/{provider}/vms.csv of github.com/skypilot-org/skypilot-catalog"
        ) from error
    offers = offers_of(lines, provider, day)
    if not offers:
        raise BadRequest(f"{name} has no GPU machine with a price")
    return offers


def lines_of(reader: csv.DictReader[str]) -> Iterator[CatalogueRow]:
    """The rows. Raises WrongTable for a row that is none, or where there are too many."""
    missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
    if missing:
        raise WrongTable(f"it has no column {missing[0]}")
    for count, row in enumerate(reader):
        if count == MOST_CATALOGUE_ROWS:
            raise WrongTable(f"it has more than {MOST_CATALOGUE_ROWS:,} rows")
        if row.get("InstanceType") or row.get("AcceleratorName"):
            yield line_of(row, f"line {reader.line_num}")


def line_of(row: Mapping[str, str | None], where: str) -> CatalogueRow:
    texts = {name: (text or "").strip() for name, text in row.items() if name is not None}
    for name in ("InstanceType", "AcceleratorName", "Region", "AvailabilityZone"):
        text = texts.get(name, "")
        if len(text) > MOST_CHARACTERS or not text.isprintable():
            raise WrongTable(f"{where}: {name} is not a name")

    def value(name: str) -> float | None:
        text = texts.get(name, "")
        if text == "nan" or ZERO.fullmatch(text):  # not offered, or a machine without GPUs
            return None
        return number(text, f"{where}: {name}", priced=name.endswith("Price"))

    memory = GPU_MEMORY.search(texts.get("GpuInfo", ""))
    return CatalogueRow(
        machine=texts["InstanceType"],
        gpu=texts["AcceleratorName"],
        gpus=value("AcceleratorCount") or 0.0,
        vcpus=value("vCPUs") or 0.0,
        memory_gib=value("MemoryGiB") or 0.0,
        gpu_memory_gib=round(int(memory[1]) / 1024) or None if memory else None,
        price=value("Price"),
        spot=value("SpotPrice"),
        region=texts["Region"],
        zone=texts.get("AvailabilityZone", ""),
    )


def offers_of(lines: list[CatalogueRow], provider: str, day: date) -> list[Offer]:
    """The offers of GPU machines that have a price, sorted by machine, region and zone."""
    if any(line.gpu and not line.machine for line in lines):
        lines = list(machines_with_gpus(lines, provider))
    facts: dict[str, MachineFacts] = {}
    for line in lines:
        if line.machine and line.gpu and line.gpus and line.vcpus and line.memory_gib:
            facts.setdefault(line.machine, corrected(facts_of(line, provider)))
    machines = {each.machine: each for each in with_linear_memory(list(facts.values()))}
    offers = {
        (line.machine, line.region, line.zone): offer_of(line, machines[line.machine], day)
        for line in lines
        if line.machine in machines and (line.price or line.spot) and line.region
    }
    return [offers[key] for key in sorted(offers) if offers[key].gpus >= 1]


def facts_of(line: CatalogueRow, provider: str) -> MachineFacts:
    return MachineFacts(
        provider=provider,
        machine=line.machine,
        gpu=line.gpu,
        gpus=line.gpus,
        gpu_memory_gib=line.gpu_memory_gib,
        vcpus=line.vcpus,
        memory_gib=line.memory_gib,
    )


def offer_of(line: CatalogueRow, facts: MachineFacts, day: date) -> Offer:
    return Offer(
        provider=facts.provider,
        machine=facts.machine,
        gpu=facts.gpu,
        gpus=int(facts.gpus),
        gpu_memory_gib=facts.gpu_memory_gib,
        vcpus=facts.vcpus,
        memory_gib=facts.memory_gib,
        on_demand=line.price,
        on_demand_region=line.region,
        spot=line.spot,
        spot_median=None,
        region=line.region,
        zone=line.zone,
        source=SOURCE,
        date=day.isoformat(),
        correction=facts.correction,
    )


def machines_with_gpus(lines: list[CatalogueRow], provider: str) -> Iterator[CatalogueRow]:
    """The package's machines of a provider whose catalogue prices GPUs apart, in each zone that has
    both parts; and the machines that have their GPUs already."""
    yield from (line for line in lines if line.machine and line.gpu)
    gpus: dict[tuple[str, float, str], list[CatalogueRow]] = {}
    for line in lines:
        if line.gpu and not line.machine:
            key = (gpu_name(line.gpu, provider), line.gpus, line.zone)
            gpus.setdefault(key, []).append(line)
    bare: dict[str, list[CatalogueRow]] = {}
    for line in lines:
        if line.machine and not line.gpu:
            bare.setdefault(line.machine, []).append(line)
    for known in packaged_offers():
        parts = COMBINED.fullmatch(known.machine)
        for line in bare.get(parts[1] if parts else known.machine, ()):
            alike = gpus.get((known.gpu, float(known.gpus), line.zone))
            if known.provider == provider and alike:
                gpu = gpu_of(known.machine, alike)
                yield CatalogueRow(
                    machine=known.machine,
                    gpu=gpu.gpu,
                    gpus=gpu.gpus,
                    vcpus=line.vcpus,
                    memory_gib=line.memory_gib,
                    gpu_memory_gib=gpu.gpu_memory_gib or known.gpu_memory_gib,
                    price=total(line.price, gpu.price),
                    spot=total(line.spot, gpu.spot),
                    region=line.region,
                    zone=line.zone,
                )


def gpu_of(machine: str, gpus: list[CatalogueRow]) -> CatalogueRow:
    """Of GPUs with one name, the one that a machine has: H100-MEGA for a3-megagpu-8g."""
    own = [gpu for gpu in gpus if gpu.gpu.lower().rpartition("-")[2] in machine.lower()]
    return own[0] if own else min(gpus, key=lambda gpu: len(gpu.gpu))


def total(machine: float | None, gpu: float | None) -> float | None:
    return None if machine is None or gpu is None else round(machine + gpu, 5)
