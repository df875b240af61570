"""The line before step 1, and warnings about the recipe: pure functions of plain numbers."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from itertools import pairwise

from stoker.recipe.recipe import Recipe
from stoker.recipe.schedule import Timeline, cuts, micro_cuts, peak_lr
from stoker.text import plural, rough

LIKE_SGD = re.compile(r"c?sgd\w*|momentum|nesterovw?|n?lar[sc]")
"""Optimisers that take the learning rates of SGD."""
HIGH_RATE = 0.02
"""A learning rate that is too high for most of the others."""
FINE_TUNING_RATE, FINE_TUNING_SIZE = 0.02, 256
"""The rate for so many images from which trained weights are usually trained on: larger ones undo
what they have learned."""
FAR_OFF = 4.0
"""A rate that differs from the rule by this factor is probably a mistake."""


def derived_line(
    recipe: Recipe, timeline: Timeline, world: int, micro_batch: int | None = None
) -> str:
    """The settings in one line. `micro_batch` is what fits in memory; None: the recipe's."""
    first = timeline.stretches[0]
    share = max(end - begin for begin, end in pairwise(cuts(first.batch_size, world)))
    offsets = micro_cuts(share, recipe.micro_batch if micro_batch is None else micro_batch)
    sizes = [end - begin for begin, end in pairwise(offsets)]
    up_to = "" if first.batch_size == world * max(sizes) * len(sizes) else "up to "
    peaks = dict.fromkeys(rough(peak_lr(recipe, s.batch_size), 4) for s in timeline.stretches)
    rule = f"{recipe.lr_base:g} for {plural(recipe.lr_base_size, 'image')}, {recipe.lr_base_scale}"
    factors = f", head x {recipe.head_lr_scale:g}" if recipe.head_lr_scale != 1 else ""
    factors += f", layer decay {recipe.layer_decay:g}" if recipe.layer_decay != 1 else ""
    return (
        f"global batch {first.batch_size:,} = {plural(world, 'rank')} x "
        f"{up_to}{plural(max(sizes), 'image')} x {plural(len(sizes), 'micro-batch')}; "
        f"peak learning rate {' / '.join(peaks)} ({'--lr' if recipe.lr else rule}{factors}); "
        f"warm-up {plural(recipe.warmup_epochs, 'epoch')} = "
        f"{plural(warmup_steps(recipe, timeline), 'step')}; "
        f"{plural(recipe.epochs, 'epoch')} = {plural(timeline.steps, 'step')}"
    )


def warmup_steps(recipe: Recipe, timeline: Timeline) -> int:
    """The number of steps that start before the end of the learning-rate warm-up."""
    end, steps = recipe.warmup_epochs * timeline.samples, 0
    for stretch in timeline.stretches:
        warm = math.ceil((end - stretch.first_position) / stretch.batch_size)
        steps += min(max(warm, 0), stretch.steps)
    return steps


def warnings(recipe: Recipe, timeline: Timeline) -> list[str]:
    """Settings of a recipe that are allowed and probably a mistake, a sentence for each."""
    texts = []
    if recipe.lr > 0:
        texts += fixed_rate_warnings(recipe, timeline)
    elif not LIKE_SGD.fullmatch(recipe.optimizer):
        sizes = [stretch.batch_size for stretch in timeline.stretches]
        if (peak := max(peak_lr(recipe, size) for size in sizes)) > HIGH_RATE:
            texts.append(
                f"the peak learning rate {peak:.4g} comes from --lr-base {recipe.lr_base:g}, which "
                f"suits sgd: {recipe.optimizer} usually needs less, such as --lr 0.001"
            )
    if timeline.unseen:
        texts.append(
            f"the last {plural(timeline.unseen, 'sample')} of the last epoch will not be used: "
            "fewer than one batch"
        )
    return texts


def fixed_rate_warnings(recipe: Recipe, timeline: Timeline) -> list[str]:
    """What is wrong with an explicit learning rate: it does not follow the batch size, or it is far
    off the rule for one of the batch sizes, the one where it is furthest off."""
    texts = []
    sizes = sorted({stretch.batch_size for stretch in timeline.stretches})
    if len(sizes) > 1:
        texts.append(
            f"--lr {recipe.lr:g} is the same for batches of {sizes} images: use --lr-base to "
            "scale the learning rate with the batch size"
        )
    rules = {size: usual_rate(recipe, size) for size in sizes}
    size, rule = max(rules.items(), key=lambda item: abs(math.log(recipe.lr / item[1])))
    factor = max(recipe.lr / rule, rule / recipe.lr)
    if recipe.optimizer == "sgd" and factor >= FAR_OFF * (1 - 1e-9):
        tuned = f" to fine-tune ({FINE_TUNING_RATE:g} for {FINE_TUNING_SIZE})"
        texts.append(
            f"--lr {rough(recipe.lr, 6)} is {rough(round(factor), 3)} times "
            f"{'larger' if recipe.lr > rule else 'smaller'} than the {rough(rule, 3)} that "
            f"{'is usual' if fine_tunes(recipe) else '--lr-base gives'} for a batch of "
            f"{plural(size, 'image')}{tuned if fine_tunes(recipe) else ''}"
        )
    return texts


def fine_tunes(recipe: Recipe) -> bool:
    """Whether trained weights are trained on: not where only a new head is."""
    has_weights = bool(recipe.weights) or recipe.pretrained
    return has_weights and not (recipe.freeze == "body" and not recipe.freeze_epochs)


def usual_rate(recipe: Recipe, size: int) -> float:
    """The learning rate that the scaling rule gives for a batch size."""
    rule = replace(recipe, lr=0.0)
    if fine_tunes(recipe):
        rule = replace(rule, lr_base=FINE_TUNING_RATE, lr_base_size=FINE_TUNING_SIZE)
    return peak_lr(rule, size)
