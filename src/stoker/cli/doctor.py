"""stoker doctor [DATA]: measure this machine, and predict how fast training will be."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from stoker.cli.flags import (
    Parser,
    add_recipe_flags,
    add_trust_flag,
    resolve_flags,
    say_note,
    with_own_code,
)
from stoker.cli.streams import check_json, write_figures
from stoker.doctor.ranks import RankOptions, run_rank
from stoker.errors import FINISHED, BadRequest
from stoker.fleet.addresses import Nodes
from stoker.fleet.launcher import is_rank
from stoker.fleet.variables import check_rank_variables, check_ranks
from stoker.recipe.recipe import Recipe
from stoker.recipe.schedule import check_batch
from stoker.stores.location import is_location
from stoker.survive.stopping import UNCHANGED, listening, stops_at_once
from stoker.text import say
from stoker.train.model.names import check_model
from stoker.train.model.optimizer_names import check_optimizer

SECONDS = 9.0
MOST_MEMORY = 1024.0
"""GB; no GPU has more, so a larger number is a mistake, such as bytes or MB."""


def parser() -> Parser:
    doctor = Parser(
        prog="stoker doctor",
        usage="stoker doctor [DATA] [--model NAME] [flags]",
        description="Measure what this machine can do, in under two minutes: disk, loading, "
        "computing, and all of them at once, in images a second. Takes the flags of "
        "'stoker train', and predicts its throughput, what limits it, and what to do.",
    )
    add = doctor.add_argument
    add("data", metavar="DATA", nargs="?", help="a packed set or folder of images")
    add("--json", default="", metavar="FILE", help="also write the figures there")
    add(
        "--seconds",
        type=float,
        default=SECONDS,
        metavar="X",
        help=f"about, for each measurement of computing [{SECONDS:g}]",
    )
    add(
        "--memory",
        type=float,
        metavar="GB",
        help="measure nothing: predict whether training fits into GPUs with this much memory",
    )
    add("--ranks", type=int, default=1, metavar="N", help="processes here [1]")
    add("--nodes", metavar="N", help="machines to measure the links between")
    add("--rendezvous", metavar="HOST:PORT", help="where they meet: an address of one of them")
    add("--address", metavar="ADDRESS", help="of this machine, as the others reach it")
    add_recipe_flags(doctor, common=())
    doctor.hide([add_trust_flag(doctor)])
    return doctor


def run(words: Sequence[str]) -> int:
    parsed = parser().parse(words)
    resolved = with_own_code([resolve_flags(parsed)], parsed.trust_code)[0]
    recipe = resolved.recipe
    if is_rank():
        return run_rank()
    ranks = RankOptions(parsed.ranks, parsed.nodes, parsed.rendezvous, parsed.address, words)
    check(parsed, recipe, ranks)
    say_note(resolved)
    if parsed.memory is not None:
        return predict_memory(parsed, recipe)
    return visit(parsed, recipe, ranks)


def check(parsed: argparse.Namespace, recipe: Recipe, ranks: RankOptions) -> None:
    """Refuse what cannot be measured."""
    if not 0 < parsed.seconds < float("inf"):
        raise BadRequest(f"--seconds must be above 0, not {parsed.seconds:g}")
    check_ranks(ranks.ranks)
    check_model(recipe)
    check_optimizer(recipe)
    check_rank_variables(os.environ, ranks.ranks)
    if parsed.memory is not None:
        if not 0 < parsed.memory <= MOST_MEMORY:
            raise BadRequest(
                f"--memory must be above 0 and at most {MOST_MEMORY:g} GB, not {parsed.memory:g}"
            )
        check_batch(recipe, world_of(parsed))
    elif ranks.several:
        ranks.check()
    if parsed.data is not None and not is_location(parsed.data) and not Path(parsed.data).is_dir():
        raise BadRequest(f"no packed set and no folder of images at {parsed.data}")
    check_json(parsed.json)


def visit(parsed: argparse.Namespace, recipe: Recipe, ranks: RankOptions) -> int:
    """Measure everything, and show each finding at once."""
    # Here, so that help and mistakes need neither torch nor OpenCV.
    from stoker.doctor.visit import Visit, VisitOptions
    from stoker.show.machine.doctor import lines

    with listening() as stop, stops_at_once(stop, "measuring", UNCHANGED):
        visit = Visit(VisitOptions(recipe, parsed.data, parsed.seconds, ranks))
        for name, values in visit.findings():
            for line in lines(name, *values):
                say(line)
    if parsed.json:
        write_figures(parsed.json, visit.figures)
    return FINISHED


def world_of(parsed: argparse.Namespace) -> int:
    """The fewest ranks that share a batch."""
    nodes = Nodes.parse(parsed.nodes).least if parsed.nodes else 1
    return int(parsed.ranks * nodes)


def predict_memory(parsed: argparse.Namespace, recipe: Recipe) -> int:
    """Answer whether training fits into GPUs of `--memory` GB."""
    from stoker.doctor.memory import answer_memory
    from stoker.doctor.visit import CLASSES, packed_set
    from stoker.show.machine.memory import lines

    dataset = packed_set(parsed.data)
    classes = len(dataset.classes) if dataset else CLASSES
    answer = answer_memory(recipe, classes, world_of(parsed), parsed.memory)
    say(*lines(answer))
    if parsed.json:
        write_figures(parsed.json, answer.as_data())
    return FINISHED
