"""Stoker's cells on SLURM: an array of workers that share the leases of one folder.

    python -m grid_engines.with_stoker_slurm FOLDER WORKERS words of stoker sweep

A task whose worker was killed is queued again. Started again, it adds workers to those that are
there, and waits until every cell has ended.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from pathlib import Path

from stoker.cli.sweep import parser, plan

POLL_S = 0.5
BATCH = """#!/bin/bash
#SBATCH --array=0-{last} --requeue --open-mode=append --output={folder}/slurm-%A_%a.txt
srun {python} -P -m stoker work {grid} --plan {plan} && exit 0
exec scontrol requeue ${{SLURM_ARRAY_JOB_ID}}_${{SLURM_ARRAY_TASK_ID}}
"""


def main() -> None:
    folder, workers = Path(sys.argv[1]), int(sys.argv[2])
    planned, grid, digest = plan(parser().parse(sys.argv[3:]))
    batch = folder / "slurm.sh"
    words = {"python": sys.executable, "folder": folder, "grid": grid.path, "plan": digest}
    quoted = {name: shlex.quote(str(word)) for name, word in words.items()}
    batch.write_text(BATCH.format(last=workers - 1, **quoted), encoding="utf-8")
    subprocess.run(["sbatch", str(batch)], check=True)
    while not grid.status(planned.plan).is_over:
        time.sleep(POLL_S)


if __name__ == "__main__":
    main()
