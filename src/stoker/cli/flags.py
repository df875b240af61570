"""Flags from the recipe's keys: the same words, the same help, the same strictness."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from stoker.errors import BadRequest
from stoker.recipe.recipe import SPECS, TYPES
from stoker.recipe.resolve import Resolved, nearest, parse_flag, preset_names, resolve

RARE = [name for name, spec in SPECS.items() if spec.metadata["rare"]]
"""Keys that only recipe files have."""
ZERO_CONFIG = "first-look"
"""The recipe where neither a recipe nor a model is named."""


class Parser(argparse.ArgumentParser):
    """argparse that names the nearest flag, and leaves exiting to the caller."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        raise BadRequest(f"{message}; '{self.prog} --help' lists all")

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """All words understood, or a refusal that names the first that is not."""
        known, unknown = self.parse_known_args(with_amp_value(words))
        if unknown:
            flags = [f.removeprefix("--") for f in self._option_string_actions if f != "-h"]
            word = unknown[0].split("=")[0]
            key = word.removeprefix("--").replace("-", "_")
            if word.startswith("--") and key in RARE:
                raise BadRequest(f"'{word}' is no flag: write {key} = ... in a recipe file")
            near = nearest(word, [flag.replace("-", "_") for flag in flags])
            meant = f"--{near}".replace("_", "-").replace("' or '", "' or '--") if near else ""
            hint = f"did you mean '{meant}'? " if near else ""
            what = "flag" if word.startswith("-") else "word"
            raise BadRequest(f"unknown {what} '{word}': {hint}'{self.prog} --help' lists all")
        return known


def with_amp_value(words: Sequence[str]) -> list[str]:
    """`--amp` alone means bf16; it must not take a flag or the data that follow for its value."""
    given = list(words)
    for place, word in enumerate(given):
        following = given[place + 1] if place + 1 < len(given) else "-"
        if word == "--amp" and (following.startswith("-") or Path(following).exists()):
            given[place] = "--amp=bf16"
    return given


def add_recipe_flags(parser: argparse.ArgumentParser) -> None:
    """--recipe, and a flag for each key that fits on a command line."""
    parser.epilog = f"Only in recipe files: {', '.join(RARE)}; 'stoker show-config' prints them."
    parser.add_argument(
        "--recipe",
        metavar="NAME",
        help=f"a preset ({', '.join(preset_names())}) or a .toml file "
        f"[{ZERO_CONFIG}; none where --model is given]",
    )
    shaping = parser.add_argument_group(
        "what to train", f"[defaults where --model is given; {ZERO_CONFIG} has values of its own]"
    )
    place = parser.add_argument_group("how to run here (leaves the result as it is)")
    for name, spec in SPECS.items():
        if spec.metadata["rare"]:
            continue
        group = place if spec.metadata["place"] else shaping
        flag = f"--{name.replace('_', '-')}"
        help = f"{spec.metadata['help']} [{default_words(spec.default)}]".replace("%", "%%")
        if TYPES[name] is bool:
            group.add_argument(
                flag, dest=name, default=None, action=argparse.BooleanOptionalAction, help=help
            )
        else:
            group.add_argument(flag, dest=name, metavar=metavar(name), help=help)


def metavar(name: str) -> str:
    if SPECS[name].metadata["choices"]:
        return "|".join(SPECS[name].metadata["choices"])
    return {int: "N", float: "X", str: "NAME"}.get(TYPES[name], "X,X")


def default_words(value: Any) -> str:
    """A default as one would type it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if value == ():
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def resolve_flags(parsed: argparse.Namespace) -> Resolved:
    """The recipe that the flags, and the recipe they name, add up to."""
    given = {name: getattr(parsed, name, None) for name in SPECS}
    flags = {
        name: parse_flag(name, value) if isinstance(value, str) else value
        for name, value in given.items()
        if value is not None
    }
    recipe = parsed.recipe or (None if "model" in flags else ZERO_CONFIG)
    return resolve(recipe, flags)
