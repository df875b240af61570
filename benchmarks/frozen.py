"""What freezing the body of a model brings: seconds of a step with and without it, in turns.

    python benchmarks/frozen.py [MODEL] [IMAGE_SIZE] [BATCH]

The CPU time of a process counts, so that other programs change little. Each turn makes some steps
of each kind; the smallest ratio and the largest one of all turns are printed.
"""

from __future__ import annotations

import sys
import time

import torch
from torch import nn

from stoker.recipe.recipe import Recipe
from stoker.text import say
from stoker.train.model.build import build_model
from stoker.train.model.freeze import plan_freeze
from stoker.train.optim import build_optimizer

TURNS, STEPS, CLASSES = 5, 2, 10


def steps_s(model: nn.Module, optimizer: torch.optim.Optimizer, images: torch.Tensor) -> float:
    """CPU seconds of a step."""
    labels = torch.arange(len(images)) % CLASSES
    began = time.process_time()
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    return (time.process_time() - began) / STEPS


def main(name: str = "resnet18", size: str = "64", batch: str = "32") -> None:
    recipe = Recipe(model=name, image_size=int(size), freeze="body", weights="any")
    images = torch.rand(int(batch), 3, int(size), int(size))
    kinds = []
    for frozen in (False, True):
        model = build_model(recipe, CLASSES)[0].train()
        optimizer = build_optimizer(recipe, model)
        if frozen:
            plan_freeze(recipe, model).apply(model)
        steps_s(model, optimizer, images)  # chooses kernels
        kinds.append((model, optimizer))
    ratios = []
    for _ in range(TURNS):
        whole_s, frozen_s = (steps_s(*kind, images) for kind in kinds)
        ratios.append(whole_s / frozen_s)
        say(f"all trained {whole_s:.3f} s, body frozen {frozen_s:.3f} s of CPU time a step")
    say(f"{name} at {size} px: {min(ratios):.1f} to {max(ratios):.1f} times as fast")


if __name__ == "__main__":
    main(*sys.argv[1:])
