"""One rank of several runs, one after the other: python spans_rank.py PLAN, with RANK etc. set.

The plan is a list of {"argv", "meeting", "laps", "trial"}; `trial` says whether a larger batch is
tried during the run. Beside the run's own events, the begin and end of each lap are written to one
file for each rank, from the marks of which its parts are made.
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
laps: list[tuple[float, float]] = []
take_lap = Spans.lap


def recorded(self: Spans, *shares: Any) -> Lap:
    lap = take_lap(self, *shares)
    laps.append((lap.marks[0][1][0], lap.marks[-1][1][0]))
    return lap


Spans.lap = recorded  # type: ignore[method-assign]
for planned in json.loads(Path(sys.argv[1]).read_text()):
    laps.clear()
    if os.environ["WORLD_SIZE"] != "1":
        os.environ[RENDEZVOUS_FILE] = planned["meeting"]
    watch.SHORT_STEP_S = 1e9 if planned["trial"] else 0.0
    code = main(planned["argv"])
    assert code == 0, (planned["argv"], code)
    Path(f"{planned['laps']}.{rank}").write_text(json.dumps(laps))
