"""Training steps on this machine's CPU: measured, and forecast from three of them.

    python benchmarks/plan_cpu.py CELLS.json --measure [--rounds 7] [--threads 1]
    python benchmarks/plan_cpu.py CELLS.json --fit
    python benchmarks/plan_cpu.py CELLS.json

The first measures every cell with the product's own step: two steps of each cell in turn, several
rounds, the median of the CPU time of a step. The second fits the typical costs of
stoker.plan.measured.cpu on the cells for it. The last forecasts five cells from three measured
ones, and five older ones, by which an earlier form of the model was judged. No cell is in two
groups.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

MEASURED = (("resnet18", 16, 96), ("mobilenetv2_100", 8, 96), ("resnet9_w16", 32, 64))
FORECAST = (
    ("resnet34", 16, 96),
    ("resnet18", 8, 128),
    ("mobilenetv2_100", 16, 64),
    ("mobilenetv3_large_100", 8, 128),
    ("resnet9_w24", 32, 64),
)
"""Named before they were measured, and measured after the form of the model was chosen."""
SEEN = (
    ("resnet34", 8, 128),
    ("resnet18", 4, 160),
    ("mobilenetv2_100", 16, 128),
    ("mobilenetv3_large_100", 16, 96),
    ("resnet9_w32", 16, 96),
)
FITTED = (
    ("resnet10t", 8, 96),
    ("resnet26", 8, 96),
    ("resnet26", 4, 128),
    ("resnet14t", 16, 128),
    ("resnet50", 4, 96),
    ("mobilenetv3_small_100", 16, 96),
    ("mobilenetv3_small_100", 32, 64),
    ("efficientnet_lite0", 8, 96),
    ("mnasnet_100", 16, 96),
    ("mobilenetv2_050", 32, 96),
    ("mobilenetv2_050", 4, 160),
    ("regnetx_002", 16, 96),
    ("regnetx_004", 8, 128),
    ("resnet9_w8", 32, 64),
    ("resnet9_w64", 8, 64),
)
LARGEST_ERROR = 0.15
RIDGE = 0.3
"""Against costs that few cells decide; chosen by leaving out one fitted model at a time."""
CLASSES = 100
Cell = tuple[str, int, int]


def measure(cells: list[Cell], rounds: int, threads: int) -> list[dict[str, object]]:
    """The CPU seconds of a step of each cell."""
    from dataclasses import replace

    from stoker.recipe.recipe import Recipe
    from stoker.train.device import build_on_device
    from stoker.train.process_group import Ranks
    from stoker.train.trials.compute import Trial, harmless

    ranks = Ranks.join(threads)
    trials = []
    for model_name, batch, size in cells:
        recipe = replace(
            harmless(Recipe(model=model_name, batch_size=batch, image_size=size)), amp="off"
        )
        model, normalise = build_on_device(recipe, CLASSES, ranks.device)
        trials.append(Trial(recipe, ranks, model, normalise, 1 << 20))
    costs: list[list[float]] = [[] for _ in cells]
    for turn in range(rounds + 1):
        for trial, (_, batch, _), seconds in zip(trials, cells, costs, strict=True):
            trial.timed(batch)  # brings its memory back: a training run does not leave it
            steps = [trial.timed(batch).cpu_s for _ in range(2)]
            if turn:  # the first round chooses kernels
                seconds += steps
        print(f"round {turn} of {rounds}", file=sys.stderr)
    return [
        {
            "model": model,
            "batch": batch,
            "image_size": size,
            "threads": threads,
            "cpu_s": statistics.median(seconds),
            "quartiles": statistics.quantiles(seconds, n=4),
        }
        for (model, batch, size), seconds in zip(cells, costs, strict=True)
    ]


def fit(rows: dict[Cell, dict[str, Any]]) -> dict[str, float]:
    """Seconds of each kind of work, none negative: least squares of relative errors, with a small
    weight on sparing use of them."""
    import numpy as np

    from stoker.plan.measured.cpu import features

    work = [features(counted(cell), cell[1]) for cell in FITTED]
    kinds = list(work[0])
    matrix = np.array([[each[kind] for kind in kinds] for each in work])
    matrix /= np.array([rows[cell]["cpu_s"] for cell in FITTED])[:, None]
    scale = matrix.mean(axis=0)
    matrix = matrix / scale
    costs = np.full(len(kinds), 1 / len(kinds))
    for _ in range(2000):  # coordinate descent, which keeps every cost at 0 or above
        for column in range(len(kinds)):
            rest = 1 - matrix @ costs + matrix[:, column] * costs[column]
            denominator = matrix[:, column] @ matrix[:, column] + RIDGE
            costs[column] = max(0.0, (matrix[:, column] @ rest) / denominator)
    errors = matrix @ costs - 1
    print(
        f"fitted cells: error {100 * np.median(abs(errors)):.1f} % median, "
        f"{100 * abs(errors).max():.1f} % at most"
    )
    for cell, error in zip(FITTED, errors, strict=True):
        print(f"  {' '.join(map(str, cell))}: {100 * error:+.1f} %")
    return {kind: float(cost) for kind, cost in zip(kinds, costs / scale, strict=True) if cost}


def counted(cell: Cell) -> Any:
    """The operations of a cell's model at its image size, without a GPU or weights."""
    from stoker.plan.gpu.operations import count_operations

    return count_operations(cell[0], cell[2], CLASSES)


def table(rows: dict[Cell, dict[str, Any]]) -> bool:
    """Print the forecasts; whether all are close enough."""
    from stoker.plan.measured.cpu import MeasuredCell, forecast_cpu

    cells = [
        MeasuredCell(counted(cell), cell[1], cell[1] / rows[cell]["cpu_s"]) for cell in MEASURED
    ]
    print("| model | batch | px | images/s | forecast | error % |")
    print("|---|---|---|---|---|---|")
    for cell in MEASURED:
        speed = cell[1] / rows[cell]["cpu_s"]
        print(f"| {cell[0]} | {cell[1]} | {cell[2]} | {speed:.1f} | measured for the forecast | |")
    errors = {}
    for cell in (*FORECAST, *SEEN):
        speed = cell[1] / rows[cell]["cpu_s"]
        forecast = forecast_cpu(counted(cell), cell[1], cells).images_per_s
        errors[cell] = forecast / speed - 1
        older = " (older)" if cell in SEEN else ""
        row = f"| {cell[0]}{older} | {cell[1]} | {cell[2]} | {speed:.1f} | {forecast:.1f} "
        print(f"{row}| {100 * errors[cell]:+.1f} |")
    return max(abs(errors[cell]) for cell in FORECAST) <= LARGEST_ERROR


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    flags.add_argument("cells", type=Path, metavar="CELLS.json")
    flags.add_argument("--measure", action="store_true", help="measure and write the cells")
    flags.add_argument("--fit", action="store_true", help="fit the typical costs and print them")
    flags.add_argument("--rounds", type=int, default=7)
    flags.add_argument("--threads", type=int, default=1)
    parsed = flags.parse_args()
    if parsed.measure:
        rows = measure([*MEASURED, *FORECAST, *SEEN, *FITTED], parsed.rounds, parsed.threads)
        parsed.cells.write_text(json.dumps(rows, indent=1) + "\n")
    by_cell = {
        (row["model"], row["batch"], row["image_size"]): row
        for row in json.loads(parsed.cells.read_text())
    }
    if parsed.fit:
        print(json.dumps(fit(by_cell), indent=4))
        return 0
    return 0 if table(by_cell) else 1


if __name__ == "__main__":
    sys.exit(main())
