"""Our loop against a bare PyTorch loop: the same model, batch and synthetic images.

    python benchmarks/loop.py [--model resnet18] [--steps 120] [--checkpoint-every 10]

Steps of both alternate in one process: when our loop requests its next batch, a bare step is run
and timed first, so that both run under the same load of the machine. Ours has events, spans,
metrics and checkpoints switched on, starts from bytes and normalises them; the bare loop gets
floats. The ratio is the bare loop's time divided by ours, of CPU time (all threads) and of wall
time; 1 means that our loop adds nothing.
"""

from __future__ import annotations

import argparse
import json

from figures import quartiles
from stoker.doctor.selftest.loop_ratio import LoopTimes, alternate
from stoker.recipe.recipe import Recipe
from stoker.train.process_group import Ranks


def figures_of(times: LoopTimes) -> dict[str, float]:
    """Ratios of the bare loop's cost to ours, by the median step and by the sum of all."""
    figures: dict[str, float] = {"steps": len(times.ours), "saves_kept": times.saves}
    for column, clock in enumerate(("wall", "cpu")):
        bare_s = [step[column] for step in times.bare]
        our_s = [step[column] for step in times.ours]
        ratios = quartiles([a / b for a, b in zip(bare_s, our_s, strict=True)], 4)
        bare_ms, our_ms = times.step_ms(column)
        figures[f"{clock}_ms_bare"], figures[f"{clock}_ms_ours"] = (
            round(bare_ms, 2),
            round(our_ms, 2),
        )
        figures |= {f"{clock}_ratio_{name}": ratio for name, ratio in ratios.items()}
        figures[f"{clock}_ratio_sum"] = round(sum(bare_s) / sum(our_s), 4)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--checkpoint-every", type=float, default=10.0, help="seconds [10]")
    flags = parser.parse_args()
    recipe = Recipe(
        model=flags.model,
        image_size=flags.image_size,
        batch_size=flags.batch_size,
        epochs=1,
        checkpoint_interval=flags.checkpoint_every,
    )
    print(json.dumps(figures_of(alternate(recipe, flags.steps, Ranks.join())), indent=1))


if __name__ == "__main__":
    main()
