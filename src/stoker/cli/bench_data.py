"""stoker bench data SET: how fast a packed set can be loaded here, each stage alone."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from stoker.cli.flags import Parser
from stoker.cli.streams import check_json, write_figures
from stoker.errors import FINISHED, BadRequest
from stoker.recipe.recipe import check_value
from stoker.survive.stopping import UNCHANGED, listening, stops_at_once
from stoker.text import say


def parser() -> Parser:
    flags = Parser(
        prog="stoker bench data",
        description="Measure how fast a packed set is read and decoded here, cold and warm",
    )
    add = flags.add_argument
    add("set", metavar="SET", nargs="?", help="a folder that 'stoker pack' made")
    add("--image-size", type=int, default=224, metavar="N", help="[224]")
    add("--batch-size", type=int, default=256, metavar="N", help="[256]")
    add("--crop", default="resized", metavar="resized|centre|pad", help="[resized]")
    add("--threads", type=int, default=0, metavar="N", help="[cores]")
    add("--seconds", type=float, default=10.0, metavar="X", help="most seconds for each stage [10]")
    add("--json", default="", metavar="FILE", help="also write the figures to a file")
    return flags


def run(arguments: Sequence[str]) -> int:
    parsed = parser().parse(arguments)
    check(parsed)

    # Imported here, so that --help and wrong flags are answered without OpenCV and pyarrow.
    from stoker.data.dataset import Dataset
    from stoker.measure.trials.loading import Setting, as_data, measure_loading
    from stoker.show.machine.bench import closing, header, line, opening

    setting = Setting(
        parsed.image_size, parsed.batch_size, parsed.crop, parsed.threads, parsed.seconds
    )
    dataset = Dataset(parsed.set)
    say(header())
    with listening() as stop, stops_at_once(stop, "measuring", UNCHANGED):
        speed = measure_loading(dataset, setting, lambda name, stage: say(line(name, stage)))
    say(opening(speed), "", *closing(speed))
    if parsed.json:
        write_figures(parsed.json, as_data(speed))
    return FINISHED


def check(parsed: argparse.Namespace) -> None:
    """Raise BadRequest for values that cannot be measured with."""
    if parsed.set is None:
        raise BadRequest("no packed set is named: stoker bench data SET")
    for name, least in (("image_size", 1), ("batch_size", 1), ("threads", 0)):
        if getattr(parsed, name) < least:
            flag = name.replace("_", "-")
            raise BadRequest(f"--{flag} must be at least {least}, not {getattr(parsed, name)}")
    if not 0 < parsed.seconds < float("inf"):
        raise BadRequest(f"--seconds must be above 0, not {parsed.seconds:g}")
    check_value("crop", parsed.crop)
    check_json(parsed.json)
