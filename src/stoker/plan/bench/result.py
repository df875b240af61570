"""The result file of one machine: every row, and all that is needed to measure it again.

Invariants: the file is complete after each row, or is the one before. It holds the recipe of every
model, the fingerprint and the counts of the set, the machine, the versions and the price with its
source and date. Reading trusts nothing: types, sizes and ranges are checked, and a file whose
figures contradict each other is refused. Only `--trust-code` lets code from a file run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from stoker.commit import json_bytes, sha256_json, write_bytes
from stoker.errors import BadRequest, StokerError, is_readable
from stoker.host.plain_file import read_given
from stoker.plan.bench.cells import MOST_CELLS, BenchCell
from stoker.plan.bench.consistency import dollar_contradiction, epoch_contradiction, number
from stoker.plan.bench.process import CellLimits
from stoker.plan.bench.rows import MOST_REPEATS, BenchRow, cell_of_fields, row_of
from stoker.plan.bench.stored_fields import Fields
from stoker.price.hourly import ON_DEMAND, SPOT, STATED, HourlyPrice
from stoker.recipe.model_file import LARGEST_TEXT
from stoker.text import shown

KIND, FORMAT = "stoker bench", 1
MOST_BYTES = 32 << 20
MOST_STEPS = 1_000_000
MOST_KEYS = 500


@dataclass(frozen=True)
class DataFacts:
    """The set that was trained on."""

    path: str
    """Where it was: a hint for the reader, and nothing else."""
    fingerprint: str
    images: int
    """Of the training split: an epoch."""
    classes: int
    codec: str


@dataclass(frozen=True)
class StoredCode:
    """The text of a model of the user's own."""

    path: str
    text: str


@dataclass(frozen=True, kw_only=True)
class BenchResult:
    """Everything that a result file holds."""

    machine: str
    """A name for tables: what the user calls it, else its device."""
    created: str
    recipe_name: str
    recipes: Mapping[str, Mapping[str, Any]]
    """The recipe of each model, without the sizes and precision of a cell."""
    codes: Mapping[str, StoredCode]
    """The texts of models of the user's own, by model."""
    cells: tuple[BenchCell, ...]
    """In the order of measuring."""
    limits: CellLimits
    data: DataFacts
    environment: Mapping[str, Any]
    price: HourlyPrice | None
    rows: tuple[BenchRow, ...] = field(default=())

    @property
    def settings(self) -> dict[str, Any]:
        """What the figures depend on, besides the machine."""
        return {
            "recipes": {name: dict(values) for name, values in self.recipes.items()},
            "limits": asdict(self.limits),
            "fingerprint": self.data.fingerprint,
        }

    @property
    def config_hash(self) -> str:
        return sha256_json(json.loads(json.dumps(self.settings, sort_keys=True)))[:16]

    @property
    def dollars_per_hour(self) -> float | None:
        return self.price.dollars if self.price else None

    def missing(self) -> list[BenchCell]:
        """The cells without a row."""
        done = {row.cell for row in self.rows}
        return [cell for cell in self.cells if cell not in done]

    def with_row(self, row: BenchRow) -> BenchResult:
        return replace(self, rows=(*self.rows, row))

    def as_data(self) -> dict[str, Any]:
        rows = [row.as_data(self.data.images, self.dollars_per_hour) for row in self.rows]
        return {
            "kind": KIND,
            "format": FORMAT,
            "machine": self.machine,
            "created": self.created,
            "recipe_name": self.recipe_name,
            "recipes": {name: dict(values) for name, values in self.recipes.items()},
            "codes": {name: asdict(code) for name, code in self.codes.items()},
            "cells": [cell.as_data() for cell in self.cells],
            "limits": asdict(self.limits),
            "data": asdict(self.data),
            "environment": dict(self.environment),
            "price": asdict(self.price) if self.price else None,
            "config_hash": self.config_hash,
            "rows": rows,
        }


def write_result(path: Path, result: BenchResult) -> None:
    """Write a result, complete or not at all. Raises StokerError where the disk refuses it."""
    try:
        write_bytes(path, json_bytes(result.as_data()))
    except OSError as error:
        raise StokerError(f"cannot write {shown(str(path))}: {error.strerror}") from error


def read_result(path: Path) -> BenchResult:
    """The result of a file, which may come from anywhere. Raises BadRequest where it is none, or
    where its figures contradict each other."""
    name = shown(str(path))
    try:
        data = read_given(path, MOST_BYTES)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadRequest(f"cannot read {name}: {reason}") from error
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"{name} is not JSON: 'stoker bench train --out' writes it") from error
    top = Fields(value, name)
    if not isinstance(value, dict) or value.get("kind") != KIND:
        raise BadRequest(f"{name} was not written by 'stoker bench train'")
    if not is_readable(name, value.get("format"), FORMAT):
        raise top.wrong("format", "a whole number from 1")
    result = result_of(top)
    refuse_contradictions(result, value["rows"], name)
    return result


def result_of(top: Fields) -> BenchResult:
    cells = tuple(
        cell_of_fields(Fields(cell, f"{top.place}: cell {n}"))
        for n, cell in enumerate(top.items("cells", MOST_CELLS), 1)
    )
    rows = tuple(
        row_of(Fields(row, f"{top.place}: row {n}"))
        for n, row in enumerate(top.items("rows", MOST_CELLS), 1)
    )
    if len({row.cell for row in rows}) < len(rows):
        raise BadRequest(f"{top.place} has two rows for one cell: remove one")
    if any(row.cell not in cells for row in rows):
        raise BadRequest(f"{top.place} has a row for a cell that it does not plan: remove it")
    recipes = recipes_of(top.table("recipes"))
    if any(cell.model not in recipes for cell in cells):
        raise BadRequest(f"{top.place} lacks the recipe of a model that it measures")
    price = top.table_or_none("price")
    return BenchResult(
        machine=top.text("machine", 200),
        created=top.text("created", 40),
        recipe_name=top.text("recipe_name", 200),
        recipes=recipes,
        codes=codes_of(top.table("codes")),
        cells=cells,
        limits=limits_of(top.table("limits")),
        data=data_of(top.table("data")),
        environment=top.table("environment").plain(),
        price=price_of(price) if price else None,
        rows=rows,
    )


def recipes_of(fields: Fields) -> dict[str, dict[str, Any]]:
    """Plain values by model; they are checked as recipes when they are used."""
    recipes = {}
    for name in list(fields.plain())[: MOST_CELLS + 1]:
        values = fields.table(name).plain()
        if len(values) > MOST_KEYS:
            raise fields.wrong(name, "a recipe")
        recipes[name] = values
    return recipes


def codes_of(fields: Fields) -> dict[str, StoredCode]:
    codes = {}
    for name in fields.plain():
        code = fields.table(name)
        codes[name] = StoredCode(code.text("path", 4096), code.text("text", LARGEST_TEXT))
    return codes


def limits_of(fields: Fields) -> CellLimits:
    return CellLimits(
        fields.whole("steps", 1, MOST_STEPS),
        fields.whole("repeats", 1, MOST_REPEATS),
        fields.number("time_limit_s", 0, 1e7),
        fields.number("memory_gb", 0, 1e6),
    )


def data_of(fields: Fields) -> DataFacts:
    return DataFacts(
        fields.text("path", 4096),
        fields.text("fingerprint", 200),
        fields.whole("images", 1),
        fields.whole("classes", 1),
        fields.text("codec", 40),
    )


def price_of(fields: Fields) -> HourlyPrice:
    return HourlyPrice(
        dollars=fields.number("dollars", 0, 1e6),
        kind=fields.choice("kind", (STATED, ON_DEMAND, SPOT)),
        source=fields.text("source", 300),
        date=fields.text("date", 40),
        provider=fields.text("provider", 200),
        machine=fields.text("machine", 200),
        zone=fields.text("zone", 200),
    )


def refuse_contradictions(
    result: BenchResult, stored: Sequence[Mapping[str, Any]], name: str
) -> None:
    """Raise BadRequest where stored figures do not follow from each other, and name the right
    one."""
    for row, data in zip(result.rows, stored, strict=True):
        if row.speed is None:
            continue
        fields = Fields(data["figures"], f"{name}: {row.cell.label()}")
        reasons = row_contradictions(result, row, fields)
        if reason := next(filter(None, reasons), ""):
            raise BadRequest(f"{fields.place}: {reason}; measure again, or correct the file")


def row_contradictions(result: BenchResult, row: BenchRow, fields: Fields) -> list[str]:
    images_per_s = fields.number("images_per_s", 1e-9)
    epoch_s = fields.number("seconds_per_epoch")
    dollars = fields.number_or_none("dollars_per_epoch")
    price = result.dollars_per_hour
    median = row.speed.median if row.speed else 0.0
    reasons = [
        ""
        if abs(images_per_s - median) <= 1e-6 * median
        else f"{number(images_per_s)} images/s is not the median of its repeats, {number(median)}",
        epoch_contradiction(images_per_s, epoch_s, result.data.images),
    ]
    if (dollars is None) != (price is None):
        reasons.append("dollars an epoch and a price go together, and one of them is missing")
    elif dollars is not None and price is not None:
        reasons.append(dollar_contradiction(price, epoch_s, dollars))
    return reasons
