"""stoker doctor [DATA]: is this machine any good, and what will limit me?"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoker.cli.flags import Parser, add_recipe_flags, resolve_flags
from stoker.commit import write_json
from stoker.doctor.ranks import check as check_peers
from stoker.errors import FINISHED, BadRequest
from stoker.fleet.addresses import Nodes
from stoker.fleet.launcher import is_rank
from stoker.fleet.rendezvous import ASKING
from stoker.host.threads import exit_past_hanging_threads
from stoker.recipe.recipe import Recipe
from stoker.survive.stopping import UNCHANGED, listening, stops_at_once
from stoker.text import say

if TYPE_CHECKING:
    from stoker.data.dataset import Dataset
    from stoker.measure.trials.link import LinkReport

CLASSES = 1000
"""Of a network that is measured without a set."""
SECONDS = 9.0
"""For each precision, and for all at once; on a machine that nobody else uses."""
STORAGE_SHARE, LOADER_SHARE = 0.2, 0.3
"""Of them, for each read and for each stage of loading."""
MOST_FILES = 256
"""Files of a folder that is not packed that are looked at."""


def parser() -> Parser:
    made = Parser(
        prog="stoker doctor",
        usage="stoker doctor [DATA] [--model NAME] [flags]",
        description="Measure what this machine can do, in under two minutes: disk, loading, the "
        "network, and all of them at once, in images a second; what binds, and what to do. Takes "
        "the flags of 'stoker train', and says what that will reach.",
    )
    made.add_argument("data", metavar="DATA", nargs="?", help="a packed set, or a folder of images")
    made.add_argument("--json", default="", metavar="FILE", help="write the figures there, too")
    made.add_argument(
        "--seconds",
        type=float,
        default=SECONDS,
        metavar="X",
        help=f"about, for each measurement of the network [{SECONDS:g}]",
    )
    made.add_argument("--ranks", type=int, default=1, metavar="N", help="processes here [1]")
    made.add_argument("--nodes", metavar="N", help="machines to measure the network between")
    made.add_argument(
        "--rendezvous", metavar="HOST:PORT", help="where they meet: an address of one of them"
    )
    made.add_argument("--address", metavar="ADDRESS", help="of this machine, as the others see it")
    add_recipe_flags(made, common=())
    return made


def run(words: Sequence[str]) -> int:
    parsed = parser().parse(words)
    recipe = resolve_flags(parsed).recipe
    if is_rank():
        from stoker.doctor.ranks import rank_part

        return rank_part()
    check(parsed)
    return exit_past_hanging_threads(lambda: visit(parsed, recipe, words), ASKING)


def visit(parsed: argparse.Namespace, recipe: Recipe, words: Sequence[str]) -> int:
    """Measure everything, and say it."""
    with listening() as stop, stops_at_once(stop, "measuring", UNCHANGED):
        found = Visit(parsed, recipe, words).run()
    if parsed.json:
        write_json(Path(parsed.json), found)
    return FINISHED


def check(parsed: argparse.Namespace) -> None:
    """Refuse what cannot be measured."""
    if parsed.ranks < 1:
        raise BadRequest(f"--ranks must be at least 1, not {parsed.ranks}")
    if not 0 < parsed.seconds < float("inf"):
        raise BadRequest(f"--seconds must be above 0, not {parsed.seconds:g}")
    if has_peers(parsed):
        check_peers(parsed)
    if parsed.data is not None and not Path(parsed.data).is_dir():
        raise BadRequest(f"no packed set and no folder of images at {parsed.data}")
    if parsed.json and not Path(parsed.json).resolve().parent.is_dir():
        raise BadRequest(f"no folder for --json {parsed.json}")


class Visit:
    """One examination, section by section; what was found is plain data."""

    def __init__(self, parsed: argparse.Namespace, recipe: Recipe, words: Sequence[str]) -> None:
        # Here, so that help and mistakes need neither torch nor OpenCV.
        from stoker.show import doctor as show
        from stoker.train.trials.compute import one_phase

        self.parsed, self.words, self.show = parsed, words, show
        self.recipe = one_phase(recipe)
        self.phases = len(recipe.phases)
        self.dataset = packed_set(parsed.data)
        self.classes = len(self.dataset.classes) if self.dataset else CLASSES
        self.found: dict[str, Any] = {"recipe": self.recipe.values()}

    def run(self) -> dict[str, Any]:
        from stoker.measure.environment import OtherProcesses
        from stoker.train.process_group import Ranks

        self.ranks = Ranks.join()
        self.environment()
        # First, while the others wait for us: what it means is told once a step is known.
        self.network()
        others = OtherProcesses()
        self.storage()
        self.loader()
        self.compute()
        self.together()
        cores = others.cores()
        for line in self.show.neighbours(cores, self.facts.cores):
            say(line)
        self.found["cores_used_by_others"] = cores
        self.with_peers()
        return self.found

    def environment(self) -> None:
        from stoker.measure.environment import as_data, environment_here
        from stoker.measure.findings import Needs, findings
        from stoker.train.trials.memory import checkpoint_bytes, parameters

        places = [("runs", Path("runs"))]
        if self.parsed.data:
            places.append(
                ("the set", self.dataset.path if self.dataset else Path(self.parsed.data))
            )
        self.facts = environment_here(places)
        self.parameters = parameters(self.recipe, self.classes)
        nodes = Nodes.parse(self.parsed.nodes).most if self.parsed.nodes else 1
        saved = checkpoint_bytes(self.recipe, self.parameters)
        stored = stored_bytes(self.dataset) if self.dataset else None
        odd = findings(self.facts, Needs(stored, saved, nodes))
        say("This machine")
        for line in (*self.show.environment(self.facts), *map(self.show.odd, odd)):
            say(line)
        self.found["environment"] = as_data(self.facts)
        self.found["odd"] = [vars(each) for each in odd]

    def storage(self) -> None:
        from stoker.measure.trials.storage import as_data, measure_bare_storage, measure_storage

        threads = self.recipe.threads or self.facts.cores
        seconds = STORAGE_SHARE * self.parsed.seconds
        image_bytes: float | None = None
        place = self.dataset.path if self.dataset else self.parsed.data or "this folder"
        say(self.show.title(f"The disk below {place}, alone"))
        if self.dataset:
            split = self.dataset.split("train")
            files = [split.folder / shard["name"] for shard in split.shards]
            image_bytes = float(split.length.mean())
            beside = self.dataset.path.absolute().parent
            found = measure_storage(self.dataset.path, files, beside, threads, seconds)
        elif self.parsed.data and (files := some_files(Path(self.parsed.data))):
            folder = Path(self.parsed.data)
            image_bytes = sum(path.stat().st_size for path in files) / len(files)
            found = measure_storage(folder, files, folder.absolute().parent, threads, seconds)
        elif os.access(".", os.W_OK):
            found = measure_bare_storage(Path(), threads, seconds)
        else:
            say(self.show.row("", "not measured: nothing can be written here"))
            return
        for line in self.show.storage(found, image_bytes):
            say(line)
        self.found["storage"] = as_data(found) | {"image_bytes": image_bytes}

    def loader(self) -> None:
        from stoker.measure.trials.loading import Setting, as_data, measure_loading

        self.feeding = None
        if self.parsed.data is None:
            return
        say(self.show.title("Loading, alone"))
        if self.dataset is None:
            say(self.show.row("", f"not measured: stoker pack {self.parsed.data}, then again"))
            return
        recipe = self.recipe
        setting = Setting(
            recipe.image_size,
            recipe.batch_size,
            recipe.crop,
            recipe.threads,
            LOADER_SHARE * self.parsed.seconds,
            recipe.crop_scale,
        )
        self.feeding = measure_loading(self.dataset, setting)
        for line in self.show.loader(self.feeding):
            say(line)
        self.found["loader"] = as_data(self.feeding)

    def compute(self) -> None:
        from stoker.measure.environment import free_memory
        from stoker.recipe.schedule import Timeline
        from stoker.train.trials.compute import measure_compute

        if self.dataset:
            Timeline.of(self.recipe, len(self.dataset.split("train")))  # refuses what train does
        say(self.show.title(f"Computing, alone: {self.show.asked(self.recipe)}"))
        for told in self.compute_notes():
            say(self.show.row("", told))
        self.computed = []
        for done in measure_compute(
            self.recipe, self.classes, self.ranks, self.parsed.seconds, free_memory()
        ):
            say(self.show.compute(done))
            self.computed.append(done)
        for line in self.show.advice(self.computed, self.recipe.amp):
            say(line)
        self.own = next((c for c in self.computed if c.amp == self.recipe.amp), self.computed[0])
        self.found["compute"] = [
            vars(c) | {"cost": vars(c.cost), "fixed": vars(c.fixed), "images_per_s": c.images_per_s}
            for c in self.computed
        ]

    def compute_notes(self) -> list[str]:
        told = []
        if not self.dataset:
            told.append(f"{self.parameters / 1e6:.1f} M parameters with {CLASSES} classes")
        if self.phases > 1:
            told.append(f"the longest of the {self.phases} phases")
        if self.recipe.compile:
            told.append("without torch.compile, which takes minutes by itself")
        return told

    def together(self) -> None:
        from stoker.measure.trials.forecast import Cost, forecast
        from stoker.measure.verdict import verdict_of
        from stoker.train.trials.compute import measure_together

        if self.dataset is None or self.feeding is None:
            return
        say(self.show.title("All at once"))
        batch, cores = self.recipe.batch_size, self.facts.cores
        parts = {
            state: forecast(
                batch,
                self.own.cost,
                Cost(batch / done.images_per_s, batch / done.images_per_cpu_s),
                cores,
            )
            for state in ("warm", "cold")
            if (done := self.feeding.passes[f"loader {state}"])
        }
        found = measure_together(
            self.dataset, self.recipe, self.ranks, self.own, self.parsed.seconds
        )
        slower = parts["cold"].images_per_s / parts["warm"].images_per_s
        first = None
        if self.feeding.was_cold and slower < 1 - self.show.NOTICED:
            first = found.images_per_s * slower
        for line in self.show.prediction(found, parts["warm"], first):
            say(line)
        verdict = verdict_of(found.facts)
        self.found["together"] = vars(found) | {
            "facts": None,
            "cost": vars(found.cost),
            "images_per_s": found.images_per_s,
            "verdict": verdict.fields() if verdict else None,
        }
        self.found["forecast"] = {
            "images_per_s": found.images_per_s,
            "first_epoch_images_per_s": first,
            "ceilings": [vars(ceiling) for ceiling in parts["warm"].ceilings],
            "from_parts_images_per_s": parts["warm"].images_per_s,
        }

    def network(self) -> None:
        """Between the ranks that were asked for, here or on several machines."""
        self.exchange: LinkReport | None = None
        if not has_peers(self.parsed):
            return
        from stoker.doctor.ranks import network_across
        from stoker.show.link import lines
        from stoker.train.trials.memory import FLOAT_BYTES

        say(self.show.title("The network between ranks, alone"))
        self.exchange = network_across(self.parsed, self.words, FLOAT_BYTES * self.parameters)
        for line in lines(self.exchange):
            say(line)
        self.found["network"] = self.exchange.as_data()

    def with_peers(self) -> None:
        """What the exchange of gradients means for a step of all ranks together."""
        if self.exchange is None:
            return
        from stoker.measure.ports import exposed_s
        from stoker.show.link import meaning

        world, batch = self.exchange.world, self.recipe.batch_size
        # Ranks without a GPU each share the cores of their machine.
        sharing = max(self.parsed.ranks / (len(self.facts.gpus) or 1), 1.0)
        share_s = self.own.cost.wall_s * sharing / world
        pace = batch / (share_s + exposed_s(self.exchange.gradient_s, share_s))
        say(self.show.title(f"On {world} ranks"))
        say(self.show.rate("compute, exchange", pace, f"{batch // world} images a rank and step"))
        for line in meaning(self.exchange, share_s, batch):
            say(line)
        self.found["network"]["images_per_s"] = pace


def has_peers(parsed: argparse.Namespace) -> bool:
    return parsed.ranks > 1 or any((parsed.nodes, parsed.rendezvous, parsed.address))


def packed_set(data: str | None) -> Dataset | None:
    """The packed set: the folder itself, or what packing it gave."""
    from stoker.data.dataset import Dataset
    from stoker.data.packing.pack import default_out

    if data is None:
        return None
    for path in (Path(data), default_out(data)):
        if Dataset.is_packed(path):
            return Dataset(path)
    return None


def stored_bytes(dataset: Dataset) -> int:
    return sum(int(shard["bytes"]) for shard in dataset.split("train").shards)


def some_files(folder: Path) -> list[Path]:
    """Some of the files in a folder of images, as they come."""
    found = (Path(where) / name for where, _, names in os.walk(folder) for name in sorted(names))
    whole = (path for path in found if path.is_file() and path.stat().st_size)
    return list(islice(whole, MOST_FILES))
