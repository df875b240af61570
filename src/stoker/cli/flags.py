"""Flags from the recipe's keys: the same words, the same help, the same strictness."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from stoker.errors import BadRequest
from stoker.recipe.recipe import SPECS, Recipe, specs_of, types_of
from stoker.recipe.resolve import Resolved, nearest, parse_flag, preset_names, resolve

RARE = [name for name, spec in SPECS.items() if spec.metadata["rare"]]
"""Keys that only recipe files have."""
COMMON = (
    *("model", "pretrained", "epochs", "batch_size", "lr", "image_size", "amp", "ema"),
    *("seed", "time_limit"),
)
"""Keys whose flags `stoker train --help` shows; `--help-all` shows the rest."""
ZERO_CONFIG = "first-look"
"""The recipe where neither a recipe nor a model is named."""


class Parser(argparse.ArgumentParser):
    """argparse that names the nearest flag, leaves exiting to the caller, and has two helps:
    `--help` shows the common flags, `--help-all` every one."""

    def __init__(self, examples: Sequence[str] = (), **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=_Layout, **options)
        self._examples = examples
        self._rare: list[argparse.Action] = []

    def add_rare(self, actions: Iterable[argparse.Action]) -> None:
        """Leave flags out of `--help`; `--help-all` shows them."""
        if not self._rare:
            self.add_argument("--help-all", action=_HelpAll, help="show every flag and exit")
        self._rare += actions

    def error(self, message: str) -> NoReturn:
        raise BadRequest(f"{message}; {self._where_to_look}")

    @property
    def _where_to_look(self) -> str:
        return f"'{self.prog} {'--help-all' if self._rare else '--help'}' lists every flag"

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """The parsed words; BadRequest names the first that is unknown, and the nearest flag."""
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
            kind = "flag" if word.startswith("-") else "word"
            raise BadRequest(f"unknown {kind} '{word}': {hint}{self._where_to_look}")
        return known

    def format_help(self) -> str:
        """The short help: without the rare flags, with the examples."""
        texts = [(action, action.help) for action in self._rare]
        epilog = self.epilog
        if self._rare:
            self.epilog = f"'{self.prog} --help-all' shows every flag."
        for action in self._rare:
            action.help = argparse.SUPPRESS
        try:
            return self.format_help_all()
        finally:
            self.epilog = epilog
            for action, text in texts:
                action.help = text

    def format_help_all(self) -> str:
        text = super().format_help().rstrip()
        if self._examples:
            text += "\n\nexamples:\n" + "".join(f"  {line}\n" for line in self._examples)
        return text.rstrip() + "\n"


class _HelpAll(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *values: Any) -> None:
        assert isinstance(parser, Parser)
        print(parser.format_help_all(), end="")
        parser.exit()


class _Layout(argparse.HelpFormatter):
    """Breaks lines between words, never inside `--lr-base`."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return textwrap.indent("\n".join(self._split_lines(text, width)), indent)


def with_amp_value(words: Sequence[str]) -> list[str]:
    """`--amp` alone means bf16; it must not take a flag or the data that follow for its value."""
    given = list(words)
    for place, word in enumerate(given):
        following = given[place + 1] if place + 1 < len(given) else "-"
        if word == "--amp" and (following.startswith("-") or Path(following).exists()):
            given[place] = "--amp=bf16"
    return given


def add_recipe_flags(parser: Parser, common: Collection[str] = COMMON) -> None:
    """Add --recipe, and a flag for each key that fits on a command line. `--help` shows those that
    are common."""
    parser.epilog = f"Only in recipe files: {', '.join(RARE)}; 'stoker show-config' prints them."
    recipe = parser.add_argument(
        "--recipe",
        metavar="NAME",
        help=f"a preset ({', '.join(preset_names())}) or a .toml file "
        f"[{ZERO_CONFIG}; none where --model is given]",
    )
    rare = [] if common else [recipe]
    shaping = parser.add_argument_group(
        "what to train" if common else "what to train: the flags of 'stoker train'",
        f"[defaults where --model is given; {ZERO_CONFIG} has values of its own]"
        if common
        else None,
    )
    place = parser.add_argument_group("how to run here (the result stays the same)")
    for name, spec in SPECS.items():
        if spec.metadata["rare"]:
            continue
        action = add_flag(place if spec.metadata["place"] else shaping, name)
        if name not in common:
            rare.append(action)
    parser.add_rare(rare)


def add_flag(
    parser: argparse._ActionsContainer, name: str, table: type = Recipe
) -> argparse.Action:
    """Add the flag of one key of a table; returns it."""
    spec = specs_of(table)[name]
    help = f"{spec.metadata['help']} [{default_words(spec.default)}]".replace("%", "%%")
    options: dict[str, Any] = {"metavar": metavar(name, table)}
    if types_of(table)[name] is bool:
        options = {"default": None, "action": argparse.BooleanOptionalAction}
    return parser.add_argument(f"--{name.replace('_', '-')}", dest=name, help=help, **options)


def metavar(name: str, table: type = Recipe) -> str:
    if choices := specs_of(table)[name].metadata["choices"]:
        return "|".join(choices)
    kinds = {int: "N", float: "X", str: "NAME", Mapping[str, str]: "NAME=NAME,..."}
    return kinds.get(types_of(table)[name], "X,X")


def default_words(value: Any) -> str:
    """A default as one would type it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if value == ():
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def resolve_flags(parsed: argparse.Namespace) -> Resolved:
    """The recipe that the flags, and the recipe they name, add up to."""
    flags = flag_values(parsed)
    recipe = parsed.recipe or (None if "model" in flags else ZERO_CONFIG)
    return resolve(recipe, flags)


def flag_values(parsed: argparse.Namespace, table: type = Recipe) -> dict[str, Any]:
    """The keys of a table whose flags are on the command line, each with its checked value."""
    values = {name: getattr(parsed, name, None) for name in specs_of(table)}
    return {
        name: parse_flag(name, value, table) if isinstance(value, str) else value
        for name, value in values.items()
        if value is not None
    }
