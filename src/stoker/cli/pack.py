"""stoker pack SOURCE [OUT]: make images quick to read, and say what is wrong with them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from stoker.cli.flags import Parser
from stoker.data.dataset import Dataset
from stoker.data.images.encode import Storage
from stoker.data.packing.pack import SHARD_IMAGES, default_out, pack
from stoker.data.packing.shard import ShardReport
from stoker.errors import FINISHED, BadRequest
from stoker.faults import reach
from stoker.recipe.recipe import check_value
from stoker.show.pack import summary_lines
from stoker.show.progress import progress
from stoker.survive.spot import watching
from stoker.survive.stopping import StopRequest, listening, stops_at_once
from stoker.text import say, shown


def parser() -> Parser:
    defaults = Storage()
    made = Parser(
        prog="stoker pack",
        description="Pack labelled images into shards. SOURCE is FOLDER/CLASS/images or "
        "FOLDER/{train,val,test}/CLASS/images; a tar or zip of such a folder; - for one that is "
        "piped in; a CSV, TSV or Parquet list of paths or URLs with labels; Parquet with images.",
    )
    made.add_argument("source", metavar="SOURCE")
    made.add_argument("out", metavar="OUT", nargs="?", help="where to [SOURCE-packed, here]")
    made.add_argument(
        "--codec",
        default=defaults.codec,
        metavar="jpeg|original|raw",
        help="original keeps the bytes of every upright JPEG, whatever its size; raw keeps pixels: "
        "quick for small images, large for others [jpeg]",
    )
    made.add_argument(
        "--max-side",
        type=int,
        default=defaults.max_side,
        metavar="N",
        help="shrink so that the longer side is at most N pixels; 0 keeps sizes [500]",
    )
    made.add_argument(
        "--min-side",
        type=int,
        default=defaults.min_side,
        metavar="N",
        help="shrink so that the shorter side is at most N pixels, instead of the longer",
    )
    made.add_argument(
        "--quality", type=int, default=defaults.quality, metavar="N", help="JPEG quality [90]"
    )
    made.add_argument(
        "--val-share",
        type=float,
        default=0.1,
        metavar="X",
        help="share of each class held out as val where the folder has no val or test [0.1]",
    )
    made.add_argument(
        "--near-duplicates",
        action="store_true",
        help="also find images that look alike, such as one photograph in two sizes",
    )
    made.add_argument(
        "--columns",
        default="",
        metavar="image=NAME,label=NAME",
        help="which columns of a table to use, where their names do not say it; also split=NAME",
    )
    made.add_argument(
        "--allow-missing",
        action="store_true",
        help="pack a list of URLs without those that could not be fetched for now",
    )
    made.add_argument("--shard-images", type=int, default=SHARD_IMAGES, metavar="N")
    made.add_argument("--workers", type=int, default=0, metavar="N", help="processes [cores]")
    made.add_argument(
        "--max-ram",
        type=float,
        default=0.0,
        metavar="GB",
        help="memory that all processes together may take [half of what there is]",
    )
    made.add_argument(
        "--spot-notice",
        default="auto",
        metavar="auto|off|aws|gcp|azure",
        help="whose notices to watch for [auto]",
    )
    return made


def run(words: Sequence[str]) -> int:
    with listening() as stop:
        return pack_as_told(words, stop)


def pack_as_told(words: Sequence[str], stop: StopRequest) -> int:
    parsed = parser().parse(words)
    if not 0 <= parsed.val_share < 1:
        raise BadRequest(f"--val-share goes from 0 to below 1, not {parsed.val_share}")
    if parsed.workers < 0:
        raise BadRequest(f"--workers must be at least 0, not {parsed.workers}")
    if parsed.max_ram < 0:
        raise BadRequest(f"--max-ram must be at least 0, not {parsed.max_ram}")
    if parsed.shard_images < 1:
        raise BadRequest(f"--shard-images must be at least 1, not {parsed.shard_images}")
    check_value("spot_notice", parsed.spot_notice)
    storage = Storage(
        codec=parsed.codec,
        max_side=parsed.max_side,
        min_side=parsed.min_side,
        quality=parsed.quality,
        near_duplicates=parsed.near_duplicates,
    )
    pack_and_show(
        parsed.source,
        parsed.out,
        stop=stop,
        storage=storage,
        val_share=parsed.val_share,
        shard_images=parsed.shard_images,
        workers=parsed.workers,
        spot_notice=parsed.spot_notice,
        columns=columns_of(parsed.columns),
        max_ram=parsed.max_ram,
        allow_missing=parsed.allow_missing,
    )
    return FINISHED


def columns_of(text: str) -> dict[str, str]:
    """Which column plays which role, as the user named them."""
    pairs = [pair.partition("=") for pair in text.split(",") if pair]
    for role, _, name in pairs:
        if role not in ("image", "label", "split") or not name:
            raise BadRequest(f"--columns takes image=NAME,label=NAME,split=NAME, not {text!r}")
    return {role: name for role, _, name in pairs}


def pack_and_show(
    source: str,
    out: str | None = None,
    *,
    stop: StopRequest,
    storage: Storage | None = None,
    val_share: float = 0.1,
    shard_images: int = SHARD_IMAGES,
    workers: int = 0,
    spot_notice: str = "auto",
    columns: dict[str, str] | None = None,
    max_ram: float = 0.0,
    allow_missing: bool = False,
) -> Path:
    """Pack with a progress bar, then show the summary."""
    target = Path(out) if out else default_out(source)
    again = Dataset.is_packed(target)
    if source != "-" and not Path(source).exists():
        raise BadRequest(f"no folder, archive or table at {shown(source)}")
    if not again:
        say(f"packing {'standard input' if source == '-' else shown(source)} into {target}")
    bar, rejected = progress(), 0

    def tell(report: ShardReport, done: int, total: int) -> None:
        nonlocal rejected
        rejected += report.rejected
        of_all = f" of {total:,}" if total else ""
        bar.tell(done, total, f"{done:,}{of_all} images, {rejected:,} rejected")

    kept = f"finished shards are kept in {target}: the same command goes on"
    with (
        closing(bar),
        watching(spot_notice, stop),
        stops_at_once(stop, "packing", kept),
    ):
        reach("pack")
        pack(
            source,
            target,
            storage=storage,
            val_share=val_share,
            shard_images=shard_images,
            workers=workers,
            progress=tell,
            columns=columns,
            max_ram=max_ram,
            allow_missing=allow_missing,
        )
    lines = summary_lines(Dataset(target))
    if again:
        lines = [f"packed already: {lines[0]}"]
    say("\n".join(lines))
    return target
