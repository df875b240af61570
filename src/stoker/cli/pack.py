"""stoker pack SOURCE [OUT]: store images so that they are fast to read, and report bad ones."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from stoker.cli.backends import (
    SLURM,
    add_backend_flags,
    backend_of,
    check_backend_flags,
    cores_of_task,
    final_code,
)
from stoker.cli.flags import Parser, add_flag, flag_values
from stoker.commit import sha256_json
from stoker.data.dataset import Dataset
from stoker.data.images.encode import Storage
from stoker.data.packing.options import PackOptions, PackSettings
from stoker.data.packing.pack import default_out, pack
from stoker.data.packing.shard import TaskPlace
from stoker.data.packing.target.places import target_of
from stoker.data.sources.classes import nothing_at
from stoker.errors import FINISHED, BadRequest
from stoker.faults import reach
from stoker.fleet.grid.directory import Grid
from stoker.fleet.slurm.batch import name_of
from stoker.fleet.spark.master import addresses, require_installed, settings_of
from stoker.recipe.recipe import specs_of
from stoker.recipe.resolve import parse_flag
from stoker.show.pack import PackProgress, summary_lines
from stoker.survive.spot import watching
from stoker.survive.stopping import StopRequest, listening, stops_at_once
from stoker.text import plural, say, shown

TASKS = 4
"""Machines at once on SLURM, where --tasks says nothing else."""


def parser() -> Parser:
    flags = Parser(
        prog="stoker pack",
        usage="stoker pack SOURCE [OUT] [flags]",
        description="Pack labelled images into shards. SOURCE is FOLDER/CLASS/images or "
        "FOLDER/{train,val,test}/CLASS/images; a tar or zip of such a folder; - for an archive "
        "from standard input; a CSV, TSV or Parquet list of paths or URLs with labels; a Parquet "
        "file with images; a folder of MosaicML Streaming (MDS) or LitData.",
    )
    add = flags.add_argument
    add("source", metavar="SOURCE")
    add(
        "out",
        metavar="OUT",
        nargs="?",
        help="folder to write, or a location in a store: s3://BUCKET/PREFIX, gs://... or az://..., "
        "on the way to which archives, tables with images and lists of URLs are staged in "
        "STOKER_CACHE [SOURCE-packed, here]",
    )
    for table in (Storage, PackOptions):
        for name in specs_of(table):
            add_flag(flags, name, table)
    add_flag(flags, "spot_notice")
    add("--tasks", type=int, metavar="N", help="with --on slurm: machines at once [4]")
    add_backend_flags(flags, spark=True)
    return flags


def run(words: Sequence[str]) -> int:
    with listening() as stop:
        parsed = parser().parse(words)
        notice = parse_flag("spot_notice", parsed.spot_notice or "auto")
        storage = Storage(**flag_values(parsed, Storage))
        options = flag_values(parsed, PackOptions)
        check_backend_flags(parsed)
        if parsed.on == SLURM:
            return pack_elsewhere(parsed, storage, PackOptions.of(options), stop)
        if parsed.on:
            return pack_on_spark(parsed, storage, options, stop, notice)
        pack_and_show(parsed.source, parsed.out, stop, notice, storage=storage, **options)
    return FINISHED


def pack_on_spark(
    parsed: argparse.Namespace,
    storage: Storage,
    options: dict[str, Any],
    stop: StopRequest,
    notice: str,
) -> int:
    """Pack with the workers of the master that --on names; returns the exit code. Raises
    BadRequest."""
    from stoker.fleet.spark.session import SparkCluster
    from stoker.study.spark_packing import SparkPlace

    for flag in ("tasks", "workers"):
        if getattr(parsed, flag) is not None:
            raise BadRequest(
                f"--{flag} does not go with --on {shown(parsed.on)}: Spark's own settings, such as "
                "--spark-conf spark.cores.max=8, say how much it takes"
            )
    addresses(parsed.on)
    target = Path(parsed.out) if parsed.out else default_out(parsed.source)
    settings = {
        "spark.app.name": f"stoker pack {shown(target.name)}",
        **settings_of(parsed.spark_conf or ()),
    }
    require_installed()
    with SparkCluster(parsed.on, settings, say) as cluster:
        place = SparkPlace.of(cluster, target)
        pack_and_show(
            parsed.source, parsed.out, stop, notice, storage=storage, place=place, **options
        )
    return FINISHED


def pack_elsewhere(
    parsed: argparse.Namespace, storage: Storage, options: PackOptions, stop: StopRequest
) -> int:
    """Pack as a grid of cells; returns the exit code. Raises BadRequest."""
    from stoker.data.packing.shares import SharedPack
    from stoker.show.study.sweep import failure_lines, status_line
    from stoker.study.launch import run_cells
    from stoker.study.packing import plan_packing, shrunk_in
    from stoker.study.results import study_status

    tasks = TASKS if parsed.tasks is None else parsed.tasks
    if tasks < 1:
        raise BadRequest(f"--tasks must be at least 1, not {tasks}")
    target = Path(parsed.out) if parsed.out else default_out(parsed.source)
    cpus = cores_of_task(parsed) or 1
    options = replace(options, workers=options.workers or cpus)
    was_packed = Dataset.is_packed(target)
    shared = SharedPack.of(parsed.source, target, storage, options)
    place = shared.job.target
    plan = plan_packing(shared, tasks)
    if was_packed:
        say(f"packed already: {summary_lines(Dataset(target))[0]}")
        return FINISHED
    identity = place.out if place.is_stored else str(target.absolute())
    name = name_of(f"pack-{target.name}-{sha256_json(identity)[:6]}")
    grid = Grid(Path("jobs") / name)
    say(f"packing {shown(parsed.source)} into {place.name}: {plural(len(plan.cells), 'cell')}")
    shown_folders = [] if place.is_stored else [target.absolute()]
    backend = backend_of(parsed, name, tasks, cpus, shown_folders)
    code = run_cells(grid, plan, grid.freeze(plan), backend, stop)
    status = study_status(grid, plan)
    if code == FINISHED:
        say(*summary_lines(Dataset(target), *shrunk_in(grid, plan)))
    else:
        say(status_line(status), *failure_lines(plan, grid, status))
    return final_code(parsed, code)


def pack_and_show(
    source: str,
    out: str | None,
    stop: StopRequest,
    spot_notice: str,
    *,
    storage: Storage | None = None,
    place: TaskPlace | None = None,
    **options: Unpack[PackSettings],
) -> Path:
    """Pack with a progress bar, then print the summary; returns the folder of the packed set. The
    tasks run in `place`, or on this machine."""
    target = Path(out) if out else default_out(source)
    name, is_stored = target_of(target).name, target_of(target).is_stored
    was_packed = Dataset.is_packed(target)
    if source != "-" and not Path(source).exists():
        raise nothing_at("folder, archive or table", source)
    if not was_packed:
        say(f"packing {'standard input' if source == '-' else shown(source)} into {name}")
    kept = f"finished shards are kept in {name}: run the same command to continue"
    with (
        closing(PackProgress()) as progress,
        watching(spot_notice, stop),
        stops_at_once(stop, "packing", kept),
    ):
        reach("pack")
        pack(source, target, storage=storage, progress=progress, place=place, **options)
    lines = summary_lines(Dataset(target), progress.shrunk, progress.largest)
    say(*([f"packed already: {lines[0]}"] if was_packed else lines))
    if is_stored:
        say(f"'stoker train {shlex.quote(name)}' trains from it")
    return target
