"""One benchmark on this machine: the cells without a row, one after the other.

Invariants: the result file is written after each row, so a kill loses the cell that was running and
nothing else. The same command goes on with the missing cells. A file of other settings, of another
set or of another machine is never mixed with new rows: it is refused, and what differs is named.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stoker.data.dataset import Dataset
from stoker.errors import BadRequest
from stoker.measure.environment import as_data, environment_here
from stoker.plan.bench.cells import BenchCell
from stoker.plan.bench.process import CellLimits, run_cell
from stoker.plan.bench.result import (
    BenchResult,
    DataFacts,
    StoredCode,
    read_result,
    write_result,
)
from stoker.plan.bench.rows import BenchRow
from stoker.price.hourly import HourlyPrice
from stoker.recipe.model_file import ModelCode, digest_of, function_of, is_own
from stoker.recipe.recipe import Recipe
from stoker.recipe.resolve import recorded_recipe
from stoker.text import shown

MACHINE_KEYS = ("processor", "cores", "gpus", "driver", "cuda", "cudnn", "versions")
"""What a figure depends on, of an environment. Memory differs a little at each start."""


@dataclass(frozen=True)
class ModelRecipe:
    """The recipe of one model, and its text where it is the user's own."""

    recipe: Recipe
    code: ModelCode | None


def data_facts(dataset: Dataset) -> DataFacts:
    return DataFacts(
        dataset.place,
        dataset.fingerprint,
        dataset.images("train"),
        len(dataset.classes),
        dataset.codec,
    )


def machine_facts() -> dict[str, Any]:
    """This machine and its software, as plain data that JSON gives back unchanged."""
    facts = as_data(environment_here([]))
    facts = {name: value for name, value in facts.items() if name != "rooms"}
    facts["gpus"] = [{**gpu, "capability": list(gpu["capability"])} for gpu in facts["gpus"]]
    return {**facts, "host": socket.gethostname()}


def machine_name(environment: Mapping[str, Any]) -> str:
    """A name for tables: the GPUs, else the processor with its cores."""
    if gpus := environment["gpus"]:
        return f"{len(gpus)} x {gpus[0]['name']}"
    return f"{environment['processor']}, {environment['cores']} cores"


def planned(
    dataset: Dataset,
    cells: Sequence[BenchCell],
    models: Mapping[str, ModelRecipe],
    limits: CellLimits,
    labels: tuple[str, str],
    price: HourlyPrice | None,
) -> BenchResult:
    """A result without rows. `labels`: the name of the machine, empty for its device, and that of
    the recipe."""
    environment = machine_facts()
    return BenchResult(
        machine=labels[0] or machine_name(environment),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        recipe_name=labels[1],
        recipes={name: one.recipe.values() for name, one in models.items()},
        codes={
            name: StoredCode(str(one.code.path), one.code.text)
            for name, one in models.items()
            if one.code
        },
        cells=tuple(cells),
        limits=limits,
        data=data_facts(dataset),
        environment=environment,
        price=price,
    )


def continued(path: Path, new: BenchResult) -> BenchResult:
    """The new plan with the rows that a file already has; cells of the file stay in it. Raises
    BadRequest where the file is of other settings, another set or another machine."""
    if not path.exists():
        return new
    old = read_result(path)
    if reasons := differences(old, new):
        raise BadRequest(
            f"{shown(str(path))} holds rows with another {reasons[0]}: name another --out, or "
            "remove the file"
        )
    cells = (*old.cells, *(cell for cell in new.cells if cell not in old.cells))
    recipes, codes = {**old.recipes, **new.recipes}, {**old.codes, **new.codes}
    return replace(
        new, created=old.created, rows=old.rows, cells=cells, recipes=recipes, codes=codes
    )


def differences(old: BenchResult, new: BenchResult) -> list[str]:
    """What keeps the rows of two results apart, the most important first."""
    reasons = []
    if old.data.fingerprint != new.data.fingerprint:
        reasons.append(f"set (fingerprint {shown(old.data.fingerprint)[:16]})")
    for model in sorted(old.recipes.keys() & new.recipes.keys()):
        before, now = old.recipes[model], new.recipes[model]
        keys = sorted(key for key in now if before.get(key) != now[key] and key != "model_file")
        reasons += [f"{key} of {shown(model)}" for key in keys]
    for key in ("steps", "repeats", "memory_gb"):
        before, now = getattr(old.limits, key), getattr(new.limits, key)
        if before != now:
            reasons.append(f"number of {key} ({before:g}, now {now:g})")
    return reasons + environment_differences(old.environment, new.environment)


def environment_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What of the machine and its software differs, in words."""
    reasons = []
    for key in MACHINE_KEYS:
        before, now = old.get(key), new.get(key)
        if key == "versions" and isinstance(before, dict) and isinstance(now, dict):
            names = sorted(name for name in now if before.get(name) != now[name])
            reasons += [f"{n} ({shown(str(before.get(n)))}, now {now[n]})" for n in names]
        elif before != now:
            reasons.append(f"{key} ({shown(str(before))[:80]}, now {shown(str(now))[:80]})")
    return reasons


def models_of(result: BenchResult) -> dict[str, ModelRecipe]:
    """The recipes of a result. Raises BadRequest where a stored one is none, is of another model,
    or names code that the file does not hold."""
    models = {}
    for name, values in result.recipes.items():
        recipe = recorded_recipe(values, f"the recipe of {shown(name)} in the file")
        if recipe.model != name:
            raise BadRequest(
                f"the recipe of {shown(name)} in the file is one of {shown(recipe.model)}"
            )
        code, stored = None, result.codes.get(name)
        if is_own(name):
            if stored is None or digest_of(stored.text) != recipe.model_code:
                raise BadRequest(f"the file does not hold the code of {shown(name)}")
            code = ModelCode(Path(stored.path), function_of(name), stored.text)
        models[name] = ModelRecipe(recipe, code)
    return models


def run_missing(
    path: Path, result: BenchResult, wanted: Sequence[BenchCell]
) -> Iterator[tuple[BenchRow, BenchResult]]:
    """Measure the wanted cells that have no row; yields each row with the result so far, which is
    on disk then. Raises what a stop request raises, and StokerError for a full disk."""
    models = models_of(result)
    write_result(path, result)
    missing = set(result.missing())
    for cell in wanted:
        if cell in missing:
            model = models[cell.model]
            data = Path(result.data.path)
            row = run_cell(data, cell, model.recipe, model.code, result.limits)
            result = result.with_row(row)
            write_result(path, result)
            yield row, result
