"""What a cell trains on and from, frozen when it is planned.

    places.json         where the packed set with a fingerprint, and the weights with a hash, are
    options.json        how the latest command wants cells to run: keys that change no result
    models/DIGEST.py    the text of a model of the user's own

Invariants: a cell names its images, weights and code by their hashes. Where they are may change;
what they are may not: a cell whose set or weights have other bytes is refused. Code is copied when
a sweep is planned, by a user who named it, and only the copy with the planned hash is run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from stoker.commit import sha256_file, write_json
from stoker.errors import BadRequest
from stoker.fleet.grid.directory import Grid
from stoker.locks.files import DiskFiles, parsed
from stoker.recipe.model_file import function_of, is_own, read_code
from stoker.recipe.recipe import SPECS, Recipe
from stoker.recipe.resolve import Resolved, recorded_recipe
from stoker.text import shown
from stoker.train.model.own_code import own_code_of, trust
from stoker.train.model.weight_places import find_weights

COMMAND = ("{python}", "-P", "-m", "stoker.study.cell")
"""What runs a cell of a study."""
PLACES, OPTIONS = "places.json", "options.json"
RESULT_KEYS = {"micro_batch", "eval_batch_size", "eval_every", "patience", "target"}
"""Keys that a run may change when it resumes, and on which the result of a cell depends."""
AGAIN = "start the same command again"


@cache
def weights_hash(path: str) -> str:
    """The hash of the weights that a recipe starts from. Raises BadRequest where there are none."""
    place = find_weights(path)
    return place.sha256 or sha256_file(place.file)


def changes_result(key: str) -> bool:
    """Whether the result of a cell depends on a key of its recipe."""
    return not SPECS[key].metadata["place"] or key in RESULT_KEYS


def training_meaning(recipe: Recipe, fingerprint: str, threads: int) -> dict[str, Any]:
    """What a cell trains: the keys of the recipe that change the result, the hashes of the images
    and of the first weights, and how many threads compute. Raises BadRequest."""
    kept = {
        name: value
        for name, value in recipe.values().items()
        if changes_result(name) and value != SPECS[name].default
    }
    if weights := kept.pop("weights", None):
        kept["weights"] = weights_hash(weights)
    return {"do": "train", "values": kept, "set": fingerprint, "threads": threads}


def write_places(grid: Grid, data: Path, fingerprint: str, recipes: Iterable[Recipe]) -> None:
    """Record where the set and the weights of a plan are, beside those of earlier plans, and how
    its cells are to run. Raises BadRequest where the weights are gone."""
    places = {**read_places(grid.path), fingerprint: str(data.absolute())}
    recipes = list(recipes)
    for weights in {recipe.weights for recipe in recipes if recipe.weights}:
        places[weights_hash(weights)] = str(Path(weights).absolute())
    grid.path.mkdir(parents=True, exist_ok=True)
    write_json(grid.path / PLACES, places)
    options = {
        name: value
        for name, value in recipes[0].values().items()
        if not changes_result(name) and name not in ("time_limit", "model_file")
    }
    write_json(grid.path / OPTIONS, options)


def read_places(folder: Path) -> dict[str, str]:
    return read_table(folder / PLACES)


def read_table(file: Path) -> dict[str, Any]:
    """A JSON object of a grid's folder; an empty one where there is none."""
    table = parsed(DiskFiles(file.parent).read(file.name))
    return table if isinstance(table, dict) else {}


def keep_models(grid: Grid, recipes: Iterable[Recipe]) -> None:
    """Copy the texts of models of the user's own."""
    for recipe in {recipe.model_code: recipe for recipe in recipes}.values():
        if code := own_code_of(recipe):
            grid.files.create(f"models/{code.digest}.py", code.text.encode(), durable=True)


def place_of(folder: Path, what: str, digest: str) -> str:
    place = read_places(folder).get(digest)
    if not isinstance(place, str):
        raise BadRequest(f"{folder / PLACES} does not say where the {what} {digest} is: {AGAIN}")
    return place


def open_data(folder: Path, fingerprint: str) -> Path:
    """The packed set of a cell in a grid. Raises BadRequest where it is not the planned one."""
    from stoker.data.dataset import Dataset  # here: wrong flags are answered without pyarrow

    place = place_of(folder, "packed set", fingerprint)
    if Dataset(place).fingerprint != fingerprint:
        raise BadRequest(f"{shown(place)} has changed since the cell was planned: {AGAIN}")
    return Path(place)


def open_recipe(folder: Path, values: Mapping[str, Any]) -> Resolved:
    """The recipe of a cell in a grid; its code may run from here on. Raises BadRequest where the
    weights or the code are not the planned ones."""
    options = {k: v for k, v in read_table(folder / OPTIONS).items() if k in SPECS}
    values = {**{k: v for k, v in options.items() if not changes_result(k)}, **values}
    if digest := values.get("weights"):
        values["weights"] = place_of(folder, "file of weights", digest)
        if weights_hash(values["weights"]) != digest:
            raise BadRequest(f"{shown(values['weights'])} has changed since the cell was planned")
    if is_own(str(values.get("model", ""))):
        file = folder / "models" / f"{values['model_code']}.py"
        code = read_code(file, function_of(values["model"]))
        if code.digest != values["model_code"]:
            raise BadRequest(f"{file} has changed since the cell was planned: {AGAIN}")
        trust(code)
        values["model_file"] = str(file)
    recipe = recorded_recipe(values, "cell.json")
    return Resolved(recipe, dict.fromkeys(SPECS, "cell"), "cell")
