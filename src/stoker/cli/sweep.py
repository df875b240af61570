"""stoker sweep DATA --set KEY=VALUES: train every combination, once each, and compare them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from stoker.cli.backends import final_code
from stoker.cli.flags import Parser, add_recipe_flags, add_trust_flag, flag_values
from stoker.cli.streams import check_json, write_figures
from stoker.cli.studies import StudyInputs, add_study_flags, recipes_of
from stoker.errors import FINISHED, BadRequest
from stoker.show.study.sweep import (
    conclusion,
    cost_lines,
    failure_lines,
    figures,
    other_lines,
    status_line,
    table_lines,
)
from stoker.study.halving import plan_halving
from stoker.study.results import study_status
from stoker.study.search import parse_axes, points_of
from stoker.study.sweep import Sweep, plan_sweep, rows, trials_of
from stoker.survive.stopping import StopRequest, listening
from stoker.text import say


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
    slurm = add_study_flags(sweep, "sweeps/SET-RECIPE")
    add("--all", action="store_true", help="show every row of the table")
    add_recipe_flags(sweep)
    sweep.hide([add_trust_flag(sweep), *slurm])
    return sweep


def run(arguments: Sequence[str]) -> int:
    with listening() as stop:
        parsed = parser().parse(arguments)
        check_json(parsed.json)
        planned, inputs = plan(parsed, stop)
        code = FINISHED if parsed.status else inputs.run(planned.plan, parsed, "sweep", stop)
        grid = inputs.grid
        status = study_status(grid, planned.plan)
        table = rows(planned, grid, status)
        say(*table_lines(table, parsed.all), *conclusion(table, grid, status))
        say(status_line(status), *other_lines(status), *cost_lines(grid, status))
        say(*failure_lines(planned.plan, grid, status))
        if parsed.json:
            write_figures(parsed.json, figures(planned, table, grid, status))
    return final_code(parsed, code)


def plan(parsed: argparse.Namespace, stop: StopRequest) -> tuple[Sweep, StudyInputs]:
    """The plan of a sweep, and what it trains on. Raises BadRequest where the flags do not make
    one."""
    axes = parse_axes(parsed.set)
    flags = flag_values(parsed)
    if both := next((axis.key for axis in axes if axis.key in flags), None):
        raise BadRequest(f"{both} stands in --set and as a flag: drop one")
    points = points_of(axes, parsed.trials)
    trials = trials_of(points, recipes_of(parsed))
    inputs = StudyInputs.of(parsed, [recipe for _, recipe in trials], "sweeps", stop)
    if parsed.halving is None:
        planned = plan_sweep(trials, inputs.dataset.fingerprint, inputs.threads)
    else:
        fingerprint = inputs.dataset.fingerprint
        planned = plan_halving(trials, fingerprint, inputs.threads, parsed.halving)
    return planned, inputs
