"""Before the first step of a run over several machines: is the network quick enough for it?

Invariants: every rank comes to the same answer, before anything is trained. Trying leaves no trace
in the run. A run that has begun is never held up: it says later what binds it.
"""

from __future__ import annotations

import math
from contextlib import suppress

import numpy as np

from stoker.measure.ports import (
    BACKWARD,
    COSTLY,
    STEADY,
    exposed_share,
    port_for,
    port_mbit,
    port_words,
    ring_bytes,
)
from stoker.measure.trials.link import max_over_ranks
from stoker.recipe.schedule import Batch
from stoker.train.step import NO_MEMORY, Step
from stoker.train.trials.larger_batch import passes, untouched

FEW = 16
"""Images of a first, short trial."""
LONG_S = 3.0
"""A trial with all images that would take longer is left out."""


def too_slow(step: Step, bytes_per_s: float, send_cpu: float) -> str:
    """Why the network is too slow for a run, in words; empty where it is not. `send_cpu` is the
    CPU time that a byte takes."""
    world = step.ranks.world
    weights = [p for p in step.state.model.parameters() if p.requires_grad]
    gradient = sum(p.numel() * p.element_size() for p in weights)
    sent = ring_bytes(gradient, world)
    batch = step.timeline.batch_of_step(0)
    (compute_s,) = max_over_ranks([computing_s(step, batch)])
    sizes = step.held_at_once(batch)
    last = sizes[-1] / sum(sizes)
    share = exposed_share(sent / bytes_per_s, compute_s, last)
    (share,) = max_over_ranks([share])  # shares of a batch differ by an image or two
    if share <= COSTLY:
        return ""
    mbit = bytes_per_s * 8e-6
    # On a GPU the process waits for it by spinning: that says nothing.
    busy = send_cpu * bytes_per_s if step.ranks.device.type == "cpu" else None
    port = port_mbit(mbit, STEADY, busy)
    looks = f" (looks like a {port_words(port)} port)" if port else ""
    better = port_for(sent * 8e-6 / (BACKWARD * last * compute_s))
    wider = f"a port of {port_words(better)} would hide it; " if better and better > mbit else ""
    return (
        f"the network is too slow for this run: {world} ranks need {sent / bytes_per_s:.2g} s to "
        f"exchange a gradient of {gradient / 1e6:.3g} MB at {mbit:,.0f} Mbit/s{looks}, and compute "
        f"for {compute_s:.2g} s a step: at least {share:.0%} of both would be waiting; {wider}"
        "a larger --batch-size exchanges less often; --yes trains all the same"
    )


def computing_s(step: Step, batch: Batch) -> float:
    """Seconds that this rank's share of a batch takes to go forward and backward, by a trial with
    as many of its images as it holds at once, or with a few where that would take long. Without an
    end where memory does not do even for these: the first step will find a way."""
    sizes = step.held_at_once(batch)
    held, few = sizes[0], min(FEW, sizes[0])
    seconds = math.inf
    with untouched(step.state.model), suppress(*NO_MEMORY):
        seconds = tried_s(step, few, batch.image_size) / few
        if few < held and seconds * held < LONG_S:
            seconds = tried_s(step, held, batch.image_size) / held
    return seconds * sum(sizes)


def tried_s(step: Step, images: int, image_size: int) -> float:
    """The quickest of some passes: the first chooses kernels, neighbours disturb others."""
    blank = step.to_input(np.zeros((images, image_size, image_size, 3), np.uint8))
    return min(passes(step, blank) for _ in range(3))
