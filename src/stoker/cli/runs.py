"""stoker runs [FOLDER ...]: runs, their states, and what may still be billed."""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from stoker.cli.flags import Parser
from stoker.cli.places import folders_below
from stoker.cli.streams import check_output, write_output
from stoker.commit import json_bytes
from stoker.errors import FINISHED, BadRequest
from stoker.fleet.sky.commands import find_sky, read_states
from stoker.fleet.sky.records import GONE, CloudJob, UnreadableJob, jobs_below, read_job, write_job
from stoker.history.selection import (
    FILTER_KEYS,
    SORT_KEYS,
    fitting_runs,
    in_order,
    parse_filter,
)
from stoker.run.listing import RunSummary, runs_below, summary_of
from stoker.show.runs import (
    billed_lines,
    csv_text,
    figures_of,
    nothing_line,
    refreshed_line,
    run_lines,
)
from stoker.stores.location import is_location
from stoker.text import say, shown

USUAL = (Path("runs"), Path("jobs"))

Jobs = list[tuple[Path, CloudJob | UnreadableJob]]


def parser() -> Parser:
    runs = Parser(
        prog="stoker runs",
        usage="stoker runs [FOLDER ...] [--sort KEY] [--filter KEY=VALUE] [options]",
        description="List the runs in folders, also those in the cells of sweeps and ticket "
        "studies, with their states, best accuracy, hours, dollars and what limits them, and "
        "the rented machines, disks and buckets that may still be billed. It reads files alone; "
        "--refresh asks SkyPilot.",
        examples=(
            "stoker runs --sort best --reverse",
            "stoker runs --filter state=running --filter 'best>0.7'",
            "stoker runs sweeps/lr --filter 'name=*seed=1*' --csv runs.csv",
        ),
    )
    add = runs.add_argument
    add(
        "folders",
        metavar="FOLDER",
        nargs="*",
        type=Path,
        help="folders of runs, or s3://BUCKET/PREFIX [runs and jobs]",
    )
    add("--sort", metavar="KEY", default="name", help=f"{', '.join(SORT_KEYS)} [name]")
    add("--reverse", action="store_true", help="the largest first; runs without a value stay last")
    help = (
        "only runs that fit, such as model=resnet18, 'name=*mobilenet*', 'best>0.7' or 'hours<2'; "
        f"several must all fit; keys: {', '.join(FILTER_KEYS)}"
    )
    add("--filter", metavar="KEY=VALUE", action="append", default=[], dest="filters", help=help)
    add("--refresh", action="store_true", help="ask SkyPilot which machines are gone")
    add("--json", metavar="FILE", default="", help="write the list to a file; - prints it")
    add("--csv", metavar="FILE", default="", help="write the runs to a file; - prints them")
    return runs


def run(arguments: Sequence[str]) -> int:
    parsed = parser().parse(arguments)
    check(parsed)
    folders = folders_below(parsed.folders or list(USUAL))
    is_quiet = "-" in (parsed.json, parsed.csv)
    chosen_runs(parsed, [])  # a mistake in a flag is said before anything is asked
    jobs = [job for folder in folders for job in cloud_jobs(folder)]
    controllers: Mapping[str, str] = {}
    if parsed.refresh:
        jobs, controllers, line = refreshed(jobs)
        if not is_quiet:
            say(line)
    runs = chosen_runs(parsed, folders)
    if parsed.json:
        write(parsed.json, "--json", json_bytes(figures_of(runs, jobs, controllers)))
    if parsed.csv:
        write(parsed.csv, "--csv", csv_text(runs).encode("utf-8", "backslashreplace"))
    if not is_quiet:
        nothing = nothing_line(folders, is_filtered=bool(parsed.filters))
        width = shutil.get_terminal_size().columns
        say(*(run_lines(runs, width) if runs else [nothing]), wrap=False)
        say(*billed_lines(jobs, controllers, time.time()), wrap=False)
    return FINISHED


def check(parsed: argparse.Namespace) -> None:
    """Raise BadRequest where a folder does not exist or a file cannot be written."""
    here = [folder for folder in parsed.folders if not is_location(folder)]
    if missing := next((folder for folder in here if not folder.is_dir()), None):
        raise BadRequest(f"no folder at {shown(str(missing))}")
    if parsed.json == parsed.csv == "-":
        raise BadRequest("--json - and --csv - both write to standard output: name a file for one")
    for flag in ("json", "csv"):
        file = getattr(parsed, flag)
        check_output(f"--{flag}", "" if file == "-" else file)


def chosen_runs(parsed: argparse.Namespace, folders: Sequence[Path]) -> list[RunSummary]:
    """The runs of folders that the flags ask for, in their order. Raises BadRequest."""
    filters = [parse_filter(text) for text in parsed.filters]
    runs = [summary_of(path) for folder in folders for path in runs_below(folder)]
    return in_order(fitting_runs(runs, filters), parsed.sort, descending=parsed.reverse)


def write(file: str, flag: str, data: bytes) -> None:
    """Write the text of a flag to its file, or to standard output."""
    if file == "-":
        say(*data.decode().splitlines(), wrap=False)
    else:
        write_output(flag, file, data)


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
