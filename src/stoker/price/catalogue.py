"""SkyPilot catalogues, CSV files that anyone may have written, become price tables.

Invariants: a file is untrusted: its size, rows and cells have limits, and nothing of it is run. A
row that is not a GPU machine is left out; a row that makes no sense is left out and counted. GPU
names, counts and memories are corrected as in the package's own table. A table is dated by its
file, which cannot hold prices of a later day.

GCP's catalogue lists machines and GPUs apart: a price is the sum of both in one zone, for the
machines of the package's table (n1-standard-8+1xT4 is n1-standard-8 with one T4).
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from stoker.errors import BadRequest
from stoker.host.plain_file import NotPlain, open_plain
from stoker.price.corrections import MachineFacts, corrected, gpu_name, with_linear_memory
from stoker.price.offer import Offer
from stoker.price.table import (
    MOST_BYTES,
    MOST_ROWS,
    PROVIDER,
    SKY_FOLDER,
    WrongTable,
    number,
    packaged_offers,
    today,
)
from stoker.text import one_line, shown

SOURCE = "SkyPilot catalogue"
COLUMNS = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "SpotPrice", "Region")
"""Columns that a catalogue must have. It may have vCPUs, MemoryGiB, AvailabilityZone, GpuInfo."""
FILES = ("vms.csv", "vms.csv.gz")
"""A provider's catalogue, in the folder that bears its name."""
MOST_CATALOGUE_BYTES, MOST_CATALOGUE_ROWS = 4 * MOST_BYTES, 10 * MOST_ROWS
MOST_FOLDERS = 200
MOST_SKIPPED = 0.5
"""The share of rows without sense above which a file is none of SkyPilot's."""
MOST_CHARACTERS = 100
FIRST_DAY = date(2022, 1, 1)
"""Before SkyPilot's first catalogue: a file that is older says nothing about its prices."""
GPU_MEMORY = re.compile(r"['\"]SizeInMiB['\"]: (\d{1,7})\b")
LEAST_MIB = 1000
"""No GPU has less memory than this."""
ZERO = re.compile(r"0+(\.0*)?")
COMBINED = re.compile(r"(.+)\+\d+x.+")
WHERE = f"such as {SKY_FOLDER}"


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


class Refused(BadRequest):
    """A file that is no catalogue; the others of its folder are read all the same."""


@dataclass(frozen=True)
class Catalogue:
    """What one file holds."""

    provider: str
    offers: list[Offer]
    """The GPU machines in each zone, sorted; empty where there is none with a price."""
    day: date
    rows: int
    skipped: int
    """Rows that make no sense."""
    why: str
    """What is wrong with the first of those."""


def catalogue_files(place: Path, provider: str = "") -> dict[str, Path]:
    """The files of a folder that has one folder for each provider, by provider; that of `provider`
    alone where it is named. `place` may also be one file, or the folder of one provider. Raises
    BadRequest where there is none."""
    name = shown(str(place))
    if provider and not PROVIDER.fullmatch(provider):
        raise BadRequest(f"--provider must be a name such as aws, not '{shown(provider)}'")
    try:
        if not place.exists():
            raise BadRequest(f"nothing at {name}: --refresh needs SkyPilot's catalogues, {WHERE}")
        if own := catalogue_in(place) if place.is_dir() else place:
            provider = provider or (place.resolve().name if place.is_dir() else "")
            if not provider:
                raise BadRequest(f"--refresh {name} needs --provider NAME: whose catalogue is it?")
            return {provider: own}
        folders = sorted(each for each in place.iterdir() if each.is_dir())
        if len(folders) > MOST_FOLDERS:
            raise BadRequest(f"{name} has {len(folders):,} folders: name SkyPilot's, {WHERE}")
        files = {each.name: file for each in folders if (file := catalogue_in(each))}
    except OSError as error:
        raise BadRequest(f"cannot read {name}: {error.strerror}") from error
    if provider:
        files = {name: file for name, file in files.items() if name == provider}
    if not files:
        what = f"{shown(provider or 'PROVIDER')}/{FILES[0]}"
        raise BadRequest(f"{name} has no {what}: name the folder of SkyPilot's catalogues, {WHERE}")
    return files


def catalogue_in(folder: Path) -> Path | None:
    return next((folder / name for name in FILES if (folder / name).exists()), None)


def read_catalogue(path: Path, provider: str, stated: date | None = None) -> Catalogue:
    """The GPU machines of a catalogue. `stated` is the day of its prices, where that is earlier
    than the file's. Raises Refused where the file cannot be read, is not a catalogue, or cannot be
    of that day."""
    name = shown(str(path))
    if not PROVIDER.fullmatch(provider):
        raise Refused(f"{name}: its folder is not named after a provider, such as aws")
    try:
        written = file_day(path)
        reader = csv.DictReader(io.StringIO(text_of(path), newline=""), strict=True)
        rows = list(lines_of(reader))
        lines = [row for row in rows if isinstance(row, CatalogueRow)]
        wrong = [row for row in rows if isinstance(row, str)]
        if len(wrong) > MOST_SKIPPED * len(rows):
            raise WrongTable(f"{len(wrong):,} of {len(rows):,} rows make no sense: {wrong[0]}")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error, WrongTable) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise Refused(
            f"{name} is not a SkyPilot catalogue: {shown(one_line(why))}; take "
            f"catalogs/v8/{provider}/vms.csv of github.com/skypilot-org/skypilot-catalog"
        ) from error
    day = stated or written
    if day > written + timedelta(days=1):  # a day: the user's clock may be in another time zone
        raise Refused(f"--date {day} is after the day on which {name} was written, {written}")
    if day < FIRST_DAY:
        raise Refused(f"{name} is dated {day}: state the day of its prices with --date DAY")
    offers, first = offers_of(lines, provider, day), wrong[0] if wrong else ""
    return Catalogue(provider, offers, day, len(rows), len(wrong), first)


def file_day(path: Path) -> date:
    """The day on which a file was written, today at most. When a download fails, SkyPilot sets the
    time of the old file to now (sky/catalog/common.py); the checksum that it keeps of each file has
    the time of the last download. Raises OSError."""
    checksum = path.parent.parent / ".meta" / path.parent.name / f"{path.name}.md5"
    written_s = path.stat().st_mtime
    if checksum.is_file():
        written_s = min(written_s, checksum.stat().st_mtime)
    written_s = max(0.0, min(written_s, time.time()))  # a file may have any year
    return min(datetime.fromtimestamp(written_s, UTC).date(), today())


def text_of(path: Path) -> str:
    """The text of a catalogue, which may be compressed. Raises WrongTable where it is no file or
    too long, and what reading raises."""
    try:
        with open_plain(path) as file:
            whole = gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file
            data = whole.read(MOST_CATALOGUE_BYTES + 1)
    except NotPlain as error:
        raise WrongTable(str(error)) from error
    if len(data) > MOST_CATALOGUE_BYTES:
        raise WrongTable(f"it has more than {MOST_CATALOGUE_BYTES >> 20} MB")
    return data.decode("utf-8-sig")


def lines_of(reader: csv.DictReader[str]) -> Iterator[CatalogueRow | str]:
    """The rows of machines and GPUs; of one that makes no sense, what is wrong with it. Raises
    WrongTable where columns are missing, or where there are too many rows."""
    missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
    if missing:
        raise WrongTable(f"it has no column {missing[0]}")
    for count, row in enumerate(reader):
        if count == MOST_CATALOGUE_ROWS:
            raise WrongTable(f"it has more than {MOST_CATALOGUE_ROWS:,} rows")
        if row.get("InstanceType") or row.get("AcceleratorName"):
            try:
                yield line_of(row, f"line {reader.line_num}")
            except WrongTable as error:
                yield str(error)


def line_of(row: Mapping[str, str | None], where: str) -> CatalogueRow:
    texts = {name: (text or "").strip() for name, text in row.items() if name is not None}
    for name in ("InstanceType", "AcceleratorName", "Region", "AvailabilityZone"):
        text = texts.get(name, "")
        if len(text) > MOST_CHARACTERS or not text.isprintable():
            raise WrongTable(f"{where}: {name} is not a name")

    def value(name: str) -> float | None:
        text = texts.get(name, "")
        if ZERO.fullmatch(text):  # not offered, without GPUs, or in the price of the GPUs
            return 0.0
        text = "" if text == "nan" else text
        return number(text, f"{where}: {name}", priced=name.endswith("Price"))

    return CatalogueRow(
        machine=texts["InstanceType"],
        gpu=texts["AcceleratorName"],
        gpus=value("AcceleratorCount") or 0.0,
        vcpus=value("vCPUs") or 0.0,
        memory_gib=value("MemoryGiB") or 0.0,
        gpu_memory_gib=memory_of_gpu(texts.get("GpuInfo", "")),
        price=value("Price"),
        spot=value("SpotPrice"),
        region=texts["Region"],
        zone=texts.get("AvailabilityZone", ""),
    )


def memory_of_gpu(info: str) -> float | None:
    """GiB of one GPU, as a catalogue describes it; None where it does not. RunPod and Shadeform
    write GiB under the name of MiB."""
    text = GPU_MEMORY.search(info)
    size = int(text[1]) if text else 0
    return float(size if size < LEAST_MIB else round(size / 1024)) or None


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
    memory = line.gpu_memory_gib
    if provider == "vast" and memory:  # the sum of all GPUs
        memory = round(memory / max(line.gpus, 1))
    return MachineFacts(
        provider=provider,
        machine=line.machine,
        gpu=line.gpu,
        gpus=line.gpus,
        gpu_memory_gib=memory,
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
        on_demand=line.price or None,
        on_demand_region=line.region,
        spot=line.spot or None,
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
