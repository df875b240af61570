"""Several ranks of this machine evaluate together.

Invariants: the ranks run the command that the user typed, with the packed set named. Rank 0 prints
and writes the result. What ranks write to standard error is shown only where they fail, each
message once.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from stoker.errors import BAD_REQUEST, FINISHED, INTERRUPTED, BadRequest, Interrupted, StokerError
from stoker.fleet.launcher import launch, log_lines_since, private_folder
from stoker.survive.stopping import UNCHANGED
from stoker.text import say
from stoker.train.attempt.launch import LOG_LINES, PACKED


def evaluate_on_ranks(
    ranks: int, arguments: Sequence[str], data: Path, stop: Callable[[], bool]
) -> int:
    """Run `stoker ARGUMENTS` on some ranks; the exit code. Raises Interrupted where a stop was
    requested, BadRequest or StokerError where a rank refuses or fails."""
    folder = private_folder("stoker-evaluate-")
    try:
        log = folder / "ranks.log"
        result = launch(ranks, arguments, log, {PACKED: str(data)}, stop)
        lines, messages = log_lines_since(log, 0)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if set(result.codes) == {FINISHED}:
        return FINISHED
    if result.stop_signal or INTERRUPTED in result.codes:
        name = result.stop_signal.name if result.stop_signal else "another rank was told to stop"
        raise Interrupted(f"evaluating stopped ({name}); {UNCHANGED}")
    texts = [line.removeprefix("stoker: ") for line in messages]
    if BAD_REQUEST in result.codes and texts:
        raise BadRequest("; ".join(texts))
    if result.killed:
        raise StokerError(f"{result.killed}: give the same command again")
    if not texts:
        say(*lines[-LOG_LINES:], stream=sys.stderr, wrap=False)
        raise StokerError(f"{result.cause} (exit codes {result.codes})")
    raise StokerError("; ".join(texts))
