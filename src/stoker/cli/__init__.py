"""The commands: one small module per verb, which parses, calls and shows. No torch at import."""

from __future__ import annotations

import os
import sys
import threading
import traceback
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from importlib import import_module
from types import TracebackType
from typing import Any

import stoker
from stoker import faults
from stoker.cli.streams import closing_code, open_streams
from stoker.errors import BAD_REQUEST, FINISHED, BadRequest, StokerError
from stoker.host.signals import ignore_stop_signals
from stoker.host.threads import end_process, limit_spinning
from stoker.stores.location import refuse_credentials_in
from stoker.survive.stopping import stoppable
from stoker.text import lost_output, one_line, say, say_error, shown

VERBS = {
    "train": "train or fine-tune a model; resumes a stopped run",
    "pack": "convert images into a packed set, and report bad images",
    "verify": "check every hash of a packed set, or of a run's checkpoints",
    "upload": "copy a packed set from a folder to an object store",
    "fetch": "fill the cache with a packed set in a store, beforehand",
    "doctor": "measure this machine, and predict training speed and its limit",
    "selftest": "check on this machine what Stoker promises, on a GPU or without",
    "bench": "measure how fast this machine loads and trains; compare machines",
    "plan": "forecast time and cost on machines not rented yet; check claims",
    "evaluate": "evaluate a trained model class by class, on any labelled images",
    "predict": "classify images with a trained model",
    "export": "write a trained model for use elsewhere: safetensors, torch, ONNX",
    "watch": "show running or ended runs on one screen, kept up to date",
    "report": "write one HTML file about a run, or about several compared",
    "explain": "show what a run did, where its time went and what limited it",
    "runs": "list runs, their states, and what may still be billed",
    "track": "copy the curves of a run to TensorBoard, MLflow, W&B or CSV",
    "prices": "show what GPU machines cost, from where and since when",
    "sweep": "train every combination of some settings, and compare them",
    "tickets": "prune, rewind and train again: is there a lottery ticket?",
    "work": "run cells of a grid of runs, beside other workers",
    "launch": "run a command on a SLURM cluster or a rented machine, to its end",
    "requeue": "the last line of such a job: record its end, queue it again",
    "lease": "end this rented machine with its job, and when the job hangs",
    "show-config": "print the resolved recipe, each value with its origin",
    "show-batch": "write a picture of a training batch, as the model sees it",
}

UNSTOPPABLE = ("requeue",)
"""Verbs that only take moments: SLURM signals the last line of a job like everything before it."""

USAGE = (
    "usage: stoker VERB ...\n\n"
    + "\n".join(f"  {verb:<12} {help}" for verb, help in VERBS.items())
    + "\n\n'stoker VERB --help' shows the flags of a verb.\n"
    "Exit codes: 0 finished, 75 stopped and resumable, 2 bad request, 1 failed."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns its exit code. Without arguments the command is this process: then
    it is stoppable from here on, and ends here past threads that hang."""
    if arguments is not None or threading.current_thread() is not threading.main_thread():
        return run_command(list(sys.argv[1:] if arguments is None else arguments), is_process=False)
    code = run_command(sys.argv[1:], is_process=True)
    end_process(code)
    return code


def run_command(words: list[str], *, is_process: bool) -> int:
    open_streams()
    limit_spinning()
    if is_process:
        show_crashes()
    needs_output = True
    try:
        arm_faults()
        refuse_credentials_in(words)
        verb, rest = find_verb(words)
        needs_output = verb not in ("train", "pack")
        if verb is None:
            code = answer_without_verb(words)
        else:
            if is_process and verb in UNSTOPPABLE:
                ignore_stop_signals()
            with stoppable(f"'stoker {verb}'") if is_process else nullcontext():
                code = int(import_module(f"stoker.cli.{verb.replace('-', '_')}").run(rest))
    except SystemExit:  # after --help
        if not lost_output:
            raise
        code, needs_output = FINISHED, True
    except StokerError as error:
        say_error(error.lines)
        code = error.exit_code
    return closing_code(code, needs_output=needs_output)


def show_crashes() -> None:
    """Print tracebacks and warnings like all other text: they may quote names from files."""

    def show(
        kind: type[BaseException], error: BaseException | None, trace: TracebackType | None
    ) -> None:
        text = "".join(traceback.format_exception(kind, error, trace))
        say(*text.splitlines(), stream=sys.stderr, wrap=False)

    def warn(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        say(f"{category.__name__}: {message}", stream=sys.stderr)

    sys.excepthook = show
    threading.excepthook = lambda crash: show(crash.exc_type, crash.exc_value, crash.exc_traceback)
    warnings.showwarning = warn


def arm_faults() -> None:
    """Arm the faults that a test injects, and name them once, before a verb begins; ranks do not.
    Raises BadRequest if the variable does not hold faults."""
    try:
        faults.arm()
    except (ValueError, TypeError, AttributeError) as error:
        value = shown(one_line(os.environ[faults.VARIABLE]))
        raise BadRequest(
            f"{faults.VARIABLE} must be a JSON list of faults, for tests, not '{value}': unset it"
        ) from error
    if note := faults.note():
        from stoker.fleet.launcher import is_rank

        if not is_rank():
            say(f"note: {note}", stream=sys.stderr)


def find_verb(words: list[str]) -> tuple[str | None, list[str]]:
    """The verb, which may come after flags, and all other words; None where there is no verb."""
    verbs = [number for number, word in enumerate(words) if word in VERBS]
    # A word right after a flag may be the value of the flag: prefer one that is not.
    free = [number for number in verbs if number == 0 or not words[number - 1].startswith("--")]
    first = next((n for n, word in enumerate(words) if not word.startswith("-")), None)
    for number in free or verbs:
        if number == first or words[0].startswith("-"):
            return words[number], words[:number] + words[number + 1 :]
    return None, words


def answer_without_verb(words: list[str]) -> int:
    """Print the version, the help, or that the verb is unknown. Returns the exit code."""
    if "--version" in words:
        say(f"stoker {stoker.__version__}")
        return FINISHED
    if not words or words[0] in ("-h", "--help", "help"):
        say(*USAGE.splitlines())
        return FINISHED
    from stoker.recipe.resolve import nearest

    near = nearest(words[0], VERBS)
    hint = f"did you mean '{near}'?" if near else f"the verbs are {', '.join(VERBS)}"
    say(f"stoker: no verb called '{words[0]}': {hint}", stream=sys.stderr)
    return BAD_REQUEST
