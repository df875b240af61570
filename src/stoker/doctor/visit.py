"""One examination of this machine: each resource measured alone, then training as a whole.

Invariants: a visit prints nothing. It yields a finding before and after each measurement, as the
name of the finding and its values; `stoker.show.machine.doctor` makes lines of them. `figures` has
all results as plain data. Nothing is changed on disk, but for trial files that are removed again.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from stoker.data.dataset import Dataset
from stoker.data.packing.pack import default_out
from stoker.doctor.ranks import RankOptions, measure_between_ranks
from stoker.fleet.addresses import Nodes
from stoker.measure import environment
from stoker.measure.findings import Needs
from stoker.measure.findings import findings as problems_of
from stoker.measure.ports import exposed_s
from stoker.measure.trials import loading, storage
from stoker.measure.trials.forecast import Cost, Forecast, forecast
from stoker.measure.trials.link import LinkReport
from stoker.measure.verdict import verdict_of
from stoker.recipe.recipe import Recipe
from stoker.recipe.schedule import Timeline, one_phase
from stoker.stores.location import is_location
from stoker.stores.settings import cache_folder
from stoker.train.loaders import training_view
from stoker.train.process_group import Ranks
from stoker.train.trials.compute import Compute, measure_compute, measure_together
from stoker.train.trials.memory import FLOAT_BYTES, checkpoint_bytes, parameters

CLASSES = 1000
"""Classes of a model that is measured without a packed set."""
STORAGE_SHARE, LOADER_SHARE = 0.2, 0.3
"""Shares of `seconds` for each read of the disk and for each stage of loading."""
MOST_FILES = 256
NOTICEABLE = 0.05
"""Differences below this share are not reported."""

Result = TypeVar("Result")
Findings = Generator[tuple[str, tuple[Any, ...]], None, Result]
"""Yields the name and the values of each finding; returns what later sections need."""


@dataclass(frozen=True)
class VisitOptions:
    """What to examine."""

    recipe: Recipe
    data: str | None
    """A packed set, or a folder of images."""
    seconds: float
    """For each precision of computing, and for everything at once."""
    ranks: RankOptions


class Visit:
    """One examination, section by section."""

    def __init__(self, options: VisitOptions) -> None:
        self.options = options
        self.recipe = one_phase(options.recipe)
        self.dataset = packed_set(options.data)
        self.folder = self.dataset.path if self.dataset else Path(options.data or ".")
        self.classes = len(self.dataset.classes) if self.dataset else CLASSES
        self.parameters = parameters(self.recipe, self.classes)
        self.figures: dict[str, Any] = {"recipe": self.recipe.values()}

    def findings(self) -> Findings[None]:
        """Measure everything; raises BadRequest for a recipe that cannot be trained here."""
        ranks = Ranks.join()
        facts = yield from self.examine_environment()
        # First, because other hosts wait for this one.
        links = yield from self.examine_links()
        neighbours = environment.OtherProcesses()
        yield from self.examine_storage(facts.cores)
        loader = yield from self.examine_loader()
        compute = yield from self.examine_compute(ranks)
        if loader:
            yield from self.examine_together(loader, compute, ranks, facts.cores)
        others = self.figures["cores_used_by_others"] = neighbours.cores()
        yield "neighbours", (others, facts.cores)
        if links:
            yield from self.with_exchange(links, compute, len(facts.gpus))

    def examine_environment(self) -> Findings[environment.Environment]:
        place = cache_folder() if self.dataset and self.dataset.store else self.folder
        folders = [("runs", Path("runs")), ("the set", place)]
        shards = self.dataset.split("train").shards if self.dataset else []
        facts = environment.environment_here(folders if self.options.data else folders[:1])
        needs = Needs(
            sum(int(shard["bytes"]) for shard in shards) if self.dataset else None,
            checkpoint_bytes(self.recipe, self.parameters),
            Nodes.parse(self.options.ranks.nodes).most if self.options.ranks.nodes else 1,
        )
        problems = problems_of(facts, needs)
        self.figures["environment"] = environment.as_data(facts)
        self.figures["odd"] = [vars(problem) for problem in problems]
        yield "environment", (facts, problems)
        return facts

    def examine_links(self) -> Findings[LinkReport | None]:
        """The links between ranks, here or on several machines, if the options name any."""
        if not self.options.ranks.several:
            return None
        yield "links begin", ()
        links = measure_between_ranks(self.options.ranks, FLOAT_BYTES * self.parameters)
        self.figures["network"] = links.as_data()
        yield "links", (links,)
        return links

    def examine_storage(self, cores: int) -> Findings[None]:
        threads = self.recipe.threads or cores
        seconds = STORAGE_SHARE * self.options.seconds
        name = self.dataset.name if self.dataset else self.folder
        yield "storage begins", (name if self.options.data else "this folder",)
        files: list[Path] = []
        image_bytes: float | None = None
        if self.dataset:
            split = self.dataset.split("train")
            files = split.source.files(range(len(split.shards)))
            image_bytes = split.rows.mean_bytes
        elif self.options.data and (files := some_files(self.folder)):
            image_bytes = sum(path.stat().st_size for path in files) / len(files)
        if files:
            stored = self.dataset is not None and self.dataset.store is not None
            folder = files[0].parent if stored else self.folder  # the cache of a set in a store
            beside = folder.absolute().parent
            speed = storage.measure_storage(folder, files, beside, threads, seconds)
        elif os.access(".", os.W_OK):
            speed = storage.measure_bare_storage(Path(), threads, seconds)
        else:
            yield "not measured", ("nothing can be written here",)
            return
        self.figures["storage"] = storage.as_data(speed) | {"image_bytes": image_bytes}
        yield "storage", (speed, image_bytes)

    def examine_loader(self) -> Findings[loading.LoadingSpeed | None]:
        if self.options.data is None:
            return None
        yield "loader begins", ()
        if self.dataset is None:
            yield "not measured", (f"run stoker pack {self.options.data} first",)
            return None
        recipe, seconds = self.recipe, LOADER_SHARE * self.options.seconds
        setting = loading.Setting(
            recipe.image_size,
            recipe.batch_size,
            recipe.crop,
            recipe.threads,
            seconds,
            recipe.crop_scale,
            training_view(recipe).augmentation,
        )
        speed = loading.measure_loading(self.dataset, setting)
        self.figures["loader"] = loading.as_data(speed)
        yield "loader", (speed,)
        return speed

    def examine_compute(self, ranks: Ranks) -> Findings[Compute]:
        """Steps without loading, in each precision; returns those in the recipe's own."""
        if self.dataset:
            Timeline.of(self.recipe, len(self.dataset.split("train")))  # refuses what train does
        parameters = None if self.dataset else self.parameters
        yield "compute begins", (self.recipe, len(self.options.recipe.phases), parameters)
        every: list[Compute] = []
        seconds, free_bytes = self.options.seconds, environment.free_memory()
        for compute in measure_compute(self.recipe, self.classes, ranks, seconds, free_bytes):
            every.append(compute)
            yield "compute", (compute,)
        self.figures["compute"] = [
            vars(c) | {"cost": vars(c.cost), "fixed": vars(c.fixed), "images_per_s": c.images_per_s}
            for c in every
        ]
        own = next((c for c in every if c.amp == self.recipe.amp), every[0])
        yield "precisions", (own, every)
        return own

    def examine_together(
        self, loader: loading.LoadingSpeed, compute: Compute, ranks: Ranks, cores: int
    ) -> Findings[None]:
        """Loading and steps at the same time: the prediction."""
        assert self.dataset is not None
        yield "together begins", ()
        warm, cold = (
            self.forecast(loader.passes[f"loader {state}"], compute, cores)
            for state in ("warm", "cold")
        )
        together = measure_together(self.dataset, self.recipe, ranks, compute, self.options.seconds)
        slower = cold.images_per_s / warm.images_per_s
        is_slower = loader.was_cold and slower < 1 - NOTICEABLE
        first_epoch = together.images_per_s * slower if is_slower else None
        verdict = verdict_of(together.facts)
        self.figures["together"] = vars(together) | {
            "facts": None,
            "cost": vars(together.cost),
            "images_per_s": together.images_per_s,
            "verdict": verdict.fields() if verdict else None,
        }
        self.figures["forecast"] = {
            "images_per_s": together.images_per_s,
            "first_epoch_images_per_s": first_epoch,
            "ceilings": [vars(ceiling) for ceiling in warm.ceilings],
            "from_parts_images_per_s": warm.images_per_s,
        }
        yield "together", (together, warm, first_epoch)

    def forecast(self, loader: loading.Pass, compute: Compute, cores: int) -> Forecast:
        batch = self.recipe.batch_size
        cost = Cost(batch / loader.images_per_s, batch / loader.images_per_cpu_s)
        return forecast(batch, compute.cost, cost, cores)

    def with_exchange(self, links: LinkReport, compute: Compute, gpus: int) -> Findings[None]:
        """What the gradient exchange means for a step of all ranks together."""
        # Ranks without a GPU each share the cores of their machine.
        sharing = max(self.options.ranks.ranks / (gpus or 1), 1.0)
        compute_s = compute.cost.wall_s * sharing / links.world
        batch = self.recipe.batch_size
        rate = batch / (compute_s + exposed_s(links.gradient_s, compute_s))
        self.figures["network"]["images_per_s"] = rate
        yield "with exchange", (links, compute_s, batch, rate)


def packed_set(data: str | None) -> Dataset | None:
    """The packed set: the folder itself, or what packing it made; None if it is not packed. Raises
    BadRequest for a location without one."""
    if data is not None and is_location(data):
        return Dataset(data)
    for path in (Path(data), default_out(data)) if data is not None else ():
        if Dataset.is_packed(path):
            return Dataset(path)
    return None


def some_files(folder: Path) -> list[Path]:
    """Up to MOST_FILES files of a folder that are not empty."""
    paths = (Path(parent) / name for parent, _, names in os.walk(folder) for name in sorted(names))
    return list(islice((p for p in paths if p.is_file() and p.stat().st_size), MOST_FILES))
