"""Price tables as files: the package's own, and the user's newer ones.

Invariants: a table is a CSV with the columns of COLUMNS; each row has its source and date. A user's
table is named by its provider (aws.csv) and is untrusted: it is read as a whole or refused. A price
older than LONGEST_AGE_DAYS is marked wherever it is shown.
"""

from __future__ import annotations

import csv
import io
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, date, datetime
from functools import cache
from pathlib import Path

from stoker.commit import write_bytes
from stoker.errors import BadRequest, StokerError
from stoker.price.corrections import TABLES
from stoker.price.offer import Offer
from stoker.text import one_line, shown

LONGEST_AGE_DAYS = 90
SKY_FOLDER = "~/.sky/catalogs/v8"
"""Where SkyPilot keeps the catalogues that it has fetched."""
REFRESH = f"stoker prices --refresh {SKY_FOLDER}"
MOST_BYTES, MOST_ROWS, MOST_CHARACTERS = 32 << 20, 200_000, 300
HIGHEST_PRICE = 10_000.0
"""Dollars an hour: more is a mistake in a table."""
COLUMNS = [spec.name for spec in fields(Offer)]
NUMBERS = {"gpus", "gpu_memory_gib", "vcpus", "memory_gib"}
PRICES = {"on_demand", "on_demand_median", "spot", "spot_median"}
NEEDED = ("provider", "machine", "gpu", "gpus", "vcpus", "memory_gib", "source", "date")
PROVIDER = re.compile(r"[a-z][a-z0-9-]{0,30}")


class NoFolder(BadRequest):
    """There is no place for the user's tables."""


class WrongTable(ValueError):
    """Not a price table; the message says why."""


def user_folder() -> Path:
    """Where the user's tables are: below XDG_DATA_HOME, or ~/.local/share. Raises NoFolder where a
    user without a name, as in some containers, has neither."""
    home = os.environ.get("XDG_DATA_HOME", "")
    try:
        base = Path(home) if Path(home).is_absolute() else Path.home() / ".local" / "share"
    except RuntimeError as error:
        raise NoFolder("this user has no home folder: set HOME or XDG_DATA_HOME") from error
    return base / "stoker" / "prices"


@cache
def packaged_offers() -> tuple[Offer, ...]:
    return tuple(parse_table((TABLES / "machines.csv").read_bytes()))


def user_offers(folder: Path | None = None, only: str = "[!.]*") -> dict[str, list[Offer]]:
    """The user's tables by provider, or that of one. Raises BadRequest where one cannot be read."""
    try:
        paths = sorted((folder or user_folder()).glob(f"{only}.csv"))
    except NoFolder:
        return {}
    return {path.stem: read_user_table(path) for path in paths}


def read_user_table(path: Path) -> list[Offer]:
    """The offers of a user's table. Raises BadRequest, with what to do, where it is damaged."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise WrongTable(f"more than {MOST_BYTES >> 20} MB")
        offers = parse_table(path.read_bytes())
        if not offers or {offer.provider for offer in offers} != {path.stem}:
            raise WrongTable(f"its rows are not {path.stem}'s")
        if len({offer.date for offer in offers}) > 1:
            raise WrongTable("its rows have several dates")
    except (OSError, WrongTable) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise BadRequest(
            f"the price table {shown(str(path))} is damaged: {why}; 'rm {shown(str(path))}' "
            f"removes it, 'stoker prices --refresh FILE --provider {shown(path.stem)}' replaces it"
        ) from error
    return offers


def parse_table(data: bytes) -> list[Offer]:
    """The offers of a table. Raises WrongTable where a row is not one."""
    try:
        reader = csv.DictReader(io.StringIO(data.decode(), newline=""), strict=True)
        if reader.fieldnames != COLUMNS:
            raise WrongTable("its first line does not name the columns of a price table")
        offers: list[Offer] = []
        for row in reader:
            if len(offers) == MOST_ROWS:
                raise WrongTable(f"more than {MOST_ROWS:,} rows")
            offers.append(parse_row(row, reader.line_num))
    except (UnicodeDecodeError, csv.Error) as error:
        raise WrongTable(one_line(str(error))) from error
    return offers


def parse_row(row: Mapping[str | None, str | None], line: int) -> Offer:
    texts: dict[str, str] = {}
    for name, text in row.items():
        if name is None or text is None:
            raise WrongTable(f"line {line} has not {len(COLUMNS)} columns")
        if len(text) > MOST_CHARACTERS or not text.isprintable():
            raise WrongTable(f"line {line}: {name} is not a short text")
        texts[name] = text
    if missing := next((name for name in NEEDED if not texts[name]), None):
        raise WrongTable(f"line {line} has no {missing}")
    values: dict[str, object] = dict(texts)
    for name in (*NUMBERS, *PRICES):
        values[name] = number(texts[name], f"line {line}: {name}", priced=name in PRICES)
    values["gpus"] = whole(texts["gpus"], f"line {line}: gpus")
    if parse_day(texts["date"]) is None:
        raise WrongTable(f"line {line}: date must be a day such as 2026-08-22")
    if not PROVIDER.fullmatch(texts["provider"]):
        raise WrongTable(f"line {line}: provider must be a name such as aws")
    return Offer(**values)  # type: ignore[arg-type]


def number(text: str, name: str, *, priced: bool = False) -> float | None:
    """The number of a cell, None for an empty one. Raises WrongTable where it is none, or out of
    range."""
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= (HIGHEST_PRICE if priced else 1e6):
        most = f" and at most {HIGHEST_PRICE:,.0f}" if priced else ""
        raise WrongTable(f"{name} must be a number above 0{most}")
    return value


def whole(text: str, name: str) -> int:
    value = number(text, name)
    if value is None or value != int(value):
        raise WrongTable(f"{name} must be a whole number")
    return int(value)


def table_bytes(offers: Iterable[Offer]) -> bytes:
    """A table as the bytes of a CSV. The same offers give the same bytes."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([cell(getattr(offer, name)) for name in COLUMNS] for offer in offers)
    return text.getvalue().encode()


def cell(value: str | float | None) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return f"{value:.5f}".rstrip("0").rstrip(".")


def write_user_table(offers: Sequence[Offer], folder: Path | None = None) -> Path:
    """Put the offers of one provider into the user's folder; returns the file. Raises StokerError
    where it cannot be written."""
    path = (folder or user_folder()) / f"{offers[0].provider}.csv"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, table_bytes(offers))
    except OSError as error:
        raise StokerError(f"cannot write {shown(str(path))}: {error.strerror}") from error
    return path


def parse_day(text: str) -> date | None:
    """The day of a text such as 2026-08-22; None where it is not one."""
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", text, re.ASCII):
        return None
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


def today() -> date:
    return datetime.now(UTC).date()


def age_days(day: str, now: date | None = None) -> int:
    """The whole days since the day of a price; 0 for a day to come."""
    then = parse_day(day)
    return max(0, ((now or today()) - then).days) if then else 0


def is_old(day: str, now: date | None = None) -> bool:
    return age_days(day, now) > LONGEST_AGE_DAYS
