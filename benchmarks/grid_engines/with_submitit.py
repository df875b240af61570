"""submitit: jobs by a local executor, or as an array of SLURM where the second word says so.

The local executor starts everything at once, so threads hold jobs back. Of SLURM's jobs the ids are
kept, and a script that is started again waits for the jobs that are still there: that, and which
cells are done, is bookkeeping of this file, because submitit keeps neither. A job that was killed
is submitted again when the script is started again.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import submitit

from grid_engines.spec import GridSpec, call, report, spec_from_flags

POLL_S = 0.5
Job = submitit.Job[float]


def run_local(spec: GridSpec) -> list[str]:
    executor = submitit.AutoExecutor(folder=spec.folder / "submitit", cluster="local")
    executor.update_parameters(timeout_min=10)

    def name_of_done(name: str) -> str | None:
        job = executor.submit(call, spec.commands[name])
        return None if job.exception() else name

    with ThreadPoolExecutor(spec.workers) as pool:
        return [name for name in pool.map(name_of_done, spec.commands) if name]


def run_slurm(spec: GridSpec) -> list[str]:
    executor = submitit.AutoExecutor(folder=spec.folder / "submitit", cluster="slurm")
    executor.update_parameters(timeout_min=10, slurm_array_parallelism=spec.workers)
    book = spec.folder / "jobs.json"
    ids: dict[str, str] = json.loads(book.read_text()) if book.exists() else {}
    jobs = {name: submitit.SlurmJob(executor.folder, number) for name, number in ids.items()}
    known = waited_for(jobs) | {name for name, job in jobs.items() if succeeded(job)}
    left = [name for name in spec.commands if name not in known]
    new = executor.map_array(call, [spec.commands[name] for name in left])
    jobs |= dict(zip(left, new, strict=True))
    book.write_text(json.dumps({name: job.job_id for name, job in jobs.items()}))
    while waited_for(jobs):
        time.sleep(POLL_S)
    return [name for name, job in jobs.items() if succeeded(job)]


def succeeded(job: Job) -> bool:
    return job.paths.result_pickle.exists() and not job.exception()


def waited_for(jobs: dict[str, Job]) -> set[str]:
    """The cells whose jobs are queued or run. submitit itself asks `sacct`, which needs SLURM's
    database; without it, a job that was killed counts as running for ever."""
    words = ["squeue", "--noheader", "--array", "--format=%i"]
    queue = set(subprocess.run(words, check=True, capture_output=True, text=True).stdout.split())
    return {name for name, job in jobs.items() if job.job_id in queue}


def main() -> None:
    spec = spec_from_flags()
    report(run_slurm(spec) if sys.argv[2:] == ["slurm"] else run_local(spec))


if __name__ == "__main__":
    main()
