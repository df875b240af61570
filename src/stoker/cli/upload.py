"""stoker upload SET LOCATION: copy a packed set from a folder to an object store."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import closing

from stoker.cli.flags import Parser
from stoker.errors import FINISHED, BadRequest
from stoker.show.progress import progress
from stoker.stores.location import location_of
from stoker.survive.stopping import listening, stops_at_once
from stoker.text import say, shown, size


def parser() -> Parser:
    flags = Parser(
        prog="stoker upload",
        description="Copy a packed set to an object store as it is: every file is compared with "
        "its hash first, and the set is complete when its last file is there. The same command "
        "continues an upload that was stopped. 'stoker pack SOURCE LOCATION' packs into a store "
        "directly.",
        examples=("stoker upload photos-packed s3://BUCKET/photos",),
    )
    add = flags.add_argument
    add("set", metavar="SET", help="a folder that 'stoker pack' wrote")
    add("location", metavar="LOCATION", help="s3://BUCKET/PREFIX, gs://... or az://...")
    return flags


def run(words: Sequence[str]) -> int:
    parsed = parser().parse(words)
    location = location_of(parsed.location)
    if location is None:
        raise BadRequest(
            f"{shown(parsed.location)} is not a location: name one such as s3://BUCKET/PREFIX"
        )

    # Imported here, so that --help and wrong flags do not wait for pyarrow.
    from stoker.data.copies.upload import upload

    bar = progress()

    def on_progress(done: int, total: int) -> None:
        bar.update(done, total, f"{size(done)} of {size(total)} uploaded")

    kept = f"uploaded files are kept in {location}: run the same command to continue"
    with closing(bar), listening() as stop, stops_at_once(stop, "uploading", kept):
        is_new = upload(parsed.set, location, on_progress)
    done = f"{shown(parsed.set)} is {'now' if is_new else 'already'} at {location}"
    say(f"{done}: 'stoker train {shlex.quote(str(location))}' trains from it")
    return FINISHED
