"""The commands: one small module a verb. Parse, call, show; no logic, no torch at import."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module

import stoker
from stoker import faults
from stoker.errors import BAD_REQUEST, FINISHED, StokerError
from stoker.text import say

VERBS = {
    "train": "train or fine-tune; goes on where it was stopped",
    "pack": "make images quick to read, and say what is wrong with them",
    "verify": "recompute every hash of a packed set, and name what is damaged",
    "doctor": "what this machine can do, what will limit you, and how fast training will be",
    "bench": "how quickly a packed set can be fed here, cold and warm, and what limits that",
    "explain": "what happened to a run, where its time went, what bound it",
    "show-config": "the resolved recipe, each value with its origin",
}

USAGE = (
    "usage: stoker VERB ...\n\n"
    + "\n".join(f"  {verb:<12} {help}" for verb, help in VERBS.items())
    + "\n\n'stoker VERB --help' says more. Exit codes: 0 finished, 75 stopped and resumable, "
    "2 bad request, 1 failed."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    faults.arm()
    try:
        verb, rest = find_verb(words)
        if verb is None:
            code = answer_without_verb(words)
            sys.stdout.flush()
            return code
        module = import_module(f"stoker.cli.{verb.replace('-', '_')}")
        code = int(module.run(rest))
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # Whoever read our output has seen enough. (What trains or packs never gets here: its
        # words are said by `say`.)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FINISHED
    except StokerError as error:
        say(f"stoker: {error}", sys.stderr)
        return error.exit_code


def find_verb(words: list[str]) -> tuple[str | None, list[str]]:
    """The verb, wherever among the flags it stands, and everything else."""
    places = [place for place, word in enumerate(words) if word in VERBS]
    # A word right after a flag may be its value: one that is not is the better guess.
    free = [place for place in places if place == 0 or not words[place - 1].startswith("--")]
    first = next((p for p, word in enumerate(words) if not word.startswith("-")), None)
    for place in free or places:
        if place == first or words[0].startswith("-"):
            return words[place], words[:place] + words[place + 1 :]
    return None, words


def answer_without_verb(words: list[str]) -> int:
    if "--version" in words:
        print(f"stoker {stoker.__version__}")
        return FINISHED
    if not words or words[0] in ("-h", "--help", "help"):
        say(USAGE)
        return FINISHED
    from stoker.recipe.resolve import nearest

    near = nearest(words[0], VERBS)
    hint = f"did you mean '{near}'?" if near else f"verbs: {', '.join(VERBS)}"
    say(f"stoker: no verb called '{words[0]}': {hint}", sys.stderr)
    return BAD_REQUEST
