"""Which stated figures contradict each other, and what the right figure would be.

Invariants: pure functions of plain values. A rule speaks only where every figure that it needs is
stated. Two figures contradict each other where their intervals (what rounds to the given digits)
stay apart after both are widened by TOLERANCE. An epoch or a run may take up to LONGEST_REST times
as long as its training steps (evaluations, saves, the start), but never less. What is refused
cannot be true; what is warned of is possible and probably a mistake.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from stoker.plan.claims.claim import Figure, RunClaim

TOLERANCE = 0.02
LONGEST_REST = 1.5
"""Of the published rows that state both, the longest epoch takes 1.27 times its steps."""
MOST_EFFICIENCY = 1.05
"""GPUs together are at most this many times as fast as that many times one of them."""
MOST_OFF_RULE = 4.0
"""A learning rate that is off the scaling rule by this factor or more is warned of."""
LR_BASE, LR_BASE_SIZE = 0.1, 256


@dataclass(frozen=True)
class ClaimFinding:
    """Figures of a claim that do not fit together."""

    claim: str
    rule: str
    refused: bool
    """False: a warning."""
    figures: Mapping[str, float | str]
    """What was stated, what follows from it, and the right value, by the names that the sentence
    of the rule uses."""


Figures = Mapping[str, float | str]
Rule = Callable[[RunClaim], Figures | None]


def apart(stated: Figure, right: Figure) -> bool:
    """Whether two figures cannot be the same number."""
    return under(stated, right) or under(right, stated)


def under(stated: Figure, least: Figure) -> bool:
    """Whether a figure is certainly smaller than another."""
    return stated.high * (1 + TOLERANCE) < least.low * (1 - TOLERANCE)


def wrong_duration(stated: Figure, steps: Figure) -> bool:
    """Whether a stated duration is shorter than its training steps, or much longer."""
    longest = Figure.of(LONGEST_REST, exact=True) * steps
    return under(stated, steps) or under(longest, stated)


def epoch_duration(claim: RunClaim) -> Figures | None:
    images, rate, stated = claim.images, claim.images_per_s, claim.seconds_per_epoch
    if images is None or rate is None or stated is None:
        return None
    right = images / rate
    if not wrong_duration(stated, right):
        return None
    return {
        "images": images.value,
        "images_per_s": rate.value,
        "stated": stated.value,
        "right": right.value,
        "right_rate": images.value / stated.value,
    }


def run_duration(claim: RunClaim) -> Figures | None:
    """Checked against the seconds of an epoch, or where there are none against images a second."""
    stated, epochs, epoch_s = claim.seconds, claim.epochs, claim.seconds_per_epoch
    if stated is None or epochs is None or epoch_s is None:
        return None
    right = epochs * epoch_s
    if not wrong_duration(stated, right):
        return None
    return {
        "epochs": epochs.value,
        "seconds_per_epoch": epoch_s.value,
        "stated": stated.value,
        "right": right.value,
    }


def run_throughput(claim: RunClaim) -> Figures | None:
    stated, epochs = claim.seconds, claim.epochs
    images, rate = claim.images, claim.images_per_s
    if stated is None or epochs is None or images is None or rate is None:
        return None
    right = epochs * images / rate
    if not wrong_duration(stated, right):
        return None
    return {
        "epochs": epochs.value,
        "images": images.value,
        "images_per_s": rate.value,
        "stated": stated.value,
        "right": right.value,
    }


def step_duration(claim: RunClaim) -> Figures | None:
    batch, rate, stated = claim.batch_size, claim.images_per_s, claim.seconds_per_step
    if batch is None or rate is None or stated is None:
        return None
    right = batch / rate
    if not apart(stated, right):
        return None
    return {
        "batch_size": batch.value,
        "images_per_s": rate.value,
        "stated": stated.value,
        "right": right.value,
    }


def cost(claim: RunClaim) -> Figures | None:
    stated, price, seconds = claim.dollars, claim.price_per_hour, claim.seconds
    if stated is None or price is None or seconds is None:
        return None
    machines = claim.machines or Figure.of(1, exact=True)
    right = machines * price * seconds / Figure.of(3600, exact=True)
    if not apart(stated, right):
        return None
    return {
        "machines": machines.value,
        "price": price.value,
        "hours": seconds.value / 3600,
        "stated": stated.value,
        "right": right.value,
    }


def saving(claim: RunClaim) -> Figures | None:
    stated, price, full = claim.saving_percent, claim.price_per_hour, claim.on_demand_per_hour
    if stated is None or price is None or full is None:
        return None
    ratio = price / full
    right = Figure(*(100 * (1 - each) for each in (ratio.value, ratio.high, ratio.low)))
    if not apart(stated, right):
        return None
    return {
        "price": price.value,
        "on_demand": full.value,
        "stated": stated.value,
        "right": right.value,
    }


def bid_under_price(claim: RunClaim) -> Figures | None:
    bid, price = claim.bid, claim.price_per_hour
    # A bid is an order, not a measurement: it is compared as it is written.
    if bid is None or price is None or bid.value >= price.value:
        return None
    return {"stated": bid.value, "right": price.value}


def zones(claim: RunClaim) -> Figures | None:
    if not (claim.zone and claim.volume_zone) or claim.zone == claim.volume_zone:
        return None
    return {"stated": claim.zone, "right": claim.volume_zone}


def disk_too_small(claim: RunClaim) -> Figures | None:
    if claim.disk_gb is None or claim.data_gb is None:
        return None
    if claim.disk_gb.value >= claim.data_gb.value:
        return None
    return {"stated": claim.disk_gb.value, "right": claim.data_gb.value}


def several_gpus(claim: RunClaim) -> Figures | None:
    rate, gpus, one = claim.images_per_s, claim.gpus, claim.one_gpu_images_per_s
    if rate is None or gpus is None or one is None:
        return None
    most = gpus * one * Figure.of(MOST_EFFICIENCY, exact=True)
    if rate.low <= most.high:
        return None
    return {
        "gpus": gpus.value,
        "one": one.value,
        "stated": rate.value,
        "times": rate.value / one.value,
        "right": most.value,
        "right_one": rate.value / gpus.value / MOST_EFFICIENCY,
    }


def batch_of_gpus(claim: RunClaim) -> Figures | None:
    batch, each, gpus = claim.batch_size, claim.batch_per_gpu, claim.gpus
    if batch is None or each is None or gpus is None or batch.value == each.value * gpus.value:
        return None
    return {
        "stated": batch.value,
        "each": each.value,
        "gpus": gpus.value,
        "right": each.value * gpus.value,
    }


def memory_of_gpus(claim: RunClaim) -> Figures | None:
    total, each, gpus = claim.total_gpu_memory_gb, claim.gpu_memory_gb, claim.gpus
    if total is None or each is None or gpus is None or not apart(total, each * gpus):
        return None
    right = each.value * gpus.value
    return {"stated": total.value, "each": each.value, "gpus": gpus.value, "right": right}


def phase_epochs(claim: RunClaim) -> Figures | None:
    epochs = [phase.epochs.value for phase in claim.phases if phase.epochs]
    if claim.epochs is None or not epochs or len(epochs) < len(claim.phases):
        return None
    right = sum(epochs)
    return None if right == claim.epochs.value else {"stated": claim.epochs.value, "right": right}


def phase_minutes(claim: RunClaim) -> Figures | None:
    parts = [phase.minutes for phase in claim.phases if phase.minutes]
    stated = claim.seconds
    if stated is None or not parts or len(parts) < len(claim.phases):
        return None
    sums = [
        60 * sum(values) for values in zip(*((p.value, p.low, p.high) for p in parts), strict=True)
    ]
    right = Figure(*sums)
    return {"stated": stated.value, "right": right.value} if apart(stated, right) else None


def one_rate_for_batches(claim: RunClaim) -> Figures | None:
    """One learning rate for batches of several sizes, which the scaling rule tells apart."""
    rates: dict[float, float] = {}
    for phase in claim.phases:
        rate = phase.lr or claim.lr
        if phase.batch_size is not None and rate is not None:
            rates[phase.batch_size.value] = rate.value
    if len(rates) < 2 or len(set(rates.values())) > 1:
        return None
    sizes = sorted(rates, reverse=True)
    stated = rates[sizes[0]]
    smallest = sizes[-1]
    return {
        "stated": stated,
        "sizes": ", ".join(f"{size:,.0f}" for size in sizes),
        "smallest": smallest,
        "largest": sizes[0],
        "right": stated * sizes[0] / smallest,
    }


def rate_off_rule(claim: RunClaim) -> Figures | None:
    if claim.lr is None or claim.batch_size is None:
        return None
    base = claim.lr_base.value if claim.lr_base else LR_BASE
    base_size = claim.lr_base_size.value if claim.lr_base_size else LR_BASE_SIZE
    right = base * claim.batch_size.value / base_size
    if right / MOST_OFF_RULE < claim.lr.value < right * MOST_OFF_RULE:
        return None
    return {
        "stated": claim.lr.value,
        "batch_size": claim.batch_size.value,
        "base": base,
        "base_size": base_size,
        "right": right,
    }


REFUSALS: Mapping[str, Rule] = {
    "epoch-duration": epoch_duration,
    "run-duration": run_duration,
    "run-throughput": run_throughput,
    "step-duration": step_duration,
    "cost": cost,
    "saving": saving,
    "bid": bid_under_price,
    "zone": zones,
    "disk": disk_too_small,
    "several-gpus": several_gpus,
    "batch": batch_of_gpus,
    "gpu-memory": memory_of_gpus,
    "phase-epochs": phase_epochs,
    "phase-minutes": phase_minutes,
}
WARNINGS: Mapping[str, Rule] = {
    "one-rate": one_rate_for_batches,
    "rate": rate_off_rule,
}


def check_claim(claim: RunClaim) -> list[ClaimFinding]:
    """What contradicts itself within one claim."""
    return [
        ClaimFinding(claim.name, name, rules is REFUSALS, figures)
        for rules in (REFUSALS, WARNINGS)
        for name, rule in rules.items()
        if (figures := rule(claim)) is not None
    ]


def check_claims(claims: Sequence[RunClaim]) -> list[ClaimFinding]:
    """What contradicts itself within the claims, in their order, and then between them."""
    own = [finding for claim in claims for finding in check_claim(claim)]
    return [*own, *memory_outcomes(claims)]


def memory_outcomes(claims: Sequence[RunClaim]) -> Iterator[ClaimFinding]:
    """Claims that run out of memory, though another one ran with a larger batch on the same GPU."""
    rows: defaultdict[tuple[object, ...], list[tuple[float, RunClaim]]] = defaultdict(list)
    for claim in claims:
        each = claim.batch_per_gpu
        if each is None and claim.batch_size is not None and claim.gpus is not None:
            each = claim.batch_size / claim.gpus
        if each is not None and claim.gpu and claim.model and claim.outcome:
            side = claim.image_size.value if claim.image_size else 0.0
            memory = claim.gpu_memory_gb.value if claim.gpu_memory_gb else 0.0
            key = (claim.model, claim.gpu, memory, claim.precision, side)
            rows[key].append((each.value, claim))
    for group in rows.values():
        ran = max((row for row in group if row[1].outcome == "ok"), default=None, key=first)
        for batch, claim in group:
            if ran is not None and claim.outcome == "out-of-memory" and batch <= ran[0]:
                figures: Figures = {"stated": batch, "right": ran[0], "other": ran[1].name}
                yield ClaimFinding(claim.name, "memory", True, figures)


def first(row: tuple[float, RunClaim]) -> float:
    return row[0]
