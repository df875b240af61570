"""The command-line flags, made from the keys of the recipe: same names, same checks."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from stoker.errors import BadRequest
from stoker.recipe.other_tools import foreign_answer, plain_name
from stoker.recipe.recipe import SPECS, Recipe, specs_of, types_of
from stoker.recipe.resolve import (
    ZERO_CONFIG,
    Resolved,
    nearest,
    parse_flag,
    preset_names,
    resolve,
    with_code,
)
from stoker.run.directory import Run
from stoker.run.model_code import TRUST, code_to_train
from stoker.text import say
from stoker.train.model.own_code import trust

RARE = [name for name, spec in SPECS.items() if spec.metadata["rare"]]
"""Keys without a flag: they are set in recipe files."""
COMMON = (
    *("model", "pretrained", "weights", "epochs", "batch_size", "lr", "image_size", "amp", "ema"),
    *("seed", "time_limit"),
)
"""Keys whose flags `stoker train --help` shows; `--help-all` shows the rest."""

LARGEST_PRICE = 1e6
"""Dollars an hour of a machine."""

METAVARS = {"weights": "PATH", "freeze": "body|N|GLOB"}
"""What stands for the value of a flag, where its type does not say it."""
_WRONG_NUMBER = re.compile(r"argument (--\S+): invalid (int|float) value: (.*)", re.DOTALL)
"""How argparse refuses a value."""


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises BadRequest; `--help` leaves out what `--help-all` shows."""

    def __init__(self, examples: Sequence[str] = (), **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=_Layout, **options)
        self._examples = examples
        self._hidden: list[argparse.Action] = []

    def hide(self, actions: Iterable[argparse.Action]) -> None:
        """Leave flags out of `--help`; `--help-all` shows them."""
        if not self._hidden:
            self.add_argument("--help-all", action=_HelpAll, help="show every flag and exit")
        self._hidden += actions

    def error(self, message: str) -> NoReturn:
        if wrong := _WRONG_NUMBER.fullmatch(message):
            flag, kind, value = wrong.groups()
            expected = "a whole number" if kind == "int" else "a number"
            raise BadRequest(f"{flag} must be {expected}, not {value}")
        raise BadRequest(f"{message.removeprefix('argument ')}; {self._advice}")

    @property
    def _advice(self) -> str:
        return f"'{self.prog} {'--help-all' if self._hidden else '--help'}' lists every flag"

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """The parsed words. Raises BadRequest, with the nearest flag, where one is unknown."""
        parsed, unknown = self.parse_known_intermixed_args(with_amp_value(words))
        if unknown:
            raise self._unknown(unknown[0])
        return parsed

    def _unknown(self, text: str) -> BadRequest:
        word = text.split("=")[0]
        key = word.removeprefix("--").replace("-", "_")
        if word.startswith("--") and key in RARE:
            return BadRequest(f"'{word}' is not a flag: set {key} = ... in a recipe file")
        flags = [f.removeprefix("--") for f in self._option_string_actions if f != "-h"]
        names = [flag.replace("-", "_") for flag in flags]
        is_setting = text.startswith("-") or "=" in text  # not a word that stands alone
        if is_setting and "recipe" in names and plain_name(word) not in names:
            answer = foreign_answer(word, [*names, *RARE], as_flag=True)
            if answer:
                return BadRequest(f"'{word}' {answer}")
        near = nearest(word, names)
        proposal = f"--{near}".replace("_", "-").replace("' or '", "' or '--")
        hint = f"did you mean '{proposal}'? " if near else ""
        kind = "flag" if word.startswith("-") else "word"
        return BadRequest(f"unknown {kind} '{word}': {hint}{self._advice}")

    def _print_message(self, message: str, file: Any = None) -> None:
        say(*message.splitlines(), stream=file, wrap=False)

    def format_help(self) -> str:
        """The short help: without the hidden flags, with the examples."""
        epilog, texts = self.epilog, [action.help for action in self._hidden]
        if self._hidden:
            self.epilog = f"'{self.prog} --help-all' shows every flag."
        for action in self._hidden:
            action.help = argparse.SUPPRESS
        try:
            return self.format_help_all()
        finally:
            self.epilog = epilog
            for action, text in zip(self._hidden, texts, strict=True):
                action.help = text

    def format_help_all(self) -> str:
        """The help with every flag and the examples."""
        text = super().format_help().rstrip()
        if self._examples:
            text += "\n\nexamples:\n" + "".join(f"  {line}\n" for line in self._examples)
        return text.rstrip() + "\n"


class _HelpAll(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *values: Any) -> None:
        assert isinstance(parser, Parser)
        say(*parser.format_help_all().splitlines(), wrap=False)
        parser.exit()


class _Layout(argparse.HelpFormatter):
    """Breaks lines between words, never at the hyphens of a flag."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return textwrap.indent("\n".join(self._split_lines(text, width)), indent)


def with_amp_value(words: Sequence[str]) -> list[str]:
    """The words, with `--amp=bf16` for an `--amp` whose next word is a flag, or the data."""
    return [
        "--amp=bf16"
        if word == "--amp" and (following.startswith("-") or Path(following).exists())
        else word
        for word, following in zip(words, [*words[1:], "-"], strict=False)
    ]


def add_recipe_flags(parser: Parser, common: Collection[str] = COMMON) -> None:
    """Add --recipe, and a flag for each key that is not RARE. `--help` shows the `common` ones."""
    parser.epilog = f"Only in recipe files: {', '.join(RARE)}; 'stoker show-config' prints them."
    recipe = parser.add_argument(
        "--recipe",
        metavar="NAME",
        help=f"a preset ({', '.join(preset_names())}) or a .toml file [{ZERO_CONFIG}]",
    )
    hidden = [] if common else [recipe]
    shaping = parser.add_argument_group(
        "what to train" if common else "what to train: the flags of 'stoker train'",
        f"Defaults are in brackets; a recipe such as {ZERO_CONFIG} sets its own values."
        if common
        else None,
    )
    place = parser.add_argument_group("how to run on this machine (the result stays the same)")
    for name, spec in SPECS.items():
        if spec.metadata["rare"]:
            continue
        action = add_flag(place if spec.metadata["place"] else shaping, name)
        if name not in common:
            hidden.append(action)
    parser.hide(hidden)


def add_flag(group: argparse._ActionsContainer, name: str, table: type = Recipe) -> argparse.Action:
    """Add the flag of one key of a table; returns it."""
    spec = specs_of(table)[name]
    help = f"{spec.metadata['help']} [{format_default(spec.default)}]".replace("%", "%%")
    options: dict[str, Any] = {"metavar": metavar(name, table)}
    if types_of(table)[name] is bool:
        options = {"default": None, "action": argparse.BooleanOptionalAction}
    return group.add_argument(f"--{name.replace('_', '-')}", dest=name, help=help, **options)


def metavar(name: str, table: type = Recipe) -> str:
    if choices := specs_of(table)[name].metadata["choices"]:
        return "|".join(choices)
    if name in METAVARS:
        return METAVARS[name]
    kinds = {int: "N", float: "X", str: "NAME", Mapping[str, str]: "NAME=NAME,..."}
    return kinds.get(types_of(table)[name], "X,X")


def format_default(value: Any) -> str:
    """A default as a user would type it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if value in ((), ""):
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def add_price_flag(group: argparse._ActionsContainer, help: str) -> argparse.Action:
    """Add --price-per-hour; returns it. `check_price` checks its value."""
    return group.add_argument("--price-per-hour", type=float, metavar="X", help=help)


def check_price(dollars: float | None) -> None:
    """Raise BadRequest for a price that is none."""
    if dollars is not None and not 0 <= dollars < LARGEST_PRICE:
        raise BadRequest(f"--price-per-hour must be from 0 to {LARGEST_PRICE:g}, not {dollars:g}")


def add_trust_flag(parser: Parser) -> argparse.Action:
    """Add --trust-code; returns it."""
    return parser.add_argument(
        TRUST,
        action="store_true",
        help="run the code of a model that a recipe file names, or that a run keeps",
    )


def add_code_flags(parser: Parser) -> None:
    """Add the flags of verbs that use a model: which code of a user's own may run."""
    parser.add_argument(TRUST, action="store_true", help="run the model's own code, if it has any")
    parser.add_argument(
        "--model", metavar="FILE", help="your copy of the model's own code, which is run instead"
    )


def resolve_flags(parsed: argparse.Namespace) -> Resolved:
    """The recipe of parsed flags, with the hash of its own model's code, which is not run. Raises
    BadRequest where a value is not allowed."""
    resolved = resolve(parsed.recipe or ZERO_CONFIG, flag_values(parsed))
    code = code_to_train(resolved, None, trusted=True)
    return with_code(resolved, code) if code else resolved


def say_note(resolved: Resolved) -> None:
    """Print what flags changed beside their own keys, if anything."""
    if resolved.note:
        say(f"note: {resolved.note}")


def with_own_code(
    candidates: Sequence[Resolved], trusted: bool, run: Run | None = None, expected: str = ""
) -> list[Resolved]:
    """The recipes with the hash of their own model's code, which may run from here on; see
    `code_to_train`. Raises BadRequest where it may not."""
    code = code_to_train(candidates[0], run, trusted=trusted, expected=expected)
    trust(code)
    return [with_code(each, code) if code else each for each in candidates]


def flag_values(parsed: argparse.Namespace, table: type = Recipe) -> dict[str, Any]:
    """The keys of a table whose flags are on the command line, each with its checked value."""
    values = {name: getattr(parsed, name, None) for name in specs_of(table)}
    return {
        name: parse_flag(name, value, table) if isinstance(value, str) else value
        for name, value in values.items()
        if value is not None
    }
