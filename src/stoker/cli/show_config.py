"""stoker show-config: the resolved recipe, each value with its origin."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.cli.flags import Parser, add_recipe_flags, resolve_flags
from stoker.cli.places import run_folder
from stoker.errors import FINISHED, BadRequest
from stoker.host.plain_file import read_plain
from stoker.recipe.about import about
from stoker.recipe.resolve import show_config
from stoker.run.directory import Run
from stoker.text import say


def parser() -> Parser:
    flags = Parser(
        prog="stoker show-config",
        usage="stoker show-config RUN | --about KEY | [--recipe NAME] [flags]",
        description="Print a recipe as TOML with the origin of each value: the recipe of a run, or "
        "the one that 'stoker train' would use with the same flags. The output is itself a recipe "
        "file. Accepts the flags of 'stoker train'.",
        examples=(
            "stoker show-config runs/photos-first-look-resnet9_w16-1a2b3c4d5e",
            "stoker show-config --recipe imagenet-resnet50 --epochs 18 > mine.toml",
            "stoker show-config --about lr",
        ),
    )
    flags.add_argument("run", metavar="RUN", nargs="?", help="a run directory, or s3://...")
    flags.add_argument(
        "--about",
        metavar="KEY",
        help="what a key means, what it takes, and when to change it",
    )
    add_recipe_flags(flags, common=())
    return flags


def run(words: Sequence[str]) -> int:
    parsed = parser().parse(words)
    if parsed.about is not None:
        if parsed.run or len(words) > 2:
            raise BadRequest("--about KEY stands alone")
        say(*about(parsed.about).lines())
    elif parsed.run:
        if len(words) > 1:
            raise BadRequest("name either a run or recipe flags, not both")
        run = Run(run_folder(parsed.run))
        run.record  # noqa: B018 (raises where it is not a run, or has a newer format)
        say(*recipe_lines(run), wrap=False)
    else:
        resolved = resolve_flags(parsed)
        lines = show_config(resolved).split("\n")[:-1]
        notes = [f"# note: {resolved.note}"] if resolved.note else []
        say(*lines, *notes, f"# digest {resolved.recipe.digest()}", wrap=False)
    return FINISHED


def recipe_lines(run: Run) -> list[str]:
    """The recipe of a run as it was resolved. Raises BadRequest where it cannot be read."""
    file = run.path / "recipe.toml"
    try:
        return read_plain(file).decode(errors="surrogateescape").removesuffix("\n").split("\n")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadRequest(f"{file} cannot be read ({reason})") from error
