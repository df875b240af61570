"""stoker runs [FOLDER]: runs, their states, and what may still be billed."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from stoker.cli.flags import Parser
from stoker.cli.streams import check_json, write_figures
from stoker.commit import json_bytes
from stoker.errors import FINISHED, BadRequest
from stoker.fleet.sky.commands import find_sky, read_states
from stoker.fleet.sky.records import GONE, CloudJob, UnreadableJob, jobs_below, read_job, write_job
from stoker.run.listing import runs_below, summary_of
from stoker.show.runs import billed_lines, figures_of, nothing_line, refreshed_line, run_lines
from stoker.text import say, shown

USUAL = (Path("runs"), Path("jobs"))

Jobs = list[tuple[Path, CloudJob | UnreadableJob]]


def parser() -> Parser:
    runs = Parser(
        prog="stoker runs",
        usage="stoker runs [FOLDER ...] [--refresh] [--json FILE]",
        description="List the runs in folders, with their states, best accuracy and hours, and "
        "the rented machines, disks and buckets that may still be billed. It reads files alone; "
        "--refresh asks SkyPilot.",
    )
    add = runs.add_argument
    add("folders", metavar="FOLDER", nargs="*", type=Path, help="folders of runs [runs and jobs]")
    add("--refresh", action="store_true", help="ask SkyPilot which machines are gone")
    add("--json", metavar="FILE", default="", help="write the list to a file; - prints it")
    return runs


def run(arguments: Sequence[str]) -> int:
    parsed = parser().parse(arguments)
    folders = parsed.folders or list(USUAL)
    if missing := next((folder for folder in parsed.folders if not folder.is_dir()), None):
        raise BadRequest(f"no folder at {shown(str(missing))}")
    to_screen = parsed.json == "-"
    check_json("" if to_screen else parsed.json)
    jobs = [job for folder in folders for job in cloud_jobs(folder)]
    controllers: Mapping[str, str] = {}
    if parsed.refresh:
        jobs, controllers, line = refreshed(jobs)
        if not to_screen:
            say(line)
    runs = [summary_of(path) for folder in folders for path in runs_below(folder)]
    figures = figures_of(runs, jobs, controllers)
    if to_screen:
        say(*json_bytes(figures).decode().splitlines(), wrap=False)
    elif parsed.json:
        write_figures(parsed.json, figures)
    if not to_screen:
        say(*(run_lines(runs) if runs else [nothing_line(folders)]), wrap=False)
        say(*billed_lines(jobs, controllers, time.time()), wrap=False)
    return FINISHED


def cloud_jobs(folder: Path) -> Jobs:
    """The jobs of a folder, or the job that it is itself."""
    own = read_job(folder)
    return [(folder, own)] if own else list(jobs_below(folder))


def refreshed(jobs: Jobs) -> tuple[Jobs, Mapping[str, str], str]:
    """The jobs with their states read back, which is put on record; the machines of SkyPilot's
    own; and a line about it. Raises StokerError where SkyPilot does not answer."""
    open_jobs = [job for _, job in jobs if isinstance(job, CloudJob) and job.may_be_billed]
    states = read_states(find_sky(), managed=any(job.managed for job in open_jobs))
    now, answers = time.time(), Jobs()
    for folder, job in jobs:
        if isinstance(job, CloudJob) and job.may_be_billed:
            job = job.with_state(states.of(job), now)
            write_job(folder, job)
        answers.append((folder, job))
    gone = len([job for job in open_jobs if states.of(job) == GONE])
    return answers, states.controllers, refreshed_line(len(open_jobs), gone)
