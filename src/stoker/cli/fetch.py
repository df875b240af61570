"""stoker fetch SET [CACHE]: fill the cache of this machine with a set in a store, beforehand."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from stoker.cli.flags import Parser
from stoker.errors import FINISHED, BadRequest
from stoker.show.progress import progress
from stoker.stores.location import location_of
from stoker.stores.settings import FOLDER, LIMIT, open_cache
from stoker.survive.stopping import listening, stops_at_once
from stoker.text import plural, say, shown, size

if TYPE_CHECKING:
    from stoker.data.copies.fetch import FetchReport
    from stoker.stores.cache import FileCache


def parser() -> Parser:
    flags = Parser(
        prog="stoker fetch",
        usage="stoker fetch SET [CACHE] [flags]",
        description="Fetch the shards of a packed set in a store into the cache of this machine, "
        "in the order of the set and as many as fit, and check every hash. Training fetches by "
        "itself what is missing; after this its first epoch reads from the local disk. The same "
        "command continues.",
        examples=(
            "stoker fetch s3://BUCKET/PREFIX",
            "stoker fetch s3://BUCKET/PREFIX /scratch/cache --cache-gb 200",
        ),
    )
    add = flags.add_argument
    add("set", metavar="SET", help="the location of a packed set, such as s3://BUCKET/PREFIX")
    add(
        "cache",
        metavar="CACHE",
        nargs="?",
        help="folder of the cache, on a local disk [STOKER_CACHE, else ~/.cache/stoker]",
    )
    add("--split", metavar="NAME", help="fetch this split alone [all]")
    add(
        "--cache-gb",
        metavar="N",
        help="GB that the cache may take [STOKER_CACHE_GB, else half of what is free there]",
    )
    return flags


def run(words: Sequence[str]) -> int:
    parsed = parser().parse(words)
    location = location_of(parsed.set)
    chosen = {FOLDER: parsed.cache, LIMIT: parsed.cache_gb}
    chosen = {name: text for name, text in chosen.items() if text is not None}

    # Imported here, so that --help and wrong flags do not wait for pyarrow.
    from stoker.data.copies.fetch import fetch
    from stoker.data.dataset import Dataset

    bar = progress()

    def on_progress(done: int, total: int) -> None:
        bar.update(done, total, f"{size(done)} of {size(total)} fetched")

    with closing(bar), listening() as stop:
        kept = "fetched shards are kept in the cache: run the same command to continue"
        with stops_at_once(stop, "fetching", kept):
            dataset = Dataset(parsed.set)
            splits = splits_of(dataset.description["splits"], parsed.split, dataset.name)
            if location is None:
                say(f"{dataset.name} is a folder of this machine: nothing needs fetching")
                return FINISHED
            cache = open_cache({**os.environ, **chosen})
            if not cache.limit_bytes:
                raise BadRequest(f"the cache may take 0 GB ({LIMIT} or --cache-gb): allow it more")
            say(f"fetching {location} into {shown(str(cache.folder))}")
            report = fetch(dataset, location, cache, splits, on_progress)
    say(*report_lines(report, cache), next_command(str(location), chosen))
    return FINISHED


def splits_of(known: Sequence[str], wanted: str | None, name: str) -> list[str]:
    """The splits to fetch. Raises BadRequest for one that the set does not have."""
    if wanted is not None and wanted not in known:
        raise BadRequest(f"{name} has no split called '{shown(wanted)}': it has {', '.join(known)}")
    return [wanted] if wanted is not None else list(known)


def report_lines(report: FetchReport, cache: FileCache) -> list[str]:
    """What the cache holds, and why shards are missing."""
    here = f"{report.here:,} of {plural(report.shards, 'shard')} ({size(report.here_bytes)})"
    speed = size(report.fetched_bytes / max(report.seconds, 1e-9))
    work = f"{report.fetched:,} fetched and checked in {report.seconds:.1f} s, {speed}/s"
    lines = [f"{here} in the cache: {work if report.fetched else 'nothing had to be fetched'}"]
    if report.obstacle:
        lines.append(f"note: {report.obstacle}: the other shards are fetched while training")
    elif report.here < report.shards:
        lines.append(
            f"note: no more fit into {size(cache.limit_bytes)}: the other shards are fetched while "
            "training; --cache-gb allows more"
        )
    return lines


def next_command(location: str, chosen: dict[str, str]) -> str:
    """The line that trains with this cache."""
    variables = dict(chosen)
    if FOLDER in variables:
        variables[FOLDER] = str(Path(variables[FOLDER]).expanduser().absolute())
    words = [f"{name}={shlex.quote(text)}" for name, text in variables.items()]
    return " ".join([*words, "stoker train", shlex.quote(location)])
