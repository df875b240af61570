"""Predicted memory against the real allocations of steps on a CPU, and every preset on GPUs.

    python benchmarks/memory.py [--write docs/results/memory.md]

A real step is the project's own, with random images. PyTorch's profiler reports each block that the
CPU allocator hands out and takes back; the peak is the highest sum of live blocks, from before the
model is built. Blocks that live inside one convolution only are oneDNN's scratch memory (for cuDNN
there is an allowance): a second figure leaves them out. The presets are predicted for GPUs, where
nothing has been measured.
"""

from __future__ import annotations

import argparse
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from stoker.doctor.memory import answer_memory
from stoker.recipe.recipe import Recipe
from stoker.recipe.resolve import preset_names, resolve
from stoker.train.device import build_on_device
from stoker.train.process_group import Ranks
from stoker.train.trials.compute import Trial, harmless
from stoker.train.trials.device_memory import GB, Prediction

CLASSES = 10
WITHIN = 0.1
CONVOLUTIONS = ("aten::convolution", "aten::convolution_backward")
CARDS_GB = (16, 24, 40, 80)
MODELS = {
    "resnet9_w16": (64, (8, 64)),
    "resnet18": (64, (8, 64)),
    "resnet50": (64, (8, 32)),
    "mobilenetv2_100": (64, (8, 64)),
    "mobilenetv3_large_100": (64, (8, 192)),
    "vit_tiny_patch16_224": (224, (4, 16)),
    "convnext_atto": (64, (8, 64)),
}
"""Image size and batch sizes of each model."""
SETTINGS = (("sgd", False), ("adamw", True))
"""Optimiser, and whether there is a moving average."""


@dataclass(frozen=True)
class Cell:
    """One comparison, in bytes."""

    recipe: Recipe
    predicted: int
    measured: int
    without_scratch: int
    """Measured, without what lives inside one convolution only."""

    @property
    def ratio(self) -> float:
        return self.predicted / self.measured

    @property
    def ratio_without_scratch(self) -> float:
        return self.predicted / self.without_scratch


def measured_peaks(recipe: Recipe, classes: int) -> tuple[int, int]:
    """The most bytes that two real steps hold at once, the model included: all, and without what
    lives inside one convolution only."""
    device = torch.device("cpu")
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        model, normalise = build_on_device(recipe, classes, device)
        ranks = Ranks(0, 1, 0, 1, device)
        trial = Trial(harmless(recipe), ranks, model, normalise, 1 << 20)
        for _ in range(2):
            trial(trial.random_batch(recipe.batch_size))
    events = profiler.profiler.kineto_results.events()
    changes = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"]
    convolutions = [(e.start_ns(), e.end_ns()) for e in events if e.name() in CONVOLUTIONS]
    return peaks_of(sorted(changes), sorted(convolutions))


def peaks_of(
    changes: Sequence[tuple[int, int]], convolutions: Sequence[tuple[int, int]]
) -> tuple[int, int]:
    """The highest sum of (time, bytes) changes: all, and without peaks inside a convolution."""
    levels = list(accumulate(size for _, size in changes))
    times = [time for time, _ in changes]
    lasting = list(levels)
    for begin, end in convolutions:
        first, after = bisect_left(times, begin), bisect_right(times, end)
        if first < after:
            edge = max(levels[first - 1] if first else 0, levels[after - 1])
            lasting[first:after] = [min(level, edge) for level in lasting[first:after]]
    return max(levels), max(lasting)


def predicted_peak(recipe: Recipe, classes: int) -> int:
    images = recipe.micro_batch or recipe.batch_size
    prediction = Prediction(recipe, classes, gpu=False)
    return prediction.training(recipe.batch_size, images, recipe.image_size).total


def compare(recipe: Recipe, classes: int = CLASSES) -> Cell:
    """Predict, then measure."""
    return Cell(recipe, predicted_peak(recipe, classes), *measured_peaks(recipe, classes))


def recipes() -> Iterator[Recipe]:
    for model, (image_size, batches) in MODELS.items():
        for amp in ("off", "bf16"):
            for optimizer, ema in SETTINGS:
                for batch_size in batches:
                    yield Recipe(
                        model=model,
                        image_size=image_size,
                        batch_size=batch_size,
                        amp=amp,
                        optimizer=optimizer,
                        ema=ema,
                    )
    base = Recipe(model="resnet18", image_size=64, batch_size=64)
    yield replace(base, mixup_alpha=0.2, cutmix_prob=0.3, clip_grad=1.0)
    yield replace(base, micro_batch=16)
    yield replace(base, channels_last=False)


def describe(recipe: Recipe) -> str:
    extras = [
        *(["mixing, clipping"] if recipe.mixup_alpha else []),
        *([f"micro-batch {recipe.micro_batch}"] if recipe.micro_batch else []),
        *([] if recipe.channels_last else ["channels first"]),
    ]
    precision = "fp32" if recipe.amp == "off" else recipe.amp
    average = "EMA" if recipe.ema else ""
    names = [recipe.model, precision, recipe.optimizer, average, ", ".join(extras)]
    return f"{recipe.batch_size} of {recipe.image_size} px | " + " | ".join(names)


def comparison() -> list[str]:
    """The table of predictions against measurements."""
    rows, cells = [], []
    for recipe in recipes():
        cell = compare(recipe)
        cells.append(cell)
        sizes = " | ".join(f"{size / 1e6:,.1f}" for size in (cell.predicted, cell.measured))
        ratios = f"{cell.ratio:.3f} | {cell.ratio_without_scratch:.3f}"
        rows.append(f"| {describe(recipe)} | {sizes} | {ratios} |")
        print(rows[-1], flush=True)
    return [
        "| images | model | precision | optimiser | EMA | also | predicted MB | measured MB "
        "| ratio | without scratch |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *rows,
        "",
        f"All allocations: {spread([cell.ratio for cell in cells])}.",
        f"Without oneDNN's scratch: {spread([cell.ratio_without_scratch for cell in cells])}.",
    ]


def spread(ratios: list[float]) -> str:
    inside = sum(abs(ratio - 1) <= WITHIN for ratio in ratios)
    return (
        f"{inside} of {len(ratios)} predictions within {WITHIN:.0%}, ratios from "
        f"{min(ratios):.3f} to {max(ratios):.3f}"
    )


def presets(classes: int = 1000) -> list[str]:
    """The table of every preset and phase on every card."""
    cards = " | ".join(f"{card} GB" for card in CARDS_GB)
    rows = [f"| preset | phase | needs GB | {cards} |", "|---|---|---|" + "---|" * len(CARDS_GB)]
    for name in preset_names():
        recipe = resolve(name).recipe
        prediction = Prediction(recipe, classes)
        answers = [answer_memory(recipe, classes, 1, card, prediction) for card in CARDS_GB]
        for number, phase in enumerate(answers[0].phases):
            cells = []
            for answer in answers if number == 0 else ():
                fitting = f"{answer.training.total / GB:.1f}"
                batch = answer.micro_batch
                verdict = "fits" if batch == 0 else f"micro-batch {batch}: {fitting}"
                cells.append("no" if batch is None else verdict)
            cells += [""] * (len(CARDS_GB) - len(cells))
            rows.append(
                f"| {name if number == 0 else ''} | {phase.batch_size:,} of {phase.image_size} px "
                f"| {phase.peak.total / GB:.1f} | {' | '.join(cells)} |"
            )
            print(rows[-1], flush=True)
        evaluation = answers[0].evaluation
        rows.append(
            f"| | evaluation: {evaluation.images} of {evaluation.image_size} px "
            f"| {evaluation.total / GB:.1f} |" + " |" * len(CARDS_GB)
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--write", metavar="FILE", help="replace the tables in this file")
    parser.add_argument("--presets", action="store_true", help="only predict the presets")
    options = parser.parse_args()
    os.environ.setdefault("KINETO_LOG_LEVEL", "5")
    tables = {"presets": presets()}
    if not options.presets:
        tables["comparison"] = comparison()
    if options.write:
        file = Path(options.write)
        text = file.read_text()
        for name, rows in tables.items():
            begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
            before, _, rest = text.partition(begin)
            after = rest.partition(end)[2]
            text = f"{before}{begin}\n" + "\n".join(rows) + f"\n\n{end}{after}"
        file.write_text(text)


if __name__ == "__main__":
    main()
