"""What limits a run: a pure function from measured facts to a cause and the numbers that prove it.

Invariants: the rules are a table. Each rule attributes some seconds of a step to a cause (a claim)
and estimates the step time without it. The largest claim above its threshold is the limit, the next
one the runner-up. Where none is large enough, the limit is compute, or compute and loading balance.
GPU utilisation is no fact: a GPU that waits counts as busy. All sentences are in `verdict_text`.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from stoker.measure import verdict_text
from stoker.measure.facts import LARGER, SLOWER, Facts
from stoker.measure.ports import ring_bytes
from stoker.measure.spans import WAITING
from stoker.measure.verdict_text import Numbers

COMPUTE = ("to_device", "forward", "backward", "optimiser")
MODEL = ("forward", "backward")
ASLEEP = 0.25
"""The training thread sleeps if it is off the CPU, without a known reason, for more than this."""
FEW_CORES = 0.05
"""Cores are missing if the training thread waits for one for more than this share of a step."""
QUOTA = 0.05
"""A CPU quota that stops a run for less than this share of the time is no cause."""
LATE = 0.5
"""Another thread holds the interpreter lock if the lock is late more often than this."""
AFTER_LOCK, AFTER_CORE = 0.035, 0.02
"""CPU time that a wait for the lock or for a core costs afterwards, as a share of the wait: the
caches are cold. Measured (docs/results/verdict.md)."""
FULL = 0.6
"""A link is full above this share of its capacity."""
PERSISTENT = 0.8
"""A rank is a straggler if it is slow in at least this share of the steps."""
BALANCED = 0.85
"""If loading alone takes this share of a step, a faster model would wait for it."""
RUNNER_UP = 0.05
"""The least share of a step for which a claim is named as the runner-up of another."""


@dataclass(frozen=True)
class Claim:
    """Seconds of a step that are attributed to one cause."""

    cause: str
    """The limit, or `limit.cause` where one limit has several causes."""
    lost_s: float
    without_s: float | None = None
    """The estimated step time without the cause; None where there is no estimate."""
    details: Numbers = field(default_factory=dict)
    """The numbers and names that prove it."""

    @property
    def limit(self) -> str:
        return self.cause.partition(".")[0]

    def numbers(self, step_s: float) -> Numbers:
        """All that the sentences about this claim need."""
        share = self.lost_s / step_s
        return {"step_s": step_s, "lost_s": self.lost_s, "lost_share": share, **self.details}


@dataclass(frozen=True)
class Verdict:
    """What limits a run, and what would limit it next."""

    step_s: float
    claim: Claim
    runner_up: Claim | None = None
    actions: Mapping[str, str] = field(default_factory=lambda: verdict_text.ACTIONS, repr=False)
    """What to do about each cause."""

    @property
    def limit(self) -> str:
        return self.claim.limit

    @property
    def without_s(self) -> float | None:
        return self.claim.without_s

    def fields(self) -> dict[str, Any]:
        """The fields of a `verdict` event: plain data and the sentences about it."""
        following = self.runner_up
        return {
            "limit": self.limit,
            "cause": self.claim.cause,
            **verdict_text.sentences(
                self.claim.cause, self.claim.numbers(self.step_s), self.actions
            ),
            "step_s": self.step_s,
            "without_s": self.without_s,
            "lost_s": self.claim.lost_s,
            "runner_up": verdict_text.runner_up(following.cause, following.numbers(self.step_s))
            if following
            else "",
            "details": dict(self.claim.details),
        }

    def lines(self) -> list[str]:
        return verdict_text.lines(self.fields())


Rule = Callable[[Facts], Claim | None]


def step_after(facts: Facts, loading_s: float, without: str = "") -> float:
    """The estimated step time if loading took another time: the longest of rest, loading, cores."""
    rest_s = facts.step_s - facts.part(*WAITING)
    return min(max(rest_s, loading_s, facts.cpu_floor_s(without)), facts.step_s)


def loading(part: str, *rest: str, without: str = "") -> Rule:
    """A rule: the model waits for one part of loading; `rest` is what loading does besides."""

    def claim(facts: Facts) -> Claim:
        without_s = step_after(facts, facts.work(*rest), without)
        details: dict[str, float | str] = {
            "read_s": facts.work("read"),
            "decode_s": facts.work("decode"),
            "threads": facts.threads,
        }
        if part != "read" or not facts.store:
            return Claim(part, facts.part(part), without_s, details)
        rate = facts.images * facts.image_bytes / facts.step_s
        details |= {"store": facts.store, "image_mbit": rate * 8 / 1e6}
        return Claim("read.store", facts.part(part), without_s, details)

    return claim


def off_cpu_s(facts: Facts, parts: tuple[str, ...]) -> float:
    """Seconds of some parts for which the training thread was off the CPU; 0 if unknown."""
    if not all(rank.on_cpu for rank in facts.ranks):
        return 0.0
    return statistics.fmean(
        sum(rank.parts.get(part, 0.0) - rank.on_cpu.get(part, 0.0) for part in parts)
        for rank in facts.ranks
    )


def asleep_s(facts: Facts, parts: tuple[str, ...]) -> float:
    """Seconds of some parts for which the training thread slept although it could have had a core.
    0 if threads compute on too few cores: waiting for a thread without one looks like sleep."""
    delay = facts.delay_s or 0.0
    if facts.computing > 1 and (facts.delay_s is None or delay > FEW_CORES * facts.step_s):
        return 0.0
    return max(off_cpu_s(facts, parts) - delay, 0.0)


def interpreter_lock(facts: Facts) -> Claim | None:
    """Another thread of the process holds the interpreter lock."""
    if facts.late_share < LATE:
        return None
    # If the training thread waits for a core as well, the thread with the lock has that core.
    core_wait_s = (facts.delay_s or 0.0) - facts.hog_cores * facts.step_s
    lost_s = off_cpu_s(facts, (*COMPUTE, "other")) - max(core_wait_s, 0.0) + facts.part(*WAITING)
    rest_s = facts.step_s - lost_s
    details: dict[str, float | str] = {"late_share": facts.late_share}
    if facts.hog:
        details |= {"thread": facts.hog, "thread_cores": facts.hog_cores}
    return Claim("host.lock", lost_s, max(rest_s - AFTER_LOCK * lost_s, rest_s / 2), details)


def has_cores(facts: Facts) -> str:
    """Which cause has the cores while the training thread waits for one: that with most of the
    wait. Empty where it was not measured, or where only threads of the run wait for each other."""
    if not facts.cores or facts.own_cores is None or facts.delay_s is None:
        return ""
    wait_share = facts.delay_s / facts.step_s
    if facts.throttled_share > max(QUOTA, wait_share / 2):
        return "cores.quota"
    # On cores that are never idle, what this run does not use is used by others.
    others = facts.cores - facts.own_cores
    own_rest = facts.own_cores - facts.on_cpu_s * facts.local_world / facts.step_s
    return "cores.others" if others > max(own_rest, 0.0) else ""


def step_with_cores(facts: Facts, saved_s: float, loading_saved_s: float, floor_s: float) -> float:
    """The estimated step time if the training thread and a loading thread were so much quicker;
    never below the floor."""
    rest_s = facts.step_s - saved_s - min(facts.part(*WAITING), loading_saved_s)
    loading_s = facts.work("read", "decode") - loading_saved_s
    return min(max(rest_s, loading_s, floor_s), facts.step_s)


def loading_off_cpu_s(facts: Facts) -> tuple[float, float]:
    """Seconds of a step for which a loading thread had a core, and for which it had none though it
    did not read."""
    cpu_s = facts.work("cpu") - facts.work("read_cpu")
    return cpu_s, max(facts.work("decode") - cpu_s, 0.0)


def taken_cores(facts: Facts) -> Claim | None:
    """Threads of this run are ready to work, and something else has their cores."""
    cause = has_cores(facts)
    if not cause:
        return None
    wait_s, own_cores = facts.delay_s or 0.0, facts.own_cores or 0.0
    # Threads that compute together wait for those of them that have no core.
    off_s = off_cpu_s(facts, (*COMPUTE, "other"))
    together_s = max(off_s - wait_s, 0.0) if facts.computing > 1 else 0.0
    # A loading thread waits for a core as often as the training thread does.
    cpu_s, idle_s = loading_off_cpu_s(facts)
    loading_wait_s = min(idle_s, cpu_s * wait_s / facts.on_cpu_s if facts.on_cpu_s else 0.0)
    after_s = AFTER_CORE * wait_s * facts.computing
    # With the cores to itself, a run still shares them among its threads. How many cores there are
    # without a quota is not known.
    used_s = own_cores * facts.step_s - after_s
    floor_s = used_s / facts.cores if cause == "cores.others" else 0.0
    saved_s = wait_s + together_s + after_s
    without_s = step_with_cores(facts, saved_s, loading_wait_s, floor_s)
    details = {
        "core_wait_share": wait_s / facts.step_s,
        "throttled_share": min(facts.throttled_share, 1.0),
        "own_cores": own_cores,
        "cores": facts.cores,
    }
    return Claim(cause, facts.step_s - without_s, without_s, details)


def stolen_cores(facts: Facts) -> Claim | None:
    """The hypervisor gives the cores of this machine to other machines."""
    share = facts.stolen_share
    if not share:
        return None

    def stolen_s(cpu_s: float, off_s: float) -> float:
        """Stolen seconds of a thread. Most kernels leave them out of its CPU time, some do not."""
        return share * (cpu_s + min(max(off_s, 0.0), cpu_s * share / (1 - share)))

    off_s = off_cpu_s(facts, (*COMPUTE, "other")) - (facts.delay_s or 0.0)
    saved_s, loading_s = stolen_s(facts.on_cpu_s, off_s), stolen_s(*loading_off_cpu_s(facts))
    floor_s = facts.cpu_floor_s() * (1 - share)
    without_s = step_with_cores(facts, saved_s, loading_s, floor_s)
    details = {"stolen_share": share}
    return Claim("cores.stolen", facts.step_s - without_s, without_s, details)


def between_parts_s(facts: Facts) -> float:
    """Seconds of work between the parts of a step, without time in which loading took the core."""
    return statistics.fmean(
        min(rank.parts.get("other", 0.0), rank.on_cpu.get("other", float("inf")))
        for rank in facts.ranks
    )


def small_batch(facts: Facts) -> Claim | None:
    """Much of a step does not depend on the number of its images."""
    if facts.in_larger is None:
        return None
    saved_s = facts.part(*MODEL) * (1 - facts.in_larger)
    # The optimiser, the work between the parts and the handing over of a batch come once a step.
    wait_s = facts.part(*WAITING)
    fixed_s = facts.part("optimiser") + between_parts_s(facts)
    fixed_s += wait_s if wait_s < 0.1 * facts.step_s else 0.0
    lost_s = min(saved_s + fixed_s * (1 - 1 / LARGER), facts.step_s)
    without_s = facts.step_s - lost_s
    details = {"images": facts.images, "larger": LARGER, "without_s": without_s}
    return Claim("host.small_batch", lost_s, without_s, details)


def exchange(facts: Facts) -> Claim | None:
    """Gradients that are still on their way when the backward pass has nothing else left to do."""
    world = max(facts.world, len(facts.ranks))
    if world < 2:
        return None
    lost_s, first = facts.transfer_s, facts.ranks[0]
    wire_bytes = ring_bytes(first.sent_bytes, world)
    # However fast the link, the CPU has to move the bytes.
    without_s = facts.step_s - lost_s + min(lost_s, wire_bytes * facts.send_cpu)
    # If their arrival was not timed: between the first gradient and the end of the pass.
    sending_s = first.sent_s or facts.part("backward") + lost_s
    rate = wire_bytes / sending_s if sending_s else 0.0
    details = {"sent_mb": wire_bytes / 1e6}
    if rate:
        details["rate_mbit"] = rate * 8 / 1e6
    cause = "exchange"
    if facts.capacity and facts.local_world < world:
        details["capacity_mbit"] = facts.capacity * 8 / 1e6
        cause = "network" if rate >= FULL * facts.capacity else cause
    return Claim(cause, lost_s, without_s, details)


def straggler(facts: Facts) -> Claim | None:
    """One rank that keeps the others waiting, step after step."""
    if len(facts.ranks) < 2:
        return None
    slow = max(facts.ranks, key=lambda rank: rank.own_s)
    others = [rank for rank in facts.ranks if rank is not slow]
    others_s = statistics.median(rank.own_s for rank in others)
    if slow.own_s < SLOWER * others_s or slow.slow_share < PERSISTENT:
        return None
    usual_s = {p: statistics.median(r.parts.get(p, 0.0) for r in others) for p in slow.parts}
    # Only its slowest part counts: the others are longer too, because it exchanges in between what
    # the other ranks have sent long ago.
    shared = ("exchange", "checkpoint")
    behind_s = {p: 0.0 if p in shared else s - usual_s[p] for p, s in slow.parts.items()}
    part = max(behind_s, key=behind_s.__getitem__)
    lost_s = slow.parts[part] - usual_s[part]
    details = {
        "rank": slow.rank,
        "host": slow.host or "its machine",
        "rank_s": slow.own_s,
        "others_s": others_s,
        "part": part,
        "part_s": slow.parts[part],
        "others_part_s": usual_s[part],
        **slow.slowdowns,
    }
    return Claim("straggler", lost_s, facts.step_s - lost_s, details)


def occasional(part: str) -> Rule:
    """A rule: what comes now and then, spread over the steps."""

    def claim(facts: Facts) -> Claim:
        # One rank saves while the others wait for it: its time counts once.
        lost_s = max(rank.parts.get(part, 0.0) for rank in facts.ranks)
        return Claim(part, lost_s, facts.step_s - lost_s)

    return claim


RULES: tuple[tuple[float, Rule], ...] = (
    (0.10, loading("read", "decode", without="read_cpu")),
    (0.10, loading("decode", "read")),
    (0.10, loading("data")),
    (0.10, interpreter_lock),
    (0.10, taken_cores),
    (0.10, stolen_cores),
    (0.25, small_batch),
    (0.10, exchange),
    (0.07, straggler),
    (0.05, occasional("checkpoint")),
    (0.20, occasional("evaluation")),
)
"""The share of a step above which a claim can be the limit, and the rule that makes the claim."""


def verdict_of(facts: Facts | None) -> Verdict | None:
    """What limits a run, or None where nothing was measured."""
    if facts is None or not facts.ranks or facts.step_s <= 0:
        return None
    rows = [(least, claim) for least, rule in RULES if (claim := rule(facts)) is not None]
    rows.sort(key=lambda row: row[1].lost_s, reverse=True)
    claims = [claim for _, claim in rows]
    limit = next((claim for least, claim in rows if claim.lost_s > least * facts.step_s), None)
    if limit is None or sleeps_more(facts, limit):
        return compute_verdict(facts, claims)
    runner_up = next((claim for claim in claims if claim.limit != limit.limit), None)
    if runner_up is None or runner_up.lost_s <= RUNNER_UP * facts.step_s:
        runner_up = Claim("compute", facts.part(*COMPUTE))
    return Verdict(facts.step_s, limit, runner_up)


def sleeps_more(facts: Facts, limit: Claim) -> bool:
    """Whether the model sleeps for longer than something else has its cores. Stolen time looks like
    sleep, so it is not counted twice."""
    stolen_s = limit.lost_s if limit.cause == "cores.stolen" else 0.0
    sleep_s = asleep_s(facts, MODEL) - stolen_s
    return limit.limit == "cores" and sleep_s > max(limit.lost_s, ASLEEP * facts.part(*MODEL))


def compute_verdict(facts: Facts, claims: list[Claim]) -> Verdict:
    """The verdict where no claim is above its threshold."""
    step_s, compute_s, model_s = facts.step_s, facts.part(*COMPUTE), facts.part(*MODEL)
    details = {"compute_share": compute_s / step_s, "wait_share": facts.part(*WAITING) / step_s}
    sleep_s = asleep_s(facts, MODEL)
    if sleep_s > ASLEEP * model_s:
        details["model_s"] = model_s
        return Verdict(step_s, Claim("compute.sleep", sleep_s, step_s - sleep_s, details))
    loading_s = facts.work("read", "cpu") - facts.work("read_cpu")
    if loading_s > BALANCED * step_s:
        details["loading_s"] = loading_s
        return Verdict(step_s, Claim("balanced", compute_s, details=details))
    runner_up = Claim("loading", loading_s) if loading_s > 0 else None
    if claims and claims[0].lost_s > max(loading_s, 0.02 * step_s):
        runner_up = claims[0]
    return Verdict(step_s, Claim("compute", compute_s, details=details), runner_up)
