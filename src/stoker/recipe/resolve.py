"""From a preset, a file and flags to one recipe, with the origin of each value.

Invariants: a later layer wins (default < recipe < flag); a key nobody knows is refused by name,
place and nearest neighbour; what `show_config` prints is itself a recipe file of the same digest.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any

from stoker.errors import BadRequest
from stoker.recipe.recipe import SPECS, Phase, Recipe, check_value, dump_value, types_of

ALIASES = {
    "arch": "model",
    "batch": "batch_size",
    "bs": "batch_size",
    "lr_scheduler": "scheduler",
    "sched": "scheduler",
    "opt": "optimizer",
    "smoothing": "label_smoothing",
    "mixup": "mixup_alpha",
    "cutmix": "cutmix_alpha",
    "gradient_clip": "clip_grad",
    "clip_grad_norm": "clip_grad",
    "use_ema": "ema",
    "model_ema": "ema",
    "model_ema_decay": "ema_decay",
    "wd": "weight_decay",
    "num_workers": "threads",
    "workers": "threads",
    "img_size": "image_size",
    "input_size": "image_size",
    "torchcompile": "compile",
    "batch_size_per_gpu": "batch_size",
    "precision": "amp",
    "learning_rate": "lr",
    "warmup": "warmup_epochs",
    "base_lr": "lr_base",
    "epoch": "epochs",
}
"""Names that timm, torchvision and others use, and ours."""


@dataclass(frozen=True)
class Resolved:
    """A recipe and, for each key, where its value came from."""

    recipe: Recipe
    origins: dict[str, str]
    name: str


def nearest(word: str, known: Iterable[str]) -> str | None:
    """What `word` was probably meant to be; several names where they are equally near."""
    plain = word.rsplit(".", 1)[-1].strip("-_ ").replace("-", "_").lower()
    names = list(known)
    if plain in names:
        return plain
    if ALIASES.get(plain) in names:
        return ALIASES[plain]
    distance = {name: slips(plain, name) for name in names}
    least = min(distance.values(), default=0)
    if least <= max(1, len(plain) // 3):
        return "' or '".join(name for name in names if distance[name] == least)
    longer = [name for name in names if name.startswith(plain) or plain.startswith(name + "_")]
    close = longer or difflib.get_close_matches(plain, names, n=1, cutoff=0.6)
    return close[0] if close else None


def slips(word: str, meant: str) -> int:
    """How many letters are wrong, missing, too many or swapped (the usual edit distance)."""
    before: list[int] = []
    row = list(range(len(meant) + 1))
    for i, letter in enumerate(word):
        older, before, row = before, row, [i + 1]
        for j, other in enumerate(meant):
            cost = min(before[j] + (letter != other), before[j + 1] + 1, row[j] + 1)
            if i and j and letter == meant[j - 1] and other == word[i - 1]:
                cost = min(cost, older[j - 1] + 1)
            row.append(cost)
    return row[-1]


def unknown_key(word: str, where: str, known: Iterable[str]) -> BadRequest:
    """The refusal of a key nobody knows: names it, its place and the nearest key."""
    near = nearest(word, known)
    hint = f"did you mean '{near}'?" if near else "'stoker show-config' lists every key"
    return BadRequest(f"{where}: unknown key '{word}': {hint}")


def preset_names() -> list[str]:
    """The recipes that ship with Stoker."""
    folder = resources.files("stoker.recipe") / "presets"
    return sorted(item.name.removesuffix(".toml") for item in folder.iterdir())


def read_recipe(name: str) -> tuple[str, str, str]:
    """The text of a preset or of a recipe file, how to name it in messages, and a short name."""
    if name.endswith(".toml"):
        try:
            return Path(name).read_text(encoding="utf-8"), name, Path(name).stem
        except (OSError, UnicodeDecodeError) as error:
            raise BadRequest(f"cannot read recipe file {name}: {error}") from error
    if name not in preset_names():
        near = nearest(name, preset_names())
        hint = f"did you mean '{near}'? " if near else ""
        known = ", ".join(preset_names())
        raise BadRequest(f"no recipe called '{name}': {hint}presets: {known}; or give a .toml file")
    preset = resources.files("stoker.recipe") / "presets" / f"{name}.toml"
    return preset.read_text(encoding="utf-8"), f"recipe {name}", name


def line_of(text: str, word: str) -> int:
    """The line on which a TOML text sets a key or opens a table of that name."""
    setting = re.compile(rf"\s*(\[+\s*)?[\"']?{re.escape(word)}[\"']?\s*(=|\.|\])")
    for number, line in enumerate(text.splitlines(), 1):
        if setting.match(line):
            return number
    return 1


def parse_toml(text: str, where: str) -> dict[str, tuple[Any, str]]:
    """Each key of a recipe text with its checked value and its `file:line`."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadRequest(f"{where}: not valid TOML: {error}") from error
    values: dict[str, tuple[Any, str]] = {}
    for word, raw in table.items():
        place = f"{where}:{line_of(text, word)}"
        if word not in SPECS:
            if isinstance(raw, Mapping):
                inner = next((near for name in raw if (near := nearest(name, SPECS))), None)
                advice = f"; recipe keys have no sections: write '{inner} = ...'" if inner else ""
                raise BadRequest(f"{place}: unknown section '[{word}]'{advice}")
            raise unknown_key(word, place, SPECS)
        if word == "phases" and isinstance(raw, list):
            refuse_unknown_phase_keys(raw, text, where)
        values[word] = (convert(word, raw, place), place)
    return values


def refuse_unknown_phase_keys(tables: list[Any], text: str, where: str) -> None:
    """Name a wrong key of a [[phases]] table with its own line."""
    known = [spec.name for spec in fields(Phase)]
    for word in (word for table in tables if isinstance(table, Mapping) for word in table):
        if word not in known:
            raise unknown_key(f"phases.{word}", f"{where}:{line_of(text, word)}", known)


def convert(name: str, raw: Any, where: str, table: type = Recipe) -> Any:
    """A TOML value as the type of its key, or a refusal that says what the key takes."""
    kind = types_of(table)[name]
    value: Any = None
    if kind in (bool, int, str) and type(raw) is kind:
        value = raw
    elif kind is float and type(raw) in (int, float):
        value = float(raw)
    elif kind == Mapping[str, str] and isinstance(raw, Mapping):
        value = dict(raw)
    elif name == "phases" and isinstance(raw, list):
        value = tuple(convert_phase(item, where) for item in raw)
    elif name == "decay_epochs" and isinstance(raw, list):
        value = tuple(float(item) for item in raw if type(item) in (int, float))
        value = value if len(value) == len(raw) else None
    if value is None:
        wanted = kind.__name__ if isinstance(kind, type) else "a list"
        raise BadRequest(f"{where}: {name} takes {wanted}, not {raw!r}")
    try:
        check_value(name, value, table)
    except BadRequest as error:
        raise BadRequest(f"{where}: {error}") from error
    return value


def convert_phase(raw: Any, where: str) -> Phase:
    """One `[[phases]]` table, with the same strictness as the keys above it."""
    known = [spec.name for spec in fields(Phase)]
    if not isinstance(raw, Mapping):
        raise BadRequest(f"{where}: phases are [[phases]] tables of {', '.join(known)}")
    missing = [word for word in known if type(raw.get(word)) is not int]
    if missing:
        raise BadRequest(f"{where}: each of [[phases]] needs whole numbers for {', '.join(known)}")
    return Phase(**raw)


def parse_flag(name: str, text: str, table: type = Recipe) -> Any:
    """The value of a flag, from the words on the command line."""
    kind, where = types_of(table)[name], f"--{name.replace('_', '-')}"
    try:
        if kind is int:
            return convert(name, int(text), where, table)
        if kind is float:
            return convert(name, float(text), where, table)
        if name == "decay_epochs":
            return convert(name, [float(word) for word in text.split(",")], where)
        if kind == Mapping[str, str]:
            pairs = (pair.split("=", 1) for pair in text.split(",") if pair)
            return convert(name, dict(pairs), where, table)
    except ValueError as error:
        kinds = {int: "a whole number", float: "a number", Mapping[str, str]: "NAME=NAME,..."}
        wanted = kinds.get(kind, "numbers with commas")
        raise BadRequest(f"{where} takes {wanted}, not {text!r}") from error
    return convert(name, text, where, table)


def resolve(recipe: str | None = None, flags: Mapping[str, Any] | None = None) -> Resolved:
    """Lay the layers over each other: defaults, then the named recipe, then flags."""
    values: dict[str, Any] = {}
    origins = dict.fromkeys(SPECS, "default")
    name = "default"
    if recipe is not None:
        text, where, name = read_recipe(recipe)
        for word, (value, place) in parse_toml(text, where).items():
            values[word], origins[word] = value, place
    for word, value in (flags or {}).items():
        if word not in SPECS:
            raise unknown_key(word, "flag", SPECS)
        values[word], origins[word] = value, "flag"
    return Resolved(Recipe(**values), origins, name)


def show_config(resolved: Resolved) -> str:
    """The recipe as TOML with each value's origin beside it: a recipe file itself."""
    lines = []
    for name in SPECS:
        value = dump_value(getattr(resolved.recipe, name))
        if name != "phases":
            setting = f"{name} = {json.dumps(value, ensure_ascii=False)}"
            lines.append(f"{setting:<35} # {resolved.origins[name]}")
    for phase in resolved.recipe.phases:
        lines += ["", f"{'[[phases]]':<35} # {resolved.origins['phases']}"]
        lines += [f"{word} = {number}" for word, number in dump_value(phase).items()]
    return "\n".join(lines) + "\n"
