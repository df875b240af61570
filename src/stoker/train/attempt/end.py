"""The end of an attempt: every way out writes its `end` event and chooses its exit code here."""

from __future__ import annotations

import os
from typing import Any

from stoker.errors import exit_code
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
) -> None:
    """Write the `end` event. `saved`: this step is in a checkpoint; `parts`: times since then."""
    progress: dict[str, Any] = {}
    if state is not None:
        progress = {"position": state.position, "step": state.step, "best": state.best}
    if state is not None and outcome == FINISHED and reason:
        progress["stale"] = state.stale  # with `best`, what an early end was decided by
    events.write("end", outcome=outcome, reason=reason, parts=parts or {}, saved=saved, **progress)
    events.flush()


def exit_interrupted(*, steps_aside: bool) -> None:
    """End this process at once, without its usual clean-up."""
    os._exit(exit_code(INTERRUPTED, steps_aside=steps_aside))
