"""One rank of some runs, one after the other: python spans_rank.py PLAN, under RANK etc.

The plan is a list of {"argv", "meeting", "laps", "trial"}: the last says whether a larger batch is
tried in mid-run. Beside the run's own events, the wall time at
which each lap began and ended is left in a file a rank, by the very marks that its parts are of.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from stoker.cli import main
from stoker.fleet.launcher import RENDEZVOUS_FILE
from stoker.measure.spans import Lap, Spans
from stoker.train.records import verdicts as watch

rank = os.environ["RANK"]
cores = sorted(os.sched_getaffinity(0))
os.sched_setaffinity(0, {cores[int(rank) % len(cores)]})
seen: list[tuple[float, float]] = []
take_lap = Spans.lap


def noted(self: Spans, *given: Any) -> Lap:
    lap = take_lap(self, *given)
    seen.append((lap.marks[0][1][0], lap.marks[-1][1][0]))
    return lap


Spans.lap = noted  # type: ignore[method-assign]
for planned in json.loads(Path(sys.argv[1]).read_text()):
    seen.clear()
    if os.environ["WORLD_SIZE"] != "1":
        os.environ[RENDEZVOUS_FILE] = planned["meeting"]
    watch.SHORT_STEP_S = 1e9 if planned["trial"] else 0.0
    code = main(planned["argv"])
    assert code == 0, (planned["argv"], code)
    Path(f"{planned['laps']}.{rank}").write_text(json.dumps(seen))
