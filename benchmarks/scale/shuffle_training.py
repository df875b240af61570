"""What the order of the samples does to a trained model: the same recipe with several orders.

    python -m benchmarks.scale.shuffle_training tiny-imagenet-40.tar.gz FOLDER [--seeds 0,1,2]

The product's loader, step and evaluation, with another arrangement given to the loader. The set is
packed in shards of 16: 1,250 of them, as many as ImageNet has in shards of 1,000. The orders take
turns, seed by seed; a run whose row is in FOLDER/rows is not made again, so several processes may
share the seeds.

A window of 4,096 of 20,000 images says little about 4,096 of 1.28 M. So the product's order is
also scaled down: by the set (`1:64`: windows and shards are a 64th as the set is, with the same 64
lanes), and by the classes (windows and shards hold as many classes as there, and the windows of all
lanes as large a part of the set). A set that is stored class by class is made by renaming: place p
of it is the sample that a stable sort by class has there, and shards are cut from that.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.scale.shuffle import numbers
from benchmarks.scale.shuffle_orders import Buffered, Ints, Perfect, ShardsOnly, Stored

from stoker.data.dataset import Dataset, SplitIndex
from stoker.data.images.encode import Storage
from stoker.data.loading.order import WINDOW, Arrangement, Order, lanes_for
from stoker.data.packing.pack import pack
from stoker.recipe.recipe import Recipe
from stoker.survive.remedies import Remedies
from stoker.train.device import set_arithmetic
from stoker.train.loaders import Loaders, build_loaders, prepare
from stoker.train.model_input import input_maker
from stoker.train.process_group import Ranks
from stoker.train.state import TrainState
from stoker.train.step import Step
from stoker.train.transfer import transfer_to

BATCH = 256
SHARD = 16
"""Images of a shard: 1,000 of 1.28 M."""
SCALED_WINDOW, SCALED_LANES = 64, 64
"""4,096 of 1.28 M, and the lanes of a batch of 256 there."""
CLASS_WINDOW, CLASS_SHARD, CLASS_LANES = 1600, 390, 2
"""Windows and shards that hold as much of a class of 500 as there of a class of 1,281, and as many
lanes as give the windows of all of them the same part of the set, a fifth."""
SCALED_BUFFER = 156
"""10,000 of 1.28 M."""
STORED = 24
"""Pixels of the shorter side."""
RECIPE = Recipe(
    model="resnet9_w8",
    image_size=16,
    batch_size=BATCH,
    epochs=3,
    optimizer="sgd",
    lr_base=0.4,
    scheduler="onecycle",
    warmup_epochs=1,
    weight_decay=5e-4,
    label_smoothing=0.1,
    crop="pad",
    crop_pad=2,
    crop_pct=1.0,
)


@dataclass(frozen=True)
class Case:
    """An order, and how the set is stored."""

    order: str
    storage: str
    make: Callable[[Ints, int], Arrangement]
    """Makes the order from the sizes of the shards and a seed."""
    shard: int = SHARD

    @property
    def name(self) -> str:
        return f"{self.order}, {self.storage}"


def stoker(lanes: int = 0, window: int = WINDOW) -> Callable[[Ints, int], Arrangement]:
    """The product's order; by default with its own lanes and window."""

    def make(sizes: Ints, seed: int) -> Arrangement:
        own = lanes or lanes_for(int(sizes.sum()), [BATCH])
        return Order(sizes, "benchmark", seed, own, window)

    return make


def perfect(sizes: Ints, seed: int) -> Arrangement:
    return Perfect(int(sizes.sum()), seed)


def shards_only(sizes: Ints, seed: int) -> Arrangement:
    return ShardsOnly(Order(sizes, "benchmark", seed))


def buffered(sizes: Ints, seed: int) -> Arrangement:
    return Buffered(sizes, SCALED_BUFFER, seed)


PACKED, BY_CLASS = "as packed", "class by class"
CASES = (
    Case("perfect shuffle", PACKED, perfect),
    Case("stoker", PACKED, stoker()),
    Case("stoker, 1:64", PACKED, stoker(SCALED_LANES, SCALED_WINDOW)),
    Case("shards only", PACKED, shards_only),
    Case("stoker", BY_CLASS, stoker()),
    Case("stoker, 1:64", BY_CLASS, stoker(SCALED_LANES, SCALED_WINDOW)),
    Case("stoker, by classes", BY_CLASS, stoker(CLASS_LANES, CLASS_WINDOW), CLASS_SHARD),
    Case("stoker, 1:64, one lane", BY_CLASS, stoker(1, SCALED_WINDOW)),
    Case(f"buffer of {SCALED_BUFFER} (model)", BY_CLASS, buffered),
    Case("shards only", BY_CLASS, shards_only),
)


def arrangement(case: Case, split: SplitIndex, seed: int) -> Arrangement:
    """The order of a case over the samples of a packed set."""
    if case.storage == PACKED:
        return case.make(split.shard_sizes, seed)
    whole, rest = divmod(len(split), case.shard)
    sizes = np.append(np.full(whole, case.shard, np.int64), [rest] * (rest > 0))
    return Stored(case.make(sizes, seed), np.argsort(split.labels, kind="stable"))


def train(dataset: Dataset, recipe: Recipe, case: Case, ranks: Ranks) -> dict[str, Any]:
    """Train and evaluate once with the order of a case; the row of the run."""
    began, cpu_began = time.perf_counter(), time.process_time()
    set_arithmetic(recipe)
    prepared, transfer = prepare(dataset, recipe, ranks), transfer_to(ranks.device)
    loaders = build_loaders(prepared, prepared.lanes, ranks, transfer, print)
    loaders.loader.order = arrangement(case, prepared.split, recipe.seed)
    state = TrainState.fresh(recipe, prepared.model, ranks.device)
    to_input = input_maker(prepared.normalise, ranks.device, recipe.channels_last)
    with tempfile.TemporaryDirectory() as folder:
        parts = (recipe, prepared.timeline, ranks, state, prepared.model, to_input)
        step = Step(*parts, Remedies(Path(folder)), transfer=transfer)
        step.train_mode()
        classes = follow(step, loaders)
    assert loaders.evaluator is not None
    accuracy = loaders.evaluator.run(state.evaluated_model, recipe.image_size, to_input)
    loaders.close()
    assert accuracy is not None
    return {
        "case": case.name,
        "seed": recipe.seed,
        "top1": accuracy.top1_share,
        "images": accuracy.images,
        "loss": accuracy.loss,
        "classes_in_a_batch": classes,
        "wall_s": round(time.perf_counter() - began, 1),
        "cpu_s": round(time.process_time() - cpu_began, 1),
    }


def follow(step: Step, loaders: Loaders) -> float:
    """Make every step of a run; the mean number of classes in a batch."""
    classes = []
    for loaded in loaders.loader.batches(step.timeline.batches()):
        classes.append(len(np.unique(loaded.labels)))
        step(loaded)
    return statistics.mean(classes)


def table(rows: list[dict[str, Any]]) -> list[str]:
    """A line for each case, with its differences from the perfect shuffle of the same seeds."""
    top1 = {(row["case"], row["seed"]): 100 * row["top1"] for row in rows}
    seeds = sorted({row["seed"] for row in rows})
    lines = [
        "| storage | order | classes in a batch | top-1 of each seed | mean | spread | less than "
        "the perfect shuffle |",
        "|---|---|---|---|---|---|---|",
    ]
    for case in CASES:
        both = [s for s in seeds if (case.name, s) in top1 and (CASES[0].name, s) in top1]
        if not both:
            continue
        own = [top1[case.name, seed] for seed in both]
        lost = [top1[CASES[0].name, seed] - top1[case.name, seed] for seed in both]
        found = [row["classes_in_a_batch"] for row in rows if row["case"] == case.name]
        spread = f"{statistics.stdev(own):.1f}" if len(own) > 1 else "one seed"
        lines.append(
            f"| {case.storage} | {case.order} | {statistics.mean(found):.1f} | "
            f"{', '.join(f'{value:.1f}' for value in own)} | {statistics.mean(own):.1f} % | "
            f"{spread} | {statistics.mean(lost):+.1f} |"
        )
    return lines


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("archive", type=Path, help="images by class, with val or test")
    parser.add_argument("folder", type=Path, help="for the packed set and the rows")
    parser.add_argument("--seeds", type=numbers, default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=RECIPE.epochs)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--cases", type=numbers, help="numbers from 0; all by default")


def run(arguments: argparse.Namespace) -> int:
    """Make the runs that are missing, and print the table."""
    if not arguments.archive.exists():
        print(f"not run: {arguments.archive} is missing; give an archive of images by class")
        return 0
    arguments.folder.mkdir(parents=True, exist_ok=True)
    storage = Storage(codec="raw", min_side=STORED)
    packed = pack(
        arguments.archive, arguments.folder / "packed", storage=storage, shard_images=SHARD
    )
    dataset, ranks = Dataset(packed), Ranks.join(arguments.threads)
    kept = arguments.folder / "rows"
    kept.mkdir(exist_ok=True)
    chosen = [CASES[n] for n in arguments.cases] if arguments.cases else CASES
    for seed, case in product(arguments.seeds, chosen):
        row = kept / f"{seed}-{CASES.index(case)}.json"
        if not row.exists():
            recipe = replace(RECIPE, seed=seed, epochs=arguments.epochs, threads=arguments.threads)
            figures = json.dumps(train(dataset, recipe, case, ranks))
            row.write_text(f"{figures}\n")
            print(figures, file=sys.stderr)
    print("\n".join(table([json.loads(row.read_text()) for row in sorted(kept.iterdir())])))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add_flags(parser)
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
