"""stoker pack SOURCE [OUT]: store images so that they are fast to read, and report bad ones."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Unpack

from stoker.cli.flags import Parser, add_flag, flag_values
from stoker.data.dataset import Dataset
from stoker.data.images.encode import Storage
from stoker.data.packing.options import PackOptions, PackSettings
from stoker.data.packing.pack import default_out, pack
from stoker.errors import FINISHED, BadRequest
from stoker.faults import reach
from stoker.recipe.recipe import specs_of
from stoker.recipe.resolve import parse_flag
from stoker.show.pack import PackProgress, summary_lines
from stoker.survive.spot import watching
from stoker.survive.stopping import StopRequest, listening, stops_at_once
from stoker.text import say, shown


def parser() -> Parser:
    flags = Parser(
        prog="stoker pack",
        usage="stoker pack SOURCE [OUT] [flags]",
        description="Pack labelled images into shards. SOURCE is FOLDER/CLASS/images or "
        "FOLDER/{train,val,test}/CLASS/images; a tar or zip of such a folder; - for an archive "
        "from standard input; a CSV, TSV or Parquet list of paths or URLs with labels; a Parquet "
        "file with images.",
    )
    add = flags.add_argument
    add("source", metavar="SOURCE")
    add("out", metavar="OUT", nargs="?", help="folder to write [SOURCE-packed, here]")
    for table in (Storage, PackOptions):
        for name in specs_of(table):
            add_flag(flags, name, table)
    add_flag(flags, "spot_notice")
    return flags


def run(words: Sequence[str]) -> int:
    with listening() as stop:
        parsed = parser().parse(words)
        notice = parse_flag("spot_notice", parsed.spot_notice or "auto")
        storage = Storage(**flag_values(parsed, Storage))
        options = flag_values(parsed, PackOptions)
        pack_and_show(parsed.source, parsed.out, stop, notice, storage=storage, **options)
    return FINISHED


def pack_and_show(
    source: str,
    out: str | None,
    stop: StopRequest,
    spot_notice: str,
    *,
    storage: Storage | None = None,
    **options: Unpack[PackSettings],
) -> Path:
    """Pack with a progress bar, then print the summary; returns the folder of the packed set."""
    target = Path(out) if out else default_out(source)
    was_packed = Dataset.is_packed(target)
    if source != "-" and not Path(source).exists():
        raise BadRequest(f"no folder, archive or table at {shown(source)}")
    if not was_packed:
        say(f"packing {'standard input' if source == '-' else shown(source)} into {target}")
    kept = f"finished shards are kept in {target}: run the same command to continue"
    with (
        closing(PackProgress()) as progress,
        watching(spot_notice, stop),
        stops_at_once(stop, "packing", kept),
    ):
        reach("pack")
        pack(source, target, storage=storage, progress=progress, **options)
    lines = summary_lines(Dataset(target), progress.shrunk, progress.largest)
    say(*([f"packed already: {lines[0]}"] if was_packed else lines))
    return target
