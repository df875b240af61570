"""Starts the ranks of a training command: on this machine alone, or as one node of several.

Invariants: the ranks run the command that the user typed, with the dataset packed and the run
directory named. A run whose rank was killed is started again as long as it makes progress, and one
whose rank stepped aside always: it recorded a remedy. The messages of failed ranks are shown once.
"""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from stoker import errors
from stoker.commit import sha256_file
from stoker.errors import BadRequest, Interrupted, StokerError
from stoker.fleet.addresses import Endpoint, Nodes
from stoker.fleet.elastic import Launch
from stoker.fleet.elastic import launch as take_part
from stoker.fleet.launcher import COMMAND_START, START_TIME, is_rank, log_lines_since
from stoker.fleet.launcher import launch as start_ranks
from stoker.host.counters import process_start_s, seconds_since_start
from stoker.recipe.changes import changes
from stoker.recipe.early_end import early_end
from stoker.recipe.model_file import label_of
from stoker.recipe.recipe import Recipe
from stoker.recipe.resolve import ZERO_CONFIG, Resolved
from stoker.run.directory import Run
from stoker.run.storage import refused
from stoker.survive.manifest import manifest_of, newest_intact, pointer
from stoker.survive.remote.place import bound_location
from stoker.survive.stopping import StopRequest
from stoker.text import say, shown
from stoker.train.model.weight_places import find_weights

PACKED = "STOKER_PACKED"
"""Environment variable: the packed dataset that the launcher has made for its ranks."""
MODEL_CODE = "STOKER_MODEL_CODE"
"""Environment variable: the hash of the model's text that the launcher has read for its ranks."""
WORTH_TUNING = 0.98
"""A first look with a better top-1 than this does not propose to fine-tune."""
LOG_LINES = 20
"""The last lines of the log that are shown after a failure."""


def default_run(data: Path, fingerprint: str, resolved: Resolved, *, model: bool = True) -> Path:
    """The directory without --run: dataset, recipe, model, and a hash of what shapes the result.
    Without `model`, as earlier versions named it."""
    parts = [data.resolve().name.removesuffix("-packed"), resolved.name]
    label = label_of(resolved.recipe.model)
    if model and label not in resolved.name:
        parts.append(label)
    return Path("runs") / "-".join([*parts, resolved.recipe.digest(fingerprint)])


def find_run(
    named: str | None, data: Path, fingerprint: str, resolutions: Sequence[Resolved]
) -> tuple[Path, Resolved]:
    """The directory of the run, and its recipe: the first of the `resolutions`, or a later one for
    a run that began with it."""
    if named:
        run = Run(named)
        if not run.exists:
            return run.path, resolutions[0]
        values = run.values
        began = [
            r for r in resolutions if all(values.get(k) == getattr(r.recipe, k) for k in r.ignored)
        ]
        return run.path, min(began, key=lambda r: len(changes(values, r.recipe.values())))
    for resolved in resolutions:
        for model in (True, False):
            path = default_run(data, fingerprint, resolved, model=model)
            if Run(path).exists:
                return path, resolved
    return default_run(data, fingerprint, resolutions[0]), resolutions[0]


def check_run_place(path: Path, data: str) -> None:
    """Raise BadRequest where a new run cannot be written. Nothing is left behind. What can go wrong
    with a run that exists is found when it resumes."""
    from stoker.data.dataset import Dataset  # here: wrong flags are answered without pyarrow

    name, places = shown(str(path)), (path, *path.absolute().parents)
    place = next(place for place in places if os.path.lexists(place))
    try:
        if path.is_dir() and path.resolve() == Path(data).resolve():
            raise BadRequest(f"--run {name} is the folder of the images: name a folder of its own")
        if packed := next((place for place in places if Dataset.is_packed(place)), None):
            raise BadRequest(f"--run {name}: {shown(str(packed))} is a packed set; name another")
        if Run(path).exists:
            return
        if not place.is_dir() and os.path.lexists(place):
            raise BadRequest(f"--run {name}: {shown(str(place))} is not a folder; name another")
        try:
            tempfile.TemporaryDirectory(dir=place, prefix=".stoker-").cleanup()
        except FileNotFoundError:
            if os.path.lexists(place):
                raise
            # Another rank has removed the folder, which it had made to try the same.
    except OSError as error:
        raise refused(place, error) from error


def next_step(run: Run, data: str) -> str:
    """What to try after a first look that left something to gain; empty after another run."""
    best = (run.end() or {}).get("best", -1.0)
    own = run.values["model"].startswith("resnet9") and not run.start
    if run.record["recipe"] != ZERO_CONFIG or not own or not 0 <= best < WORTH_TUNING:
        return ""
    needs = "" if find_spec("timm") else ", after pip install timm"
    command = f"stoker train {shlex.quote(data)} --recipe finetune --pretrained"
    return f"next, from pre-trained weights{needs}: {command}"


def early_end_of(run: Run, recipe: Recipe) -> str | None:
    """Why a finished run ended before its last epoch, by this recipe; empty where it did not. None
    where it did and this recipe lets it go on."""
    end = run.end() or {}
    if "stale" not in end:
        return ""
    return early_end(recipe, end.get("best", -1.0), end["stale"]) or None


def check_weights(run: Run, recipe: Recipe) -> str:
    """A note where `--weights` is no longer what the run began with; else empty. Raises BadRequest
    where a new run has none to begin with: one that exists does not need them."""
    if not recipe.weights:
        return ""
    if not run.exists:
        find_weights(recipe.weights)
        return ""
    try:
        place = find_weights(recipe.weights)
        now = place.sha256 or sha256_file(place.file)
    except (BadRequest, OSError):
        return ""  # gone, as it may be
    if run.start.get("sha256") in (None, now):
        return ""
    return (
        f"{shown(recipe.weights)} has changed since this run began: the run keeps the weights that "
        "it has; name another --run to start from the new ones"
    )


def has_result(run: Run) -> bool:
    """Whether the last checkpoint of a finished run is there, with every hash right, and `last`
    names it. If not, an earlier one makes the same result again. Raises BadRequest where there is
    none."""
    end, (newest, reasons) = run.end() or {}, newest_intact(run.path / "checkpoints")
    if newest is None:
        reason = next(iter(reasons.values()), f"{run.path / 'checkpoints'} has none")
        raise BadRequest(
            f"{run.path} is finished, but no checkpoint is left to resume from ({reason}): put one "
            f"back from a copy, or remove {run.path} to train again"
        )
    name, position = newest
    if position < end.get("position", 0):
        reason = next(iter(reasons.values()), "it is gone")
        if not is_rank():
            say(
                f"the last checkpoint of this finished run is lost ({reason}): going on from {name}"
            )
        return False
    return pointer(run.path / "last") == name and not is_lost_best(run.path)


def is_lost_best(run_path: Path) -> bool:
    """Whether `best` names a checkpoint that is gone or incomplete: resuming mends the name."""
    best = pointer(run_path / "best")
    return best is not None and manifest_of(run_path / "checkpoints" / best) is None


def plan_launch(
    ranks: int, arguments: Sequence[str], data: Path, run: Run, stop: StopRequest, code: str = ""
) -> Launch:
    """The ranks of this machine: the same command, with dataset and run directory named. `code` is
    the hash of the model's text, if it is the user's own."""
    return Launch(
        ranks=ranks,
        arguments=["train", *arguments, "--run", str(run.path)],
        run_path=run.path,
        extra={
            PACKED: str(data),
            START_TIME: str(time.time()),
            COMMAND_START: str(process_start_s()),
            MODEL_CODE: code,
        },
        stop=lambda: bool(stop),
        progress=lambda: up_to_date(run).steps_made,
        report=show_log,
        check=run.require_place,
    )


def up_to_date(run: Run) -> Run:
    """The run, with the records of machines that share no disk with this one."""
    if location := bound_location(run.path):
        from stoker.survive.remote.open import update_working_folder  # --help does without it

        update_working_folder(location, run.path)
    return run


def limit_time(recipe: Recipe, stop: StopRequest) -> None:
    """Request a stop before the recipe's time limit, which counts from the command's start."""
    if recipe.time_limit:
        reserve = min(recipe.grace, recipe.time_limit / 4)
        began = float(os.environ.get(START_TIME, time.time() - seconds_since_start()))
        stop.after(max(began + recipe.time_limit - reserve - time.time(), 0.0))


def show_log(log: Path, offset: int, code: int) -> None:
    """Print the messages that ranks wrote after an offset, or the last lines after a failure."""
    lines, messages = log_lines_since(log, offset)
    for line in messages or (lines[-LOG_LINES:] if code == errors.FAILED else []):
        say(line, stream=sys.stderr, wrap=False)


def launch(plan: Launch, run: Run) -> int:
    """Run the ranks, again after a kill; the exit code. Raises BadRequest or StokerError, and
    BudgetSpent where a budget ended them."""
    missing = [folder for folder in (run.path, *run.path.parents) if not folder.exists()]
    run.path.mkdir(parents=True, exist_ok=True)
    run.hold()
    log = run.path / "launcher.log"
    log_size = log.stat().st_size if log.exists() else 0
    start = partial(start_ranks, plan.ranks, plan.arguments, log, plan.extra, plan.stop)
    ended, steps = start(), 0
    while not (ended.stop_signal or plan.stop() or run.finished):
        plan.check()
        if errors.STEPPED_ASIDE in ended.codes:
            say("a rank ran out of memory: going on from the newest checkpoint")
        elif ended.killed and (steps_now := run.steps_made) > steps:
            steps = steps_now
            say(f"{ended.killed}: going on from the newest checkpoint")
        else:
            break
        ended = start()
    if set(ended.codes) <= {errors.FINISHED, errors.INTERRUPTED}:
        if errors.INTERRUPTED in ended.codes:
            refuse_spent_budget(run)
            show_log(log, log_size, errors.INTERRUPTED)
        return max(ended.codes)
    if errors.STEPPED_ASIDE in ended.codes:  # and a stop was requested
        return errors.INTERRUPTED
    if ended.killed and ended.codes[0] == errors.FINISHED and run.finished:
        return errors.FINISHED  # a rank that is killed after the end of the run does not matter
    plan.check()
    lines, messages = log_lines_since(log, log_size)
    if errors.BAD_REQUEST in ended.codes and messages:
        if missing and not run.exists:  # the ranks refused to begin
            log.unlink(missing_ok=True)
            with suppress(OSError):
                for folder in missing:
                    folder.rmdir()
        raise BadRequest("; ".join(line.removeprefix("stoker: ") for line in messages))
    if any("Traceback" in line for line in lines):
        messages = [*[line for line in lines if line not in messages][-LOG_LINES:], *messages]
    say(*messages, stream=sys.stderr, wrap=False)
    raise StokerError(
        f"{ended.cause} (exit codes {ended.codes}); the full output of the ranks is in {log}"
    )


def launch_elastic(plan: Launch, run: Run, endpoint: Endpoint, nodes: Nodes) -> int:
    """Run the ranks of this node in a run over several nodes; the exit code. Raises Interrupted if
    stopped while it waits for nodes, or StokerError if the ranks failed twice at the same step."""
    run.hold()
    say(f"waiting for nodes at {endpoint} ({nodes})")
    try:
        code = take_part(plan, endpoint, nodes)
    except Interrupted:
        if up_to_date(run).finished:
            return errors.FINISHED
        raise
    if code == errors.FAILED:
        raise StokerError(
            "the ranks of this node failed twice without progress in between; their full output is "
            f"in {run.path / 'launcher-*.log'}"
        )
    if code == errors.INTERRUPTED:
        refuse_spent_budget(run)
        say("this node has left the run: the same command joins it again")
    return code


def refuse_spent_budget(run: Run) -> None:
    """Raise BudgetSpent where a budget has ended the run's last attempt."""
    from stoker.price.ledger.budget import raise_budget_stop  # --help does without it

    raise_budget_stop((run.end() or {}).get("reason"))
