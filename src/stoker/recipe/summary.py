"""What follows from a recipe on this many ranks, said in one line before step 1, and what looks
wrong with it. Pure functions of plain numbers.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

from stoker.recipe.recipe import Recipe
from stoker.recipe.schedule import Timeline, cuts, micro_cuts, peak_lr


def derived_line(
    recipe: Recipe, timeline: Timeline, world: int, micro_batch: int | None = None
) -> str:
    """The one line: ranks, micro-batches (the recipe's, or what fitted), learning rate, warm-up."""
    held = recipe.micro_batch if micro_batch is None else micro_batch
    first = timeline.stretches[0]
    share = max(end - begin for begin, end in pairwise(cuts(first.batch_size, world)))
    parts = [end - begin for begin, end in pairwise(micro_cuts(share, held))]
    accumulation, micro = len(parts), max(parts)
    up_to = "" if first.batch_size == world * micro * accumulation else "up to "
    ranks = f"{world} rank{'s' if world > 1 else ''}"
    peaks = [peak_lr(recipe, stretch.batch_size) for stretch in timeline.stretches]
    if recipe.lr > 0:
        rate = f"LR {recipe.lr:g} as given"
    else:
        reached = " / ".join(f"{peak:.4g}" for peak in dict.fromkeys(peaks))
        rate = (
            f"base LR {recipe.lr_base:g}@{recipe.lr_base_size} {recipe.lr_base_scale}"
            f" -> peak {reached}"
        )
    warm = f"warm-up {recipe.warmup_epochs:g} ep = {warmup_steps(recipe, timeline):,} steps"
    return (
        f"global {first.batch_size} = {ranks} x {up_to}{micro} x {accumulation} accum; "
        f"{rate}; {warm}; {recipe.epochs} ep = {timeline.steps:,} steps"
    )


def warmup_steps(recipe: Recipe, timeline: Timeline) -> int:
    """Steps that start before the warm-up is over."""
    left, steps = recipe.warmup_epochs * timeline.samples, 0
    for stretch in timeline.stretches:
        steps += min(
            max(math.ceil((left - stretch.first_position) / stretch.batch_size), 0), stretch.steps
        )
    return steps


def warnings(recipe: Recipe, timeline: Timeline) -> list[str]:
    """What a careful colleague would say before the meter starts."""
    said = []
    if recipe.lr > 0:
        sizes = sorted({stretch.batch_size for stretch in timeline.stretches})
        if len(sizes) > 1:
            said.append(
                f"one learning rate, {recipe.lr:g}, for batches of {sizes}: the rate per sample "
                f"changes with the phase; give --lr-base instead of --lr to scale it"
            )
        rule = peak_lr(replace(recipe, lr=0.0), sizes[-1])
        if recipe.optimizer == "sgd" and not rule / 4 <= recipe.lr <= rule * 4:
            said.append(
                f"--lr {recipe.lr:g} is {max(recipe.lr / rule, rule / recipe.lr):.0f} times off "
                f"the {recipe.lr_base:g}@{recipe.lr_base_size} rule ({rule:.4g} for batch "
                f"{sizes[-1]})"
            )
    if timeline.unseen:
        said.append(
            f"{timeline.unseen} samples of the last epoch stay unseen: less than one batch is left"
        )
    return said
