"""Verdicts in words: every sentence about what limits a run.

Invariants: a sentence is a template that is filled with the numbers of a verdict, each formatted
by the unit that ends its name. Nothing here decides anything: `measure/verdict.py` (our runs) and
`measure/logs/verdict.py` (training logs of other programs) choose the cause and the numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from stoker.text import plural, seconds

Numbers = Mapping[str, float | str]
"""Numbers and names of a verdict. What was not measured is absent."""

_COMPUTE = "compute: the model's forward and backward pass"

NAMES = {
    "read": "reading: the model waits for bytes from storage",
    "read.store": "the store or the link to it: the model waits for bytes from {store}",
    "decode": "decoding: the model waits for images",
    "data": "data: the model waits for images",
    "host.lock": "the host: another Python thread holds the interpreter lock",
    "host.small_batch": "the host: the batch is too small for the fixed cost of a step",
    "cores.others": "other programs: they use the cores that this run needs",
    "cores.quota": "the CPU quota of this container or job",
    "cores.stolen": "stolen time: the hypervisor gives this machine's cores to others",
    "network": "the link between machines",
    "exchange": "the gradient exchange, though no link is full",
    "straggler": "one slow rank: rank {rank} on {host}",
    "checkpoint": "saving checkpoints",
    "evaluation": "evaluation",
    "compute": _COMPUTE,
    "compute.sleep": _COMPUTE,
    "balanced": "no single part: data loading and compute are in balance",
    "loading": "data loading",
    "compute.log": _COMPUTE,
    "data.log": "data: the model waited for its batches",
    "data.log_bursts": "data: the model waited for its batches, in bursts",
    "data.log_epoch_starts": "data: the model waited for its first batches at each epoch's start",
}
"""The name of each cause. `loading` can only be a runner-up."""

_LOADING = "a batch takes {read_s} of reading and {decode_s} of decoding on {threads}"
_EXCHANGE = "{lost_share} of the time waiting for gradients to arrive: {sent_mb} MB a step"
_OCCASIONAL = "{lost_share} of the time, {lost_s} a step"
_SHARES = (
    "{compute_share} of the time in forward, backward and optimiser, "
    "{wait_share} waiting for images"
)
_LOG_WAIT = "{lost_share} of a step is waiting by the mean ({lost_s} of {step_s})"

EVIDENCE = {
    "read": "{lost_share} of the time waiting for reads; " + _LOADING,
    "read.store": "{lost_share} of the time waiting for the store; the images of the steps arrive "
    "at {image_mbit} Mbit/s; " + _LOADING,
    "decode": "{lost_share} of the time waiting for decoding; " + _LOADING,
    "data": "{lost_share} of the time waiting for images",
    "host.lock": "the interpreter lock was not free at {late_share} of the sampling thread's "
    "wake-ups; the training thread waited {lost_share} of the time",
    "host.small_batch": "a step of {images} takes {step_s}; as part of a batch {larger} "
    "times as large, these images would take {without_s}",
    "cores.others": "the training thread waited for a core {core_wait_share} of the time; "
    "this run used {own_cores} of {cores}",
    "cores.quota": "it stopped the run for {throttled_share} of the time; the training thread "
    "waited for a core {core_wait_share} of the time",
    "cores.stolen": "{stolen_share} of the CPU time that this machine asked for went to others",
    "network": _EXCHANGE,
    "exchange": _EXCHANGE,
    "straggler": "it takes {rank_s} a step, the others {others_s}; most of it in {part}: {part_s} "
    "against {others_part_s}",
    "checkpoint": _OCCASIONAL,
    "evaluation": _OCCASIONAL,
    "compute": _SHARES,
    "compute.sleep": _SHARES + "; the training thread slept for {lost_s} of {model_s}",
    "balanced": _SHARES + "; data loading alone takes {loading_s} of {step_s}",
    "compute.log": "only {wait_share} of a step is waiting by the mean ({wait_s} of {step_s})",
    "data.log": _LOG_WAIT,
    "data.log_bursts": _LOG_WAIT,
    "data.log_epoch_starts": _LOG_WAIT,
}

_RATES = (" at {rate_mbit} Mbit/s", "; the link can do {capacity_mbit} Mbit/s")

MORE_EVIDENCE = {
    "host.lock": ("; the thread '{thread}' used {thread_cores} of a core",),
    "network": _RATES,
    "exchange": _RATES,
    "straggler": (
        "; its CPU quota throttled it for {throttled_share} of the time",
        "; its hypervisor gave {stolen_share} of its CPU to other guests",
        "; its GPU was throttled ({gpu_throttles})",
    ),
}
"""Clauses that are left out if their numbers were not measured."""

ACTIONS = {
    "read": "use a faster disk, or copy the packed set to a local disk",
    "read.store": "fetch the set beforehand (stoker fetch {store}), store smaller images "
    "(stoker pack --max-side), or train nearer to the store",
    "decode": "store smaller images (stoker pack --max-side) or use --codec raw, then add cores",
    "data": "use more --threads, smaller stored images or a faster disk",
    "host.lock": "move that thread's work to another process",
    "host.small_batch": "use a larger --batch-size, with a learning rate to match",
    "cores.others": "end the other programs (top lists them), or run where the cores are free",
    "cores.quota": "raise the CPU limit of the container or job",
    "cores.stolen": "use a machine with cores of its own, or one that is not shared as much",
    "network": "use a faster port; until then a larger batch per rank, to exchange less often",
    "exchange": "use a larger batch per rank, or fewer ranks",
    "straggler": "check {host} for other jobs, heat or a slow disk, or replace it",
    "checkpoint": "use a faster disk for --run, or a longer --checkpoint-interval",
    "evaluation": "evaluate less often (--eval-every)",
    "compute": "use a faster device, --amp, a smaller --image-size or a smaller --model",
    "compute.sleep": "find what forward or backward waits for: py-spy dump --pid PID",
    "balanced": "add cores and a faster device together: either one alone gains little",
    "compute.log": "use mixed precision, channels-last, a smaller image or model, or a faster GPU",
    "data.log": "use more loader workers; where all cores are busy, make decoding cheaper "
    "(stoker pack FOLDER)",
    "data.log_bursts": "use more loader workers or make decoding cheaper (stoker pack FOLDER); "
    "a longer queue only delays the wait",
    "data.log_epoch_starts": "keep the loader's workers from epoch to epoch "
    "(persistent_workers=True)",
}

ANY_LOOP = {
    "read": "use a faster disk, or copy the images to a local disk",
    "read.store": "copy the images to a local disk, or train nearer to the store",
    "decode": "store smaller images, then add cores",
    "host.small_batch": "use a larger batch, with a learning rate to match",
    "data": "load batches in other threads or processes, store smaller images, or use a faster "
    "disk",
    "checkpoint": "save to a faster disk, or less often",
    "evaluation": "evaluate less often",
    "compute": "use a faster device, mixed precision (torch.autocast), smaller images or a smaller "
    "model",
}
"""Actions for a loop that is not ours, where they are others."""


def loop_actions(num_workers: int | None, cores: int) -> Mapping[str, str]:
    """The actions for any loop. `num_workers` of its DataLoader; None if it uses no DataLoader."""
    actions = ACTIONS | ANY_LOOP
    if num_workers is not None and num_workers < cores:
        now = f"num_workers={cores} instead of {num_workers}"
        actions["data"] = f"load with more workers (DataLoader's {now}), or store smaller images"
    elif num_workers is not None:
        actions["data"] = (
            f"store smaller images or add cores: the DataLoader has "
            f"{plural(num_workers, 'worker')} on {plural(cores, 'core')} already"
        )
    return actions


LEAST_GAIN = 0.01
"""A smaller share of a step is not worth a line."""


def percent(share: float) -> str:
    """25%, 1.4%: one decimal below ten percent."""
    return f"{share:.0%}" if share >= 0.1 else f"{share:.1%}"


FORMATS: dict[str, Callable[[float], str]] = {
    "_share": percent,
    "_s": seconds,
    "_cores": "{:.2f}".format,
    "threads": lambda count: plural(int(count), "thread"),
    "cores": lambda count: plural(int(count), "core"),
    "images": lambda count: plural(round(count), "image"),
    "": "{:,.0f}".format,
}
"""How a number is written, by the end of its name."""


def formatted(numbers: Numbers) -> dict[str, str]:
    values = {}
    for name, value in numbers.items():
        form = next(form for end, form in FORMATS.items() if name.endswith(end))
        values[name] = value if isinstance(value, str) else form(value)
    return values


def sentences(cause: str, numbers: Numbers, actions: Mapping[str, str] = ACTIONS) -> dict[str, str]:
    """The name of a cause (`words`), its evidence and the action against it."""
    values = formatted(numbers)
    evidence = EVIDENCE[cause].format(**values)
    for clause in MORE_EVIDENCE.get(cause, ()):
        with suppress(KeyError):
            evidence += clause.format(**values)
    return {
        "words": NAMES[cause].format(**values),
        "evidence": evidence,
        "action": actions[cause].format(**values),
    }


def runner_up(cause: str, numbers: Numbers) -> str:
    """What would limit the run next, and how much of a step it takes now."""
    # Loading goes on beside the rest of a step: its share of the time would mean nothing.
    amount = "{lost_s} a step by itself" if cause == "loading" else "{lost_share} of the time"
    return f"{NAMES[cause]}, {amount}".format(**formatted(numbers))


def lines(fields: Mapping[str, Any]) -> list[str]:
    """The lines that are printed, from the fields of a `verdict` event."""
    shown = [f"slowed by {fields['words']}: {fields['evidence']}"]
    step_s, without_s = fields["step_s"], fields["without_s"]
    if without_s is not None and (gain := 1 - without_s / step_s) >= LEAST_GAIN:
        shown.append(
            f"without it: {seconds(without_s)} a step instead of {seconds(step_s)} "
            f"({gain:.0%} less)"
        )
    if fields["runner_up"]:
        shown.append(f"second limit: {fields['runner_up']}")
    return [*shown, f"next: {fields['action']}"]
