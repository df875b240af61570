"""Before the first step of a run over several machines: is the link between them fast enough?

Invariants: every rank comes to the same answer, before anything is trained. The trial leaves no
trace in the run. Only a new run is refused: a resumed run reports later what limits it.
"""

from __future__ import annotations

import math

from stoker.host.out_of_memory import is_out_of_memory
from stoker.measure import ports
from stoker.measure.trials.link import max_over_ranks
from stoker.recipe.schedule import Batch
from stoker.text import rough
from stoker.train.passes import buffers_restored
from stoker.train.step import Step
from stoker.train.trials.larger_batch import time_pass

FEW_IMAGES = 16
"""Images of the first, short trial."""
LONG_S = 3.0
"""The second trial, with a whole micro-batch, is left out if it would take longer."""


def too_slow(step: Step, bytes_per_s: float, send_cpu: float) -> str:
    """Why the link is too slow for this run; empty if it is not. `send_cpu`: CPU s per byte."""
    world = step.ranks.world
    weights = [p for p in step.state.model.parameters() if p.requires_grad]
    gradient = sum(p.numel() * p.element_size() for p in weights)
    sent = ports.ring_bytes(gradient, world)
    batch = step.timeline.batch_of_step(0)
    (compute_s,) = max_over_ranks([computing_s(step, batch)])
    sizes = step.micro_batch_sizes(batch)
    last = sizes[-1] / sum(sizes)
    # The ranks' shares of a batch differ by an image or two.
    (share,) = max_over_ranks([ports.exposed_share(sent / bytes_per_s, compute_s, last)])
    if share <= ports.COSTLY:
        return ""
    mbit = bytes_per_s * 8e-6
    # With a GPU the process spins while it waits: its CPU time tells nothing.
    busy = send_cpu * bytes_per_s if step.ranks.device.type == "cpu" else None
    port = ports.port_mbit(mbit, ports.STEADY, busy)
    looks = f" (looks like a {ports.port_words(port)} port)" if port else ""
    better = ports.port_for(sent * 8e-6 / (ports.BACKWARD * last * compute_s))
    wider = (
        f"a port of {ports.port_words(better)} would hide it; " if better and better > mbit else ""
    )
    return (
        f"the link between the machines is too slow for this run: {world} ranks need "
        f"{rough(sent / bytes_per_s, 2)} s to exchange a gradient of {rough(gradient / 1e6, 3)} MB "
        f"at {mbit:,.0f} Mbit/s{looks}, and {rough(compute_s, 2)} s to compute a step: at least "
        f"{share:.0%} of each step would be waiting; {wider}a larger --batch-size exchanges less "
        "often; --yes trains anyway"
    )


def computing_s(step: Step, batch: Batch) -> float:
    """Seconds of the passes over this rank's share of a batch, by one micro-batch, or by a few
    images if that takes long. Infinite if these do not fit into memory: step 1 handles that."""
    sizes = step.micro_batch_sizes(batch)
    held, few = sizes[0], min(FEW_IMAGES, sizes[0])
    image_s = math.inf
    with buffers_restored(step.state.model):
        try:
            image_s = pass_s(step, few, batch.image_size) / few
            if few < held and image_s * held < LONG_S:
                image_s = pass_s(step, held, batch.image_size) / held
        except Exception as error:
            if not is_out_of_memory(error):
                raise
    return image_s * sum(sizes)


def pass_s(step: Step, images: int, image_size: int) -> float:
    """Seconds of the fastest of three passes: the first one chooses kernels."""
    blank = step.blank_input(images, image_size)
    return min(time_pass(step, blank) for _ in range(3))
