"""stoker sweep DATA --set KEY=VALUES: train every combination, once each, and compare them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from stoker.cli.flags import Parser, add_recipe_flags, add_trust_flag, flag_values, with_own_code
from stoker.cli.streams import check_json, write_figures
from stoker.cli.train import packed
from stoker.errors import FINISHED, INTERRUPTED, BadRequest
from stoker.fleet.grid.directory import Grid
from stoker.recipe.recipe import Recipe
from stoker.recipe.resolve import ZERO_CONFIG, resolve
from stoker.show.study.sweep import (
    conclusion,
    cost_lines,
    failure_lines,
    figures,
    other_lines,
    status_line,
    table_lines,
)
from stoker.study.frozen import keep_models, write_places
from stoker.study.halving import plan_halving
from stoker.study.launch import keep_threads, run_cells, threads_of
from stoker.study.search import Point, parse_axes, points_of
from stoker.study.sweep import Sweep, plan_sweep, rows, trials_of
from stoker.survive.stopping import StopRequest, listening
from stoker.text import plural, say, shown
from stoker.train.attempt.launch import limit_time
from stoker.train.model.names import check_fine_tuning, check_model
from stoker.train.model.optimizer_names import check_optimizer


def parser() -> Parser:
    sweep = Parser(
        prog="stoker sweep",
        usage="stoker sweep DATA --set KEY=VALUES [--set KEY=VALUES ...] [flags]",
        description="Train every combination of some values of a recipe, once each, and compare "
        "the results. The same command goes on where it was stopped, and shows the table when "
        "everything is done. Give it on several machines that share the folder, and they share the "
        "work.",
        examples=(
            "stoker sweep photos-packed --set lr=0.05,0.1,0.2 --set seed=0..2",
            "stoker sweep photos-packed --recipe mine.toml --set lr=0.01..1 --trials 20",
        ),
    )
    add = sweep.add_argument
    add("data", metavar="DATA", help="a packed set, or a folder of images")
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUES",
        help="values of a recipe key: A,B,C or FIRST..LAST; may be given several times",
    )
    add("--trials", type=int, metavar="N", help="draw N points instead of every combination")
    add(
        "--halving",
        type=int,
        metavar="N",
        help="successive halving: one of N settings goes on after a few epochs, and so on",
    )
    add("--out", metavar="DIR", help="where the runs are kept [sweeps/SET-RECIPE]")
    add("--workers", type=int, default=1, metavar="N", help="cells at once on this machine [1]")
    add(
        "--compute-threads",
        type=int,
        default=0,
        metavar="N",
        help="threads of each cell on a CPU, on which its bits depend [as at the first start: "
        "cores divided by workers]",
    )
    add("--status", action="store_true", help="show the table and train nothing")
    add("--all", action="store_true", help="show every row of the table")
    add("--json", default="", metavar="FILE", help="also write the table and every result")
    add_recipe_flags(sweep)
    sweep.hide([add_trust_flag(sweep)])
    return sweep


def run(arguments: Sequence[str]) -> int:
    with listening() as stop:
        parsed = parser().parse(arguments)
        check_json(parsed.json)
        planned, grid, digest = plan(parsed, stop)
        if parsed.status:
            code = FINISHED
        else:
            say(f"sweep {grid.path}: {plural(len(planned.plan.cells), 'cell')}")
            code = run_cells(grid, planned.plan, digest, parsed.workers, stop)
        status = grid.status(planned.plan)
        table = rows(planned, grid, status)
        say(*table_lines(table, parsed.all), *conclusion(table, grid, status))
        say(status_line(status), *other_lines(status), *cost_lines(grid, status))
        say(*failure_lines(planned, grid, status))
        if parsed.json:
            write_figures(parsed.json, figures(planned, table, grid, status))
    if code == INTERRUPTED:
        say("stopped: the same command goes on")
    return code


def plan(parsed: argparse.Namespace, stop: StopRequest) -> tuple[Sweep, Grid, str]:
    """The plan of a sweep, its folder, and the digest under which it is frozen there. Raises
    BadRequest where the flags do not make one."""
    axes = parse_axes(parsed.set)
    flags = flag_values(parsed)
    if both := next((axis.key for axis in axes if axis.key in flags), None):
        raise BadRequest(f"{both} stands in --set and as a flag: drop one")
    points = points_of(axes, parsed.trials)
    name = parsed.recipe or ZERO_CONFIG

    def recipe_at(point: Point) -> Recipe:
        resolved = resolve(name, {**flags, **point})
        recipe = with_own_code([resolved], parsed.trust_code)[0].recipe
        check_model(recipe)
        check_optimizer(recipe)
        check_fine_tuning(recipe)
        return recipe

    from stoker.data.dataset import Dataset  # here: wrong flags are answered without pyarrow

    trials = trials_of(points, recipe_at)
    recipes = [recipe for _, recipe in trials]
    limit_time(recipes[0], stop)
    data = data_of(parsed, recipes[0], stop)
    dataset = Dataset(data)
    place = f"sweeps/{data.resolve().name.removesuffix('-packed')}-{Path(name).stem}"
    grid = Grid(Path(parsed.out or place))
    threads = threads_of(grid, parsed.compute_threads, parsed.workers)
    if parsed.halving is None:
        planned = plan_sweep(trials, dataset.fingerprint, threads)
    else:
        planned = plan_halving(trials, dataset.fingerprint, threads, parsed.halving)
    if parsed.status:
        return planned, grid, ""
    write_places(grid, data, dataset.fingerprint, recipes)
    keep_threads(grid, threads)
    keep_models(grid, recipes)
    return planned, grid, grid.freeze(planned.plan)


def data_of(parsed: argparse.Namespace, recipe: Recipe, stop: StopRequest) -> Path:
    """The packed set, which is made first where DATA is a folder of images. Raises BadRequest where
    there is none and nothing is to be made."""
    from stoker.data.dataset import Dataset
    from stoker.data.packing.pack import default_out

    if parsed.status and not Dataset.is_packed(parsed.data):
        out = default_out(parsed.data)
        if not Dataset.is_packed(out):
            raise BadRequest(f"{shown(parsed.data)} is not packed yet: nothing has been trained")
        return out
    return packed(parsed.data, recipe, stop)
