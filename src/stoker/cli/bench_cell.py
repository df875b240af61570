"""stoker bench cell FOLDER: one cell of `stoker bench train`, which starts it. Not for users."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from stoker.errors import BadRequest
from stoker.fleet.launcher import is_rank
from stoker.plan.bench.keeper import JOB, keep_cell


def run(words: Sequence[str]) -> int:
    """Measure as a rank of a cell, or start and keep its ranks."""
    folder = Path(words[0]) if len(words) == 1 else Path()
    if not (folder / JOB).is_file():
        raise BadRequest("'stoker bench train' starts its cells itself: stoker bench train --help")
    job = json.loads((folder / JOB).read_bytes())
    if not is_rank():
        return keep_cell(folder, job["ranks"], job["time_limit_s"], job["memory_bytes"])
    # Here, because the process that keeps the ranks needs neither torch nor OpenCV.
    from stoker.plan.bench.measure import CellJob, run_rank

    return run_rank(folder, CellJob.of(job))
