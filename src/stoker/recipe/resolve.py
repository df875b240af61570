"""Combine defaults, a preset or recipe file, and flags into one recipe, with each value's origin.

Invariants: a later layer wins (default < recipe < flag). An unknown key is refused with its line
and the nearest known key. What `show_config` prints is itself a recipe file of the same digest.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any

from stoker.errors import BadRequest
from stoker.host.plain_file import read_given
from stoker.recipe.model_file import ModelCode, own_model
from stoker.recipe.other_tools import aliases, foreign_answer, plain_name
from stoker.recipe.recipe import SPECS, Phase, Recipe, check_value, dump_value, types_of
from stoker.recipe.shorten import CAUSES, HALF, SIZES, scaled, scaled_line, size_notes
from stoker.text import cut, one_line, printable, shown

OWN_KEYS = ("model_file", "model_code")
"""Keys of a model of the user's own."""
ZERO_CONFIG = "first-look"
"""The recipe of a command without --recipe."""
FORMER: Mapping[str, Mapping[str, Any]] = {"finetune": {"lr_base": 0.02}}
"""What presets said in 0.1: a run that began so goes on so."""
EARLIER: Sequence[Collection[str]] = (("epochs",), SIZES, ())
"""Which flags changed the phases of a recipe in earlier versions, or in a run with more epochs."""
FEW_SECONDS = 60
"""A checkpoint interval below this may be meant in epochs, as in other tools."""
LARGEST_FILE = 1 << 22
"""Bytes of a recipe file. One with a model of the user's own has the text of its code, too."""
LONGEST_NAME = 100
"""Letters of a word that is compared with names: longer ones take long, and resemble none."""
MOST_PROPOSALS = 3
"""Names that a message proposes, at most."""
EXPECTED: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a string",
    Mapping[str, str]: "NAME=NAME,...",
}
"""What an error says that a key of a type takes."""


@dataclass(frozen=True)
class Resolved:
    """A recipe with the origin of each value."""

    recipe: Recipe
    origins: dict[str, str]
    name: str
    note: str = ""
    """What a flag changed beside its own key, in one line; empty for nothing."""
    ignored: Collection[str] = ()
    """Sizes of flags that its phases do not follow, as in earlier versions."""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known name that a word probably stands for, or several, joined by "' or '"; else None. A
    wrong proposal is worse than none."""
    plain, forms = plain_name(word), {name: plain_name(name) for name in known}
    for same in (plain, aliases().get(plain)):
        if equal := [name for name, form in forms.items() if form == same]:
            return equal[0]
    if not 1 < len(plain) <= LONGEST_NAME:
        return None
    distances = {name: edit_distance(plain, form) for name, form in forms.items()}
    least = min(distances.values(), default=0)
    if least <= max(1, len(plain) // 3):
        return "' or '".join(name for name in forms if distances[name] == least)
    longer = [
        name
        for name, form in forms.items()
        if form.startswith(plain)
        or form.endswith(f"_{plain}")
        or plain.startswith(f"{form}_")
        or (2 * len(form) > len(plain) and plain.endswith(f"_{form}"))
        or (2 * len(form) > len(plain) and plain.startswith(form) and plain.isalpha())
    ]
    words = [name for name, form in forms.items() if "_" not in plain + form]
    close = longer or difflib.get_close_matches(plain, words, n=1, cutoff=0.75)
    return "' or '".join(close[:MOST_PROPOSALS]) or None


def edit_distance(word: str, name: str) -> int:
    """The number of letters that are wrong, missing, extra or swapped with their neighbour."""
    before: list[int] = []
    row = list(range(len(name) + 1))
    for i, letter in enumerate(word):
        older, before, row = before, row, [i + 1]
        for j, other in enumerate(name):
            cost = min(before[j] + (letter != other), before[j + 1] + 1, row[j] + 1)
            if i and j and letter == name[j - 1] and other == word[i - 1]:
                cost = min(cost, older[j - 1] + 1)
            row.append(cost)
    return row[-1]


def unknown_key(name: str, origin: str, known: Iterable[str]) -> BadRequest:
    """The error for an unknown key, with its origin and the nearest known key, or ours in place of
    another tool's."""
    names = list(known)
    if answer := foreign_answer(name, names, as_flag=False):
        return BadRequest(f"{origin}: unknown key '{name}': it {answer}")
    near = nearest(name, names)
    name = cut(name, LONGEST_NAME)
    hint = f"did you mean '{near}'?" if near else "'stoker show-config' lists every key"
    return BadRequest(f"{origin}: unknown key '{name}': {hint}")


def preset_names() -> list[str]:
    """The recipes that ship with Stoker."""
    folder = resources.files("stoker.recipe") / "presets"
    return sorted(item.name.removesuffix(".toml") for item in folder.iterdir())


def read_recipe(name: str) -> tuple[str, str, str]:
    """The text of a preset or file, its name in messages, and its short name, or BadRequest."""
    if name.endswith(".toml"):
        try:
            text = read_given(Path(name), LARGEST_FILE).decode()
        except (OSError, ValueError) as error:
            raise BadRequest(f"cannot read recipe file {name}: {error}") from error
        return text.replace("\r\n", "\n").replace("\r", "\n"), name, Path(name).stem
    if name not in preset_names():
        near = nearest(name, preset_names())
        hint = f" (did you mean '{near}'?)" if near else ""
        presets = ", ".join(preset_names())
        raise BadRequest(f"no recipe called '{name}'{hint}: name a .toml file or one of {presets}")
    preset = resources.files("stoker.recipe") / "presets" / f"{name}.toml"
    return preset.read_text(encoding="utf-8"), f"recipe {name}", name


def line_of(text: str, name: str) -> int:
    """The number of the line on which a TOML text sets a key or opens a table of that name."""
    end = r"[\"']?\s*(=|\.|\])" if len(name) <= LONGEST_NAME else ""
    setting = re.compile(rf"\s*(\[+\s*)?[\"']?{re.escape(name[:LONGEST_NAME])}{end}")
    lines = enumerate(text.splitlines(), 1)
    return next((number for number, line in lines if setting.match(line)), 1)


def parse_toml(text: str, source: str) -> dict[str, tuple[Any, str]]:
    """Each key with its value and its origin, `source:line`. Raises BadRequest for a mistake."""
    try:
        table = tomllib.loads(text)
    except RecursionError as error:
        raise BadRequest(f"{source}: its lists are nested too deeply for a recipe") from error
    except ValueError as error:
        raise BadRequest(f"{source}: not valid TOML: {one_line(str(error))}") from error
    values: dict[str, tuple[Any, str]] = {}
    for name, raw in table.items():
        origin = f"{source}:{line_of(text, name)}"
        if name in SPECS:
            phases = name == "phases"
            value = convert_phases(raw, text, source) if phases else convert(name, raw, origin)
            values[name] = (value, origin)
        elif isinstance(raw, Mapping):
            inner = next((near for key in raw if (near := nearest(key, SPECS))), None)
            advice = f"; recipe keys have no sections: write '{inner} = ...'" if inner else ""
            raise BadRequest(f"{origin}: unknown section '[{cut(name, LONGEST_NAME)}]'{advice}")
        else:
            raise unknown_key(name, origin, SPECS)
    return values


def convert(name: str, raw: Any, origin: str, table: type = Recipe) -> Any:
    """A value of TOML or JSON as the type of its key. Raises BadRequest, which names the origin."""
    kind = types_of(table)[name]
    value: Any
    if kind in EXPECTED:
        value = float(raw) if kind is float and type(raw) is int else raw
        fits = isinstance(raw, Mapping) if kind == Mapping[str, str] else type(value) is kind
    else:
        fits = isinstance(raw, list) and all(type(item) in (int, float) for item in raw)
        value = tuple(map(float, raw)) if fits else None
    if not fits:
        expected = EXPECTED.get(kind, "a list of numbers")
        raise BadRequest(f"{origin}: {name} must be {expected}, not {one_line(repr(raw))}")
    try:
        check_value(name, value, table)
    except BadRequest as error:
        raise BadRequest(f"{origin}: {error}") from error
    return value


def convert_phases(raw: Any, text: str, source: str) -> tuple[Phase, ...]:
    """The `[[phases]]` tables of a recipe text. Raises BadRequest, which names the line."""
    known = [spec.name for spec in fields(Phase)]
    origin = f"{source}:{line_of(text, 'phases')}"
    if not isinstance(raw, list) or not all(isinstance(table, Mapping) for table in raw):
        raise BadRequest(f"{origin}: phases must be [[phases]] tables, not {one_line(repr(raw))}")
    for name in (name for table in raw for name in table if name not in known):
        raise unknown_key(f"phases.{name}", f"{source}:{line_of(text, name)}", known)
    if any(type(table.get(name)) is not int for table in raw for name in known):
        raise BadRequest(f"{origin}: each of [[phases]] needs whole numbers for {', '.join(known)}")
    return tuple(Phase(**table) for table in raw)


def parse_flag(name: str, text: str, table: type = Recipe) -> Any:
    """The checked value of a flag. Raises BadRequest, which names the flag."""
    kind, flag = types_of(table)[name], f"--{name.replace('_', '-')}"
    try:
        raw: Any = text
        if kind in (int, float):
            raw = kind(text)
        elif kind == Mapping[str, str]:
            raw = dict(pair.split("=", 1) for pair in text.split(",") if pair)
        elif kind is not str:
            raw = [float(part) for part in text.split(",")]
    except ValueError as error:
        expected = EXPECTED.get(kind, "numbers separated by commas")
        raise BadRequest(f"{flag} must be {expected}, not {text!r}") from error
    return convert(name, raw, flag, table)


def resolve(
    recipe: str | None = None,
    flags: Mapping[str, Any] | None = None,
    *,
    scale: Collection[str] = (*CAUSES, HALF),
) -> Resolved:
    """The recipe of defaults, then a preset or recipe file, then flags. Those of `scale` change its
    phases in proportion. Raises BadRequest."""
    flags = flags or {}
    values: dict[str, Any] = {}
    origins = dict.fromkeys(SPECS, "default")
    short_name = "default"
    if recipe is not None:
        text, source, short_name = read_recipe(recipe)
        for name, (value, origin) in parse_toml(text, source).items():
            values[name], origins[name] = value, origin
    changes, behind = scaled(values, flags, scale)
    notes = [scaled_line(values, changes, behind)] if changes else []
    for name, value in changes.items():
        values[name], origins[name] = value, f"{origins[name]}, for {' '.join(behind[name])}"
    left = [name for name in SIZES if name in flags and name not in scale and "phases" in values]
    notes += size_notes(values, flags, left)
    if 0 < (every_s := flags.get("checkpoint_interval", 0)) < FEW_SECONDS:
        notes.append(f"--checkpoint-interval {every_s:g} is in seconds, not in epochs or steps")
    for name, value in flags.items():
        if name not in SPECS:
            raise unknown_key(name, "flag", SPECS)
        values[name], origins[name] = value, "flag"
    if own := own_model({**values, "model_file": named_file(values, origins)}):
        values |= own
        origins["model_file"] = origins["model"]
    else:  # what a recipe says of another model
        values = {name: value for name, value in values.items() if name not in OWN_KEYS}
    return Resolved(Recipe(**values), origins, short_name, "; ".join(notes), left)


def recorded_recipe(values: Mapping[str, Any], origin: str) -> Recipe:
    """The recipe that a run has recorded as plain values. Raises BadRequest, which names the
    origin, where a value is not one that this version writes."""
    known: dict[str, Any] = {}
    for name, raw in values.items():
        if name not in SPECS:
            raise BadRequest(f"{origin}: unknown key '{printable(name)}': use a newer Stoker")
        phases = name == "phases"
        known[name] = convert_phases(raw, "", origin) if phases else convert(name, raw, origin)
    return Recipe(**known)


def named_file(values: Mapping[str, Any], origins: Mapping[str, str]) -> str:
    """Where a recipe says that the file of its own model is; empty where a flag names the model."""
    return "" if origins["model"] == "flag" else str(values.get("model_file", ""))


def with_code(resolved: Resolved, code: ModelCode) -> Resolved:
    """The recipe with the hash of its model's text. Raises BadRequest where a recipe file has the
    hash of another text."""
    recipe, origins = resolved.recipe, resolved.origins
    if recipe.model_code not in ("", code.digest) and origins["model"] != "flag":
        raise BadRequest(
            f"{origins['model_code']}: {shown(str(code.path))} has another text than this recipe "
            "was written for: put back that text, or remove the line"
        )
    origin = f"the text of {shown(str(code.path))}"
    recipe = replace(recipe, model_code=code.digest)
    return replace(resolved, recipe=recipe, origins={**origins, "model_code": origin})


def resolutions(recipe: str | None, flags: Mapping[str, Any]) -> list[Resolved]:
    """The recipe of a command, first as `resolve` makes it, then as earlier versions made it: a run
    that one of them began goes on with the same command. Raises BadRequest for the first."""
    every = [resolve(recipe or ZERO_CONFIG, flags)]
    earlier: list[str | None] = [recipe or ZERO_CONFIG]
    if recipe is None and "model" in flags:
        earlier.append(None)  # the defaults alone
    for base in earlier:
        for scale in EARLIER:
            with suppress(BadRequest):
                every.append(resolve(base, flags, scale=scale))
    if former := {k: v for k, v in FORMER.get(recipe or "", {}).items() if k not in flags}:
        origins = dict.fromkeys(former, f"recipe {recipe} of 0.1")
        every += [
            replace(each, recipe=replace(each.recipe, **former), origins=each.origins | origins)
            for each in every
        ]
    return every


def show_config(resolved: Resolved) -> str:
    """The recipe as TOML, each value with its origin in a comment. It is itself a recipe file."""
    lines = []
    for name, value in resolved.recipe.values().items():
        if name != "phases":
            setting = f"{name} = {json.dumps(value, ensure_ascii=False)}"
            lines.append(f"{setting:<35} # {printable(resolved.origins[name])}")
    for phase in resolved.recipe.phases:
        lines += ["", f"{'[[phases]]':<35} # {printable(resolved.origins['phases'])}"]
        lines += [f"{name} = {number}" for name, number in dump_value(phase).items()]
    return "\n".join(lines) + "\n"
