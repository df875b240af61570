"""The end of an attempt: every way out writes its `end` event and chooses its exit code here."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from stoker.errors import exit_code
from stoker.fleet.launcher import is_rank
from stoker.price.ledger.budget import BudgetSpent, is_budget_stop
from stoker.run.events import Events
from stoker.train.state import TrainState

FINISHED, INTERRUPTED = "finished", "interrupted"
ROLLED_BACK, FAILED, REFUSED = "rolled back", "failed", "refused"


def write_end(
    events: Events,
    outcome: str,
    reason: str | None,
    state: TrainState | None,
    *,
    saved: bool,
    parts: dict[str, float] | None = None,
    start: Mapping[str, Any] | None = None,
) -> None:
    """Write the `end` event. `saved`: this step is in a checkpoint; `parts`: times since then.
    `start`: the facts of the checkpoint from which the attempt was to go on, if it has no state."""
    progress: dict[str, Any] = {}
    if start is not None:
        progress = {name: start.get(name, 0) for name in ("position", "step")}
        progress["best"] = start.get("best", -1.0)
    if state is not None:
        progress = {"position": state.position, "step": state.step, "best": state.best}
    if state is not None and outcome == FINISHED and reason:
        progress["stale"] = state.stale  # with `best`, what an early end was decided by
    times = {"parts": parts or {}, "clock_s": round(time.monotonic(), 3)}
    events.write("end", outcome=outcome, reason=reason, saved=saved, **times, **progress)
    events.flush()


def exit_interrupted(*, steps_aside: bool, reason: str | None = None) -> None:
    """End this process at once, without its usual clean-up. A budget ends what would start it
    again; a rank leaves that to its launcher."""
    is_spent = is_budget_stop(reason) and not is_rank()
    os._exit(BudgetSpent.exit_code if is_spent else exit_code(INTERRUPTED, steps_aside=steps_aside))
