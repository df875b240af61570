"""stoker train DATA: start a run, resume it, or report that it is finished."""

from __future__ import annotations

import argparse
import math
import os
import re
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stoker.cli.flags import (
    Parser,
    add_price_flag,
    add_recipe_flags,
    add_trust_flag,
    check_price,
    flag_values,
    say_note,
    with_own_code,
)
from stoker.errors import FINISHED, BadRequest, Interrupted, exit_code
from stoker.fleet.addresses import meeting_point
from stoker.fleet.launcher import is_rank, joins_others
from stoker.fleet.variables import check_rank_variables, check_ranks
from stoker.recipe.changes import CONSENT
from stoker.recipe.recipe import Recipe
from stoker.recipe.resolve import Resolved, resolutions
from stoker.recipe.schedule import check_batch
from stoker.run.directory import REPORT, DatasetIdentity, Run
from stoker.stores.location import is_location
from stoker.survive.reader import early_reader
from stoker.survive.remote.place import bound_location, run_location
from stoker.survive.stopping import STARTING, UNCHANGED, StopRequest, stops_at_once
from stoker.survive.storage import require_storage
from stoker.text import one_line, say, shown
from stoker.train.attempt import launch
from stoker.train.model.names import OWN, check_fine_tuning, check_model
from stoker.train.model.optimizer_names import check_optimizer

if TYPE_CHECKING:  # help and mistakes are answered without it
    from stoker.price.ledger.budget import BudgetLimits

MOST_PROFILED = 100
"""Steps in a trace: about a megabyte each before compression."""


def parser() -> Parser:
    train = Parser(
        prog="stoker train",
        usage="stoker train DATA [--recipe NAME] [flags]",
        description="Train a classifier on a folder of labelled images, packed or not. "
        "The same command starts a run, resumes it, or reports that it is finished.",
        examples=(
            "stoker train photos                    pack the folder and train a small model",
            "stoker train photos --model resnet18 --pretrained --epochs 10 --amp bf16",
            "stoker train imagenet-packed --recipe imagenet-resnet50 --ranks 8",
        ),
    )
    add = train.add_argument
    add("data", metavar="DATA", help="a packed set, or a folder of images")
    add(
        "--run",
        metavar="DIR",
        help="run directory, or a place in a store (s3://...) [runs/SET-RECIPE-MODEL-HASH]",
    )
    add("--ranks", type=int, default=1, metavar="N", help="processes on this machine [1]")
    changes = add(
        "--allow-change",
        metavar="KEY,...",
        default="",
        help="resume a run although these recipe keys have changed",
    )
    profile = add(
        "--profile",
        metavar="FIRST..LAST",
        help="write a Chrome trace of these steps, counted from 0, into the run directory",
    )
    report = add(
        "--no-report", action="store_true", help="write no report.html when the run has finished"
    )
    money = add_money_flags(train)
    add_recipe_flags(train)
    train.hide([changes, profile, report, add_trust_flag(train), *money, *add_node_flags(train)])
    return train


def add_money_flags(parser: Parser) -> list[argparse.Action]:
    """The flags of what a run costs."""
    group = parser.add_argument_group("what it may cost (the result stays the same)")
    return [
        add_price_flag(
            group, "dollars for an hour of this machine [that of a machine that is known]"
        ),
        group.add_argument(
            "--max-dollars",
            type=float,
            metavar="X",
            help="stop with a checkpoint before the run, in all attempts, has cost so much "
            "[no limit]",
        ),
        group.add_argument(
            "--max-hours",
            type=float,
            metavar="X",
            help="stop with a checkpoint before the attempts of the run take X hours [no limit]",
        ),
    ]


def add_node_flags(parser: Parser) -> list[argparse.Action]:
    """The flags of a run on several machines."""
    group = parser.add_argument_group("several machines")
    return [
        group.add_argument(
            "--nodes",
            metavar="MIN:MAX",
            help="how many machines train together; they may come and go. Start the same command "
            "on each; they share the run directory and the packed set, on a disk or in a store "
            "[this one alone]",
        ),
        group.add_argument(
            "--rendezvous",
            metavar="HOST:PORT",
            help="where the machines meet: an address of one of them, and a free port there",
        ),
        group.add_argument(
            "--yes",
            action="store_true",
            help="train even if the link between machines takes more than a fifth of each step",
        ),
    ]


def parsed_flags(arguments: Sequence[str]) -> argparse.Namespace:
    """The flags, with the working folder of a run in a store as `--run`."""
    parsed = parser().parse(arguments)
    if location := run_location(parsed.run):
        from stoker.survive.remote.open import open_working_folder  # --help does without it

        parsed.run = str(open_working_folder(location, for_nodes=bool(parsed.nodes)))
    return parsed


@dataclass(frozen=True)
class TrainJob:
    """What a command trains: read, checked and packed, with nothing begun."""

    data: Path
    run: Run
    resolved: Resolved
    allowed: Sequence[str]
    """Recipe keys that may differ from those of the run."""


def run(arguments: Sequence[str]) -> int:
    stop = StopRequest()
    stop.listen()
    with leaving_at_once(stop):
        parsed = parsed_flags(arguments)
        meeting = meeting_point(parsed.nodes, parsed.rendezvous)
        job = job_of(parsed, stop)
        if job is None:
            return FINISHED
    if (meeting or parsed.ranks > 1) and not is_rank():
        own_code = job.resolved.recipe.model_code
        plan = launch.plan_launch(parsed.ranks, arguments, job.data, job.run, stop, own_code)
        if meeting:
            code = launch.launch_elastic(plan, job.run, *meeting)
        else:
            code = launch.launch(plan, job.run)
        report_end(job.run, code, parsed)
        return code
    code = train_here(job, stop, parsed)
    report_end(job.run, code, parsed)
    if code == FINISHED and speaks() and (advice := launch.next_step(job.run, parsed.data)):
        say(advice)
    return code


def leaving_at_once(stop: StopRequest) -> AbstractContextManager[None]:
    """A block that a stop request leaves at once, unless other ranks wait for this one to join."""
    return nullcontext() if joins_others() else stops_at_once(stop, STARTING, UNCHANGED)


def job_of(parsed: argparse.Namespace, stop: StopRequest) -> TrainJob | None:
    """What the flags of a command say; None where the run is finished already, which is said.
    Raises BadRequest for a mistake, Interrupted where packing is stopped."""
    candidates = with_own_code(
        resolutions(parsed.recipe, flag_values(parsed)),
        parsed.trust_code,
        Run(parsed.run) if parsed.run else None,
        os.environ.get(launch.MODEL_CODE, "") if is_rank() else "",
    )
    recipe = candidates[0].recipe
    profile_steps(parsed.profile)
    check(parsed, recipe)
    data = packed(parsed.data, recipe, stop)
    from stoker.data.dataset import Dataset

    dataset = Dataset(data)
    path, resolved = launch.find_run(parsed.run, data, dataset.fingerprint, candidates)
    run = Run(path)
    allowed = [name.replace("-", "_") for name in parsed.allow_change.split(",") if name]
    if note := "" if is_rank() else launch.check_weights(run, resolved.recipe):
        say(f"note: {note}")
    if run.exists and is_finished(run, resolved.recipe, dataset, allowed):
        return None
    if not is_rank():
        check_money(parsed, run, recipe)
        require_storage(path)
    return TrainJob(data, run, resolved, allowed)


def report_end(run: Run, code: int, parsed: argparse.Namespace) -> None:
    """Write the report of a run that has finished, and print where. What goes wrong is a note: the
    run is complete without it. Of the machines of a run in a store, the one that led writes it."""
    if code != FINISHED or parsed.no_report or is_rank() or not speaks():
        return
    from stoker.show.report.page import write_report
    from stoker.survive.remote.open import update_working_folder, upload_rest, was_trained_here

    location, target = bound_location(run.path), run.path / REPORT
    if location and not was_trained_here(run.path):
        return
    name = shown(str(location or run.path))
    try:
        if location:
            update_working_folder(location, run.path)
        write_report(run, target)
        if location:
            upload_rest(location, run.path, always=True)
        say(f"report: {f'{name}/{REPORT}' if location else shown(str(target))}")
    except Exception as error:
        say(f"note: no report was written ({one_line(str(error))}): stoker report {name}")


def is_finished(
    run: Run, recipe: Recipe, dataset: DatasetIdentity, allowed: Collection[str]
) -> bool:
    """Whether nothing is left to do for a run that exists; says so. Raises BadRequest where the
    recipe has changed without consent."""
    changes = run.recipe_changes(recipe, dataset, allowed)
    if not run.finished or any(change.kind == CONSENT for change in changes):
        return False
    early = launch.early_end_of(run, recipe)
    if early is None or not launch.has_result(run):
        return False
    location = bound_location(run.path)
    if location and not is_rank():
        from stoker.survive.remote.open import upload_rest

        upload_rest(location, run.path)
    if speaks():
        name = shown(str(location or run.path))
        say(f"finished already{f' ({early})' if early else ''}: stoker explain {name}")
    return True


def profile_steps(text: str | None) -> range | None:
    """The steps of --profile; None without it. Raises BadRequest where it names no steps."""
    if text is None:
        return None
    numbers = re.fullmatch(r"([0-9]{1,12})\.\.([0-9]{1,12})", text)
    if not numbers:
        raise BadRequest(f"--profile must be FIRST..LAST, such as 100..110, not '{shown(text)}'")
    first, last = map(int, numbers.groups())
    if last < first:
        raise BadRequest(f"--profile {text} ends before it begins: write {last}..{first}")
    if last - first >= MOST_PROFILED:
        raise BadRequest(
            f"--profile {text} has {last - first + 1:,} steps, and a trace may have "
            f"{MOST_PROFILED}: write {first}..{first + MOST_PROFILED - 1}"
        )
    return range(first, last + 1)


def limits_of(parsed: argparse.Namespace) -> BudgetLimits:
    """The budget. Raises BadRequest where a limit is not a number above 0."""
    from stoker.price.ledger.budget import BudgetLimits

    for flag, value in (("--max-dollars", parsed.max_dollars), ("--max-hours", parsed.max_hours)):
        if value is not None and not 0 < value < math.inf:
            raise BadRequest(f"{flag} must be above 0, not {value:g}")
    return BudgetLimits(parsed.max_dollars, parsed.max_hours)


def check_money(parsed: argparse.Namespace, run: Run, recipe: Recipe) -> None:
    """Raise BadRequest where a budget has no price, or is spent."""
    if limits := limits_of(parsed):
        from stoker.price.ledger.budget import check_budget
        from stoker.price.machine_here import price_here

        price = price_here(parsed.price_per_hour, recipe.spot_notice)
        check_budget(limits, run, price)


def speaks() -> bool:
    """Whether this process writes to the console: rank 0 does."""
    return os.environ.get("RANK", "0") == "0"


def check(parsed: argparse.Namespace, recipe: Recipe) -> None:
    """Raise BadRequest for what needs neither the images nor torch to be known as a mistake."""
    check_price(parsed.price_per_hour)
    limits_of(parsed)
    check_ranks(parsed.ranks)
    check_batch(recipe, parsed.ranks)
    check_model(recipe)
    check_optimizer(recipe)
    check_fine_tuning(recipe)
    if not is_rank():
        check_rank_variables(os.environ, parsed.ranks)
        launch.check_run_place(Path(parsed.run or "runs"), parsed.data)


def packed(folder: str, recipe: Recipe, stop: StopRequest) -> Path:
    """The packed set: the folder itself, or the result of packing it."""
    from stoker.data.dataset import Dataset

    if is_rank() and launch.PACKED in os.environ:
        return Path(os.environ[launch.PACKED])
    if is_location(folder) or Dataset.is_packed(folder):
        return Path(folder)
    from stoker.cli.pack import pack_and_show
    from stoker.data.packing.pack import default_out

    out = default_out(folder)
    quick = OWN.fullmatch(recipe.model) and not recipe.weights
    if Path(folder).exists() and not Dataset.is_packed(out) and not quick:
        from stoker.train.model.start import try_model

        try_model(recipe)
    return pack_and_show(folder, None, stop, recipe.spot_notice)


def train_here(job: TrainJob, stop: StopRequest, parsed: argparse.Namespace) -> int:
    """Train in this process; the exit code. Raises BudgetSpent where a budget ended it."""
    from stoker.price.ledger.budget import raise_budget_stop

    try:
        outcome = train_job(job, stop, parsed)
    except Interrupted:
        if not is_rank():
            raise_budget_stop(stop.reason)
        raise
    if not is_rank() and outcome != "finished":
        raise_budget_stop(stop.reason)
    return exit_code(outcome, steps_aside=stop.steps_aside)


def train_job(job: TrainJob, stop: StopRequest, parsed: argparse.Namespace) -> str:
    """Train in this process; the outcome. Raises Interrupted where it was stopped before a step."""
    recipe, location = job.resolved.recipe, bound_location(job.run.path)
    name = str(location or job.run.path)
    # Before the imports: its own take as long, and a core may be free.
    reader = early_reader(job.run.path, recipe.rehearse)
    if speaks():
        say(f"run {name}")
        say_note(job.resolved)
    with leaving_at_once(stop):
        from stoker.show.console import console_for
        from stoker.train.attempt.inputs import AttemptOptions
        from stoker.train.attempt.session import train
    if speaks():
        say(f"PyTorch is loaded: building {recipe.model}")
        world = int(os.environ.get("WORLD_SIZE", "1"))
        if world > 1 and not is_rank():
            say(f"waiting for {world} ranks, as WORLD_SIZE says; unset it to train alone")
    listeners = (console_for(name, recipe.log_interval),) if speaks() else ()
    options = AttemptOptions(
        accept_slow_link=parsed.yes,
        profile=profile_steps(parsed.profile),
        price_per_hour=parsed.price_per_hour,
        limits=limits_of(parsed),
    )
    return train(
        job.data, job.resolved, job.run.path, listeners, stop, job.allowed, options, reader
    )
