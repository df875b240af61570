"""stoker bench data SET: how quickly a packed set can be fed here, each stage by itself."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from stoker.cli.flags import Parser
from stoker.commit import write_json
from stoker.errors import FINISHED, BadRequest
from stoker.recipe.recipe import check_value
from stoker.survive.stopping import UNCHANGED, listening, stops_at_once
from stoker.text import say

SUBJECTS = {"data": "how quickly a packed set is read and decoded, cold and warm"}


def parser() -> Parser:
    made = Parser(
        prog="stoker bench",
        description="Measure what this machine can do. "
        + "; ".join(f"{name}: {what}" for name, what in SUBJECTS.items()),
    )
    made.add_argument("what", metavar="data", help=f"one of: {', '.join(SUBJECTS)}")
    made.add_argument("set", metavar="SET", nargs="?", help="a folder that 'stoker pack' made")
    made.add_argument("--image-size", type=int, default=224, metavar="N", help="[224]")
    made.add_argument("--batch-size", type=int, default=256, metavar="N", help="[256]")
    made.add_argument("--crop", default="resized", metavar="resized|centre|pad", help="[resized]")
    made.add_argument("--threads", type=int, default=0, metavar="N", help="[cores]")
    made.add_argument(
        "--seconds", type=float, default=10.0, metavar="X", help="at most, for each stage [10]"
    )
    made.add_argument("--json", default="", metavar="FILE", help="write the figures there, too")
    return made


def run(words: Sequence[str]) -> int:
    parsed = parser().parse(words)
    check(parsed)

    # Here, so that help and mistakes need neither OpenCV nor pyarrow.
    from stoker.data.dataset import Dataset
    from stoker.measure.trials.loading import Pass, Setting, as_data, measure_loading
    from stoker.show.bench import closing, header, line, opening

    setting = Setting(
        parsed.image_size, parsed.batch_size, parsed.crop, parsed.threads, parsed.seconds
    )
    dataset = Dataset(parsed.set)
    say(header())

    def tell(name: str, row: Pass) -> None:
        say(line(name, row))

    with listening() as stop, stops_at_once(stop, "measuring", UNCHANGED):
        found = measure_loading(dataset, setting, tell)
    say("\n".join([opening(found), "", *closing(found)]))
    if parsed.json:
        write_json(Path(parsed.json), as_data(found))
    return FINISHED


def check(parsed: argparse.Namespace) -> None:
    """Refuse what cannot be measured."""
    if parsed.what not in SUBJECTS:
        raise BadRequest(f"nothing to bench called '{parsed.what}': there is {', '.join(SUBJECTS)}")
    if parsed.set is None:
        raise BadRequest("name a packed set: stoker bench data SET")
    for name, least in (("image_size", 1), ("batch_size", 1), ("threads", 0)):
        if getattr(parsed, name) < least:
            flag = name.replace("_", "-")
            raise BadRequest(f"--{flag} must be at least {least}, not {getattr(parsed, name)}")
    if not 0 < parsed.seconds < float("inf"):
        raise BadRequest(f"--seconds must be above 0, not {parsed.seconds:g}")
    check_value("crop", parsed.crop)
    if parsed.json and not Path(parsed.json).resolve().parent.is_dir():
        raise BadRequest(f"no folder for --json {parsed.json}")
