"""Where a grid or a pack runs, as flags: on this machine, as a SLURM array, or on Spark."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from stoker.cli.slurm_flags import OPTIONS, add_slurm_flags, site_of, slurm_options
from stoker.errors import FINISHED, INTERRUPTED, BadRequest
from stoker.fleet.grid.array import SlurmArray
from stoker.fleet.grid.backend import Backend
from stoker.fleet.grid.directory import Grid
from stoker.fleet.grid.local import LocalWorkers
from stoker.fleet.slurm.site import find_site
from stoker.fleet.spark.master import is_master
from stoker.study.launch import threads_of
from stoker.text import say, shown

SLURM = "slurm"


def add_backend_flags(
    parser: argparse.ArgumentParser, *, spark: bool = False
) -> list[argparse.Action]:
    """Add --on, --wait and the flags of SLURM; returns the latter. With `spark`, --on also takes a
    Spark master, and there is --spark-conf."""
    if spark:
        parser.add_argument(
            "--on",
            metavar="PLACE",
            help="slurm submits the work as a SLURM array; spark://HOST:PORT or local[N] runs it "
            "on Spark [this machine]",
        )
        parser.add_argument(
            "--spark-conf",
            action="append",
            metavar="KEY=VALUE",
            help="with --on spark://...: a setting of the Spark session, such as "
            "spark.executor.memory=4g; may be given several times",
        )
    else:
        parser.add_argument(
            "--on", choices=[SLURM], help="submit the work as a SLURM array [this machine]"
        )
    parser.add_argument(
        "--wait", action="store_true", help="with --on slurm: wait for the end [submit only]"
    )
    return add_slurm_flags(parser)


def check_backend_flags(parsed: argparse.Namespace) -> None:
    """Raise BadRequest for an unknown place, and for flags of a place that --on does not name."""
    if parsed.on and parsed.on != SLURM and not is_master(parsed.on):
        raise BadRequest(
            f"--on must be slurm, spark://HOST:PORT or local[N], not '{shown(parsed.on)}'"
        )
    if getattr(parsed, "spark_conf", None) and not (parsed.on and is_master(parsed.on)):
        raise BadRequest("--spark-conf goes with --on spark://HOST:PORT: add that, or drop it")
    if parsed.on == SLURM:
        return
    flags = [name for name in (*OPTIONS, "site", "wait") if getattr(parsed, name.replace("-", "_"))]
    if flags:
        raise BadRequest(f"--{flags[0]} goes with --on slurm: add that, or drop --{flags[0]}")


def cores_of_task(parsed: argparse.Namespace) -> int:
    """The cores of each task of an array, from --cpus-per-task or the site file; 0 where neither
    says it. Raises BadRequest."""
    if parsed.on != SLURM:
        return 0
    text = parsed.cpus_per_task or find_site(parsed.site).options.get("cpus-per-task", "0")
    if not (text.isascii() and text.isdecimal() and int(text[:9]) < 10**6):
        raise BadRequest(f"--cpus-per-task must be a whole number, not '{shown(text)}'")
    return int(text)


def cell_threads(parsed: argparse.Namespace, grid: Grid) -> int:
    """How many threads a cell computes with: see `threads_of`. A task of an array has one for each
    of its cores. Raises BadRequest."""
    workers, wanted = parsed.workers, parsed.compute_threads
    if parsed.on != SLURM:
        return threads_of(grid, wanted, workers)
    return threads_of(grid, wanted or cores_of_task(parsed), workers, cores=workers)


def backend_of(
    parsed: argparse.Namespace, name: str, tasks: int, cpus: int, progress: Sequence[Path] = ()
) -> Backend:
    """The backend that the flags name. Raises BadRequest where they are wrong."""
    check_backend_flags(parsed)
    if parsed.on != SLURM:
        return LocalWorkers(tasks, say)
    site = site_of(parsed)
    options = {"cpus-per-task": str(cpus), **slurm_options(parsed, site)}
    return SlurmArray(name, tasks, options, site.setup, parsed.wait, progress, say)


def final_code(parsed: argparse.Namespace, code: int) -> int:
    """The exit code of a verb, from the backend's: work that goes on elsewhere is no failure. Says
    how to go on."""
    if code != INTERRUPTED:
        return code
    if parsed.on != SLURM:
        say("stopped: the same command goes on")
        return code
    say("the array goes on without this command: the same command shows how far it is")
    return INTERRUPTED if parsed.wait else FINISHED
