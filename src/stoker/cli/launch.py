"""stoker launch WHERE [options] -- VERB ...: run a command of Stoker on a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from stoker.cli.flags import Parser
from stoker.errors import BadRequest
from stoker.recipe.resolve import nearest

PLACES = {
    "slurm": "a job of SLURM, which is queued again until it is finished",
    "sky": "a rented machine, by SkyPilot, which ends with the job",
}


def parser() -> Parser:
    launch = Parser(
        prog="stoker launch",
        usage="stoker launch WHERE [options] -- VERB ...",
        description="Run a command of Stoker somewhere else. 'stoker launch WHERE --help' shows "
        "the options of a place.",
        examples=(
            "stoker launch slurm --time 4:00:00 --gres gpu:1 -- train photos-packed",
            "stoker launch sky --gpus A10G:1 --bucket s3://mine/runs -- train photos-packed",
        ),
    )
    places = "; ".join(f"{name}: {help}" for name, help in PLACES.items())
    launch.add_argument("place", metavar="WHERE", help=places)
    return launch


def run(arguments: Sequence[str]) -> int:
    words = list(arguments)
    place = next((word for word in words[:1] if not word.startswith("-")), None)
    if place is None:
        parser().parse(words)  # for --help
        raise BadRequest("name a place first, such as 'stoker launch slurm -- train photos'")
    if place not in PLACES:
        near = nearest(place, PLACES)
        hint = f"did you mean '{near}'?" if near else f"the places are {', '.join(PLACES)}"
        raise BadRequest(f"no place called '{place}': {hint}")
    return int(import_module(f"stoker.cli.launch_{place}").run(words[1:]))
