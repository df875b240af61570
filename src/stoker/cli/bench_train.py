"""stoker bench train DATA: how fast models train here, one row for each combination."""

from __future__ import annotations

import argparse
import datetime
import math
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stoker.cli.flags import Parser, add_trust_flag
from stoker.cli.streams import check_output
from stoker.errors import FINISHED, BadRequest
from stoker.plan.bench.cells import (
    Axes,
    BenchCell,
    comma_list,
    matrix,
    model_name,
    precision_name,
    whole_number,
)
from stoker.price.hourly import STATED, HourlyPrice
from stoker.recipe.model_file import ModelCode
from stoker.recipe.recipe import Recipe
from stoker.recipe.resolve import ZERO_CONFIG, preset_names, resolve, with_code
from stoker.recipe.schedule import one_phase
from stoker.run.model_code import code_to_train
from stoker.survive.stopping import listening, stops_at_once
from stoker.text import say, shown
from stoker.train.model.names import check_model
from stoker.train.model.optimizer_names import check_optimizer
from stoker.train.model.own_code import check_code

STEPS, REPEATS, LIMIT_S = 50, 5, 900.0
KEPT = "rows so far are in the file: the same command goes on with the missing cells"


def parser() -> Parser:
    train = Parser(
        prog="stoker bench train",
        usage="stoker bench train DATA [--model A,B] [--batch-size N,N] [flags]",
        description="Train every combination of some models, batch sizes, precisions and ranks for "
        "a few steps, each in processes of its own, and write one row for each: images a second "
        "with their spread, seconds and dollars an epoch, what limits it, memory. A cell that runs "
        "out of memory, crashes or takes too long is a row too. The same command goes on where it "
        "was stopped.",
        examples=(
            "stoker bench train photos-packed --model resnet18,resnet50 --batch-size 16,32",
            "stoker bench train photos-packed --precision fp32,bf16 --ranks 1,2",
        ),
    )
    add = train.add_argument
    add("data", metavar="DATA", nargs="?", help="a folder that 'stoker pack' made")
    add("--model", metavar="A,B", help="as for 'stoker train' [the recipe's]")
    add("--batch-size", metavar="N,N", help="images of a step, over all ranks [the recipe's]")
    add("--image-size", metavar="N,N", help="side of the model's input [the recipe's]")
    add("--precision", default="fp32", metavar="P,P", help="of fp32, tf32, bf16, fp16 [fp32]")
    add("--ranks", default="1", metavar="N,N", help="processes that train together [1]")
    add(
        "--recipe",
        metavar="NAME",
        help=f"a preset ({', '.join(preset_names())}) or a .toml file [{ZERO_CONFIG}]",
    )
    add("--compile", action="store_true", help="compile the models with torch.compile")
    add("--steps", type=int, default=STEPS, metavar="N", help=f"of each repeat [{STEPS}]")
    help = f"repeats of each cell; fewer than 5 are never called different [{REPEATS}]"
    add("--repeats", type=int, default=REPEATS, metavar="N", help=help)
    help = f"most seconds of a cell; then it is a row that timed out [{LIMIT_S:g}]"
    add("--time-limit", type=float, default=LIMIT_S, metavar="X", help=help)
    help = "most memory of each process of a cell, or of its GPU, in GB; above, it is a row 'out "
    add("--memory-limit", type=float, default=0.0, metavar="X", help=help + "of memory' [all]")
    help = "dollars an hour of this machine, for dollars an epoch"
    add("--price-per-hour", type=float, metavar="X", help=help)
    add("--machine", default="", metavar="NAME", help="this machine's name in tables [its device]")
    add("--out", default="", metavar="FILE", help="the result file [bench-HOST.json]")
    add_trust_flag(train)
    return train


def run(words: Sequence[str]) -> int:
    parsed = parser().parse(words)
    check(parsed)
    bases = base_recipes(parsed)
    cells = cells_of(parsed, bases)
    out = Path(parsed.out or f"bench-{socket.gethostname()}.json")
    check_output("--out", str(out))

    # Here, so that help and mistakes need neither torch nor OpenCV.
    from stoker.data.dataset import Dataset
    from stoker.plan.bench.process import CellLimits
    from stoker.plan.bench.session import ModelRecipe, continued, planned, run_missing
    from stoker.show.bench.progress import begin_lines, closing_lines, row_line

    with listening() as stop, stops_at_once(stop, "measuring", KEPT):
        limits = CellLimits(parsed.steps, parsed.repeats, parsed.time_limit, parsed.memory_limit)
        models = {name: ModelRecipe(recipe, code) for name, (recipe, code) in bases.items()}
        dataset = Dataset(parsed.data)
        labels = (parsed.machine, str(parsed.recipe or ZERO_CONFIG))
        plan = planned(dataset, cells, models, limits, labels, price_of(parsed))
        result = continued(out, plan)
        say(*begin_lines(result, cells, out))
        for row, so_far in run_missing(out, result, cells):
            say(row_line(row, so_far, cells))
            result = so_far
        say(*closing_lines(result, cells, out))
    return FINISHED


def check(parsed: argparse.Namespace) -> None:
    """Raise BadRequest for values that cannot be measured with."""
    if parsed.data is None:
        raise BadRequest("no packed set is named: stoker bench train DATA")
    for name, most in (("steps", 1_000_000), ("repeats", 1000)):
        if not 1 <= getattr(parsed, name) <= most:
            value = getattr(parsed, name)
            raise BadRequest(f"--{name} must be from 1 to {most:,}, not {value}")
    if not 0 < parsed.time_limit <= 1e7:
        raise BadRequest(f"--time-limit must be above 0 seconds, not {parsed.time_limit:g}")
    if not 0 <= parsed.memory_limit <= 1e6:
        raise BadRequest(f"--memory-limit must be 0 GB or more, not {parsed.memory_limit:g}")
    price = parsed.price_per_hour
    if price is not None and not (math.isfinite(price) and 0 <= price <= 1e6):
        raise BadRequest(f"--price-per-hour must be 0 dollars or more, not {price:g}")
    if len(parsed.machine) > 200:
        raise BadRequest("--machine must have at most 200 characters")


def base_recipes(parsed: argparse.Namespace) -> dict[str, tuple[Recipe, ModelCode | None]]:
    """The recipe of each model, and its code where it is the user's own, by the name that the
    recipe has for it. Raises BadRequest for a model or a recipe that cannot be trained."""
    names = comma_list("--model", parsed.model, model_name) if parsed.model else [None]
    bases: dict[str, tuple[Recipe, ModelCode | None]] = {}
    for name in names:
        flags: dict[str, Any] = {"compile": True} if parsed.compile else {}
        resolved = resolve(parsed.recipe or ZERO_CONFIG, flags | ({"model": name} if name else {}))
        code = code_to_train(resolved, None, trusted=parsed.trust_code)
        if code:
            check_code(code)
            resolved = with_code(resolved, code)
        recipe = resolved.recipe
        if recipe.model in bases:
            raise BadRequest(f"--model names {shown(recipe.model)} twice: rename one of the files")
        check_model(recipe)
        check_optimizer(recipe)
        bases[recipe.model] = recipe, code
    return bases


def cells_of(parsed: argparse.Namespace, bases: Mapping[str, Any]) -> list[BenchCell]:
    """The matrix of the flags. Sizes that no flag names are the recipe's, of its longest phase."""
    first = one_phase(next(iter(bases.values()))[0])
    sizes, batches = parsed.image_size, parsed.batch_size
    return matrix(
        Axes(
            list(bases),
            comma_list("--image-size", sizes, whole_number) if sizes else [first.image_size],
            comma_list("--batch-size", batches, whole_number) if batches else [first.batch_size],
            comma_list("--precision", parsed.precision, precision_name),
            comma_list("--ranks", parsed.ranks, whole_number),
        )
    )


def price_of(parsed: argparse.Namespace) -> HourlyPrice | None:
    """The price that the flag states; None without it."""
    if parsed.price_per_hour is None:
        return None
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    source = "--price-per-hour"
    return HourlyPrice(dollars=parsed.price_per_hour, kind=STATED, source=source, date=today)
