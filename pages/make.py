"""The parts of the documentation that are made from the code: recipe keys, recipe cards, commands,
the flags of other tools.

    python pages/make.py            writes them
    python pages/make.py --check    says which are out of date, and ends with 1

What stands above MARK in a page is written by hand; coming-from.md is made as a whole.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import coming_from

from stoker.cli import VERBS
from stoker.cli.flags import Parser
from stoker.recipe.about import about, advice
from stoker.recipe.recipe import SPECS
from stoker.recipe.resolve import preset_names, read_recipe

ROOT = Path(__file__).parents[1]
MARK = "<!-- From here on this page is made by: python pages/make.py -->\n"
INNER = {"bench": ("data", "train", "table", "reproduce"), "launch": ("slurm", "sky")}
"""Verbs that have words of their own after them."""
INTERNAL = ("work", "requeue", "lease")
"""Verbs that other verbs start."""
HELP = {"--help", "--help-all"}


def in_table(text: str) -> str:
    """Text for a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def code(text: str) -> str:
    return f"`{in_table(text)}`" if text else ""


def recipe_keys() -> str:
    """Every key, by group, with its meaning, default, limits, and when to change it."""
    parts = []
    for title, keys in advice().items():
        parts.append(f"\n## {title}\n")
        for name in keys:
            facts = about(name)
            flag = code(facts.flag) or "no flag: set it in a recipe file"
            presets = ", ".join(
                f"{preset} {code(value)}" for preset, value in facts.presets.items()
            )
            parts += [
                f"\n### {name}\n\n{sentence(facts.meaning)}\n",
                f"\n{flag} · default {code(facts.default)} · {in_text(facts.accepts)}\n",
                f"\n**When to change it:** {in_text(facts.when)}\n",
                f"\n{facts.resumes}{f' Presets: {presets}.' if presets else ''}\n",
            ]
    return "".join(parts)


def in_text(text: str) -> str:
    """Plain text as Markdown."""
    return text.replace("*", "\\*").replace("[", "\\[").replace("<", "&lt;")


def sentence(text: str) -> str:
    """A help text as a sentence of a page."""
    text = in_text(text)
    first = text.split()[0]
    return f"{text[0].upper() if first.isalpha() else text[0]}{text[1:]}."


def recipe_cards() -> str:
    """A card for each preset."""
    cards = tomllib.loads((ROOT / "pages" / "cards.toml").read_text(encoding="utf-8"))
    assert sorted(cards) == preset_names(), "pages/cards.toml needs one card for each preset"
    labels = {
        "on": "On what",
        "expect": "What to expect",
        "source": "Who says so",
        "change": "How to change it",
    }
    parts = []
    for name, card in cards.items():
        parts.append(f"\n## {name}\n\n{card['what']}\n")
        parts += [f"\n**{label}:** {card[key]}\n" for key, label in labels.items()]
        text = "".join(
            line for line in read_recipe(name)[0].splitlines(True) if not line.startswith("#")
        )
        parts.append(f"\n```toml\n{text.strip()}\n```\n")
    return "".join(parts)


def commands() -> str:
    """Every verb with its usage and its own flags."""
    parts = []
    for verb, help in VERBS.items():
        inner = INNER.get(verb, ())
        note = " Other commands start it." if verb in INTERNAL else ""
        parts.append(f"\n## {verb}\n\n{sentence(help)}{note}\n")
        modules = {f"\n### {verb} {word}\n": f"{verb}_{word}" for word in inner}
        for title, module in (modules or {"": verb.replace("-", "_")}).items():
            parts += [title, command_of(module)]
    return "".join(parts)


def command_of(module: str) -> str:
    """The description, usage and flags of one command."""
    parser: Parser = import_module(f"stoker.cli.{module}").parser()
    usage = " ".join(parser.format_usage().removeprefix("usage: ").split())
    with_keys = any(action.dest == "recipe" for action in parser._actions)
    rows = [
        row_of(action)
        for action in parser._actions
        if action.help and not {*action.option_strings} & HELP
        if not (with_keys and action.dest in SPECS)
    ]
    keys = "\nIt also takes the flags of the [recipe keys](recipe-keys.md).\n" if with_keys else ""
    table = f"\n| | |\n|---|---|\n{''.join(rows)}" if rows else ""
    described = " ".join((parser.description or "").split()).replace("<", "&lt;")
    return f"\n{described}\n\n```text\n{usage_of(usage)}\n```\n{table}{keys}"


def usage_of(usage: str) -> str:
    """A usage line that fits a page: long ones end in the word flags."""
    head, bracket, _ = usage.partition(" [-h]")
    return f"{head} [flags]" if bracket and len(usage) > 100 else usage.replace(" [-h]", "")


def row_of(action: argparse.Action) -> str:
    name = ", ".join(action.option_strings) or str(action.metavar or action.dest)
    if action.option_strings and action.nargs != 0 and action.metavar:
        name += f" {action.metavar}"
    help = (action.help or "").replace("%%", "%").replace("%(default)s", str(action.default))
    return f"| {code(name)} | {in_table(help)} |\n"


PAGES: dict[str, Callable[[], str]] = {
    "recipe-keys.md": recipe_keys,
    "recipe-cards.md": recipe_cards,
    "commands.md": commands,
}


def made(name: str) -> str:
    """The text of a page: what is written by hand, then what is made."""
    head, mark, _ = (ROOT / "docs" / name).read_text(encoding="utf-8").partition(MARK)
    assert mark, f"docs/{name} has no line {MARK}"
    return head + MARK + PAGES[name]()


def texts() -> dict[str, str]:
    """Every page that is made, by its name."""
    return {**{name: made(name) for name in PAGES}, "coming-from.md": coming_from.page()}


def main() -> int:
    old = []
    for name, text in texts().items():
        file = ROOT / "docs" / name
        if file.read_text(encoding="utf-8") == text:
            continue
        old.append(name)
        if "--check" not in sys.argv:
            file.write_text(text, encoding="utf-8")
    print(*(f"docs/{name}" for name in old), sep="\n")
    return int("--check" in sys.argv and bool(old))


if __name__ == "__main__":
    sys.exit(main())
