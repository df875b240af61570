"""What binds a run: a pure function from measured facts to a limit, its proof, and what to do.

Invariants: rules are a table; each looks at the facts and claims some seconds of a step, with the
number that proves it and the step time without it. The largest claim above its threshold binds; the
next one is the runner-up. Where nobody claims enough, the network itself binds, or it and loading
are in balance. Utilisation of a GPU is no fact: one that waits for the network counts as busy.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from stoker.measure.facts import LARGER, SLOWER, Facts, RankFacts
from stoker.measure.ports import ring_bytes
from stoker.measure.spans import WAITING

COMPUTE = ("to_device", "forward", "backward", "optimiser")
MODEL = ("forward", "backward")
ASLEEP = 0.25
"""The share of a part off the CPU, and waiting for nothing we know, above which it sleeps."""
WANTING = 0.05
"""The share of a step for which the training thread waits for a core where cores are wanting."""
LATE = 0.5
"""How often the interpreter lock is late where another thread hogs it."""
AFTER_LOCK = 0.035
"""What a wait for the lock costs after it, as a share of it, in CPU time of the one that waited:
its core had gone idle, its caches cold. Measured (docs/results/verdict.md)."""
FULL = 0.6
"""The share of what a link can do, above which it is saturated."""
PERSISTENT = 0.8
"""The share of steps in which a rank must be slow to be named."""
BALANCED = 0.85
"""Where loading alone takes this share of a step, a faster network would wait for it."""

NAMES = {
    "read": "reading: the network waits for bytes from storage",
    "decode": "decoding: the network waits for images",
    "data": "data: the network waits for images",
    "host": "the host",
    "compute": "compute: the network itself",
    "network": "the link between machines",
    "exchange": "the exchange of gradients, though no link is full",
    "checkpoint": "saving checkpoints",
    "evaluation": "evaluation",
    "straggler": "one slow rank",
    "balanced": "nothing alone: loading and compute are in balance",
}
"""What can bind a run, in words."""


@dataclass(frozen=True)
class Verdict:
    """What binds, the number that proves it, what comes next, and what to do."""

    limit: str
    words: str
    evidence: str
    action: str
    step_s: float
    without_s: float | None = None
    """Seconds a step would take without the limit, where somebody can say."""
    runner_up: str = ""

    @property
    def gain(self) -> float:
        """The share of the time that would go if the limit did."""
        if self.without_s is None or self.step_s <= 0:
            return 0.0
        return max(1 - self.without_s / self.step_s, 0.0)

    def lines(self) -> list[str]:
        """The verdict as it is told."""
        told = [f"bound by {self.words}: {self.evidence}"]
        if self.without_s is not None and self.gain >= 0.01:
            told.append(
                f"without it: {seconds(self.without_s)} a step instead of {seconds(self.step_s)} "
                f"({self.gain:.0%} less)"
            )
        if self.runner_up:
            told.append(f"next limit: {self.runner_up}")
        return [*told, f"next: {self.action}"]


@dataclass(frozen=True)
class Claim:
    """What one rule holds against a step."""

    limit: str
    lost_s: float
    evidence: str
    without_s: float
    action: str
    words: str = ""


def seconds(value: float) -> str:
    """0.31 s, 31.2 ms: as many digits as mean something."""
    return f"{value:.2f} s" if value >= 1 else f"{value * 1000:.3g} ms"


def share(part: float, facts: Facts) -> str:
    return f"{part / facts.step_s:.0%}"


def after_waiting(facts: Facts, loading_s: float, without: str = "") -> float:
    """A step's time where loading takes another time: as long as all else, as loading, or as the
    CPU needs for both."""
    else_s = facts.step_s - facts.part(*WAITING)
    return min(max(else_s, loading_s, facts.cpu_floor_s(without)), facts.step_s)


def reading(facts: Facts) -> Claim | None:
    lost = facts.part("read")
    read, decode = facts.work("read"), facts.work("decode")
    evidence = (
        f"{share(lost, facts)} of the time waiting for reads; a batch takes "
        f"{seconds(read)} of reading on {facts.threads} threads, {seconds(decode)} of decoding"
    )
    return Claim(
        "read",
        lost,
        evidence,
        after_waiting(facts, decode, "read_cpu"),
        "a faster disk, or a copy of the packed set on a local one",
    )


def decoding(facts: Facts) -> Claim | None:
    lost = facts.part("decode")
    read, decode = facts.work("read"), facts.work("decode")
    evidence = (
        f"{share(lost, facts)} of the time waiting for decoding; a batch takes "
        f"{seconds(decode)} of decoding on {facts.threads} threads, {seconds(read)} of reading"
    )
    return Claim(
        "decode",
        lost,
        evidence,
        after_waiting(facts, read),
        "smaller stored images (stoker pack --max-side) or --codec raw, then more cores",
    )


def waiting(facts: Facts) -> Claim | None:
    """A loop that does not tell reading from decoding."""
    lost = facts.part("data")
    evidence = f"{share(lost, facts)} of the time waiting for images"
    without = after_waiting(facts, 0.0)
    action = "more --threads, smaller stored images, or a faster disk"
    return Claim("data", lost, evidence, without, action)


def off_cpu_s(facts: Facts, parts: tuple[str, ...]) -> float:
    """How long the training thread was off the CPU in some parts."""
    if not all(rank.on_cpu for rank in facts.ranks):
        return 0.0
    return statistics.fmean(
        sum(rank.parts.get(part, 0.0) - rank.on_cpu.get(part, 0.0) for part in parts)
        for rank in facts.ranks
    )


def asleep_s(facts: Facts, parts: tuple[str, ...]) -> float:
    """The same, but for a want of cores. Where several threads compute, one that has no core keeps
    the others waiting off theirs: that can be told from sleep only where no core is wanting."""
    delay = facts.delay_s or 0.0
    if facts.computing > 1 and (facts.delay_s is None or delay > WANTING * facts.step_s):
        return 0.0
    return max(off_cpu_s(facts, parts) - delay, 0.0)


def hogged(facts: Facts) -> Claim | None:
    """Another thread of the process holds the interpreter lock."""
    if facts.late_share < LATE:
        return None
    # Where it waits for a core as well, the thread that has one is the same.
    waited = (facts.delay_s or 0.0) - facts.hog_cores * facts.step_s
    lost = off_cpu_s(facts, (*COMPUTE, "other")) - max(waited, 0.0) + facts.part(*WAITING)
    left = facts.step_s - lost
    who = f": the thread '{facts.hog}' used {facts.hog_cores:.2f} of a core" if facts.hog else ""
    return Claim(
        "host",
        lost,
        f"the interpreter lock was not free {facts.late_share:.0%} of the times it was asked for"
        f"{who}; the training thread waited {share(lost, facts)} of the time",
        max(left - AFTER_LOCK * lost, left / 2),
        "move that thread's work to a process of its own",
        "the host: another Python thread holds the interpreter lock",
    )


def between_parts_s(facts: Facts) -> float:
    """What the training thread does between the parts of a step. It may lose its core there to
    loading, which is no work of its own."""
    return statistics.fmean(
        min(rank.parts.get("other", 0.0), rank.on_cpu.get("other", float("inf")))
        for rank in facts.ranks
    )


def small_batch(facts: Facts) -> Claim | None:
    """Much of a step does not depend on how many images are in it."""
    if facts.in_larger is None:
        return None
    spared = facts.part(*MODEL) * (1 - facts.in_larger)
    # The optimiser, what lies between the parts and the handing over of a batch come once a step,
    # however many images there are.
    handing_over = facts.part(*WAITING) if facts.part(*WAITING) < 0.1 * facts.step_s else 0.0
    once = facts.part("optimiser") + between_parts_s(facts) + handing_over
    lost = min(spared + once * (1 - 1 / LARGER), facts.step_s)
    return Claim(
        "host",
        lost,
        f"a step of {facts.images:,.0f} images takes {seconds(facts.step_s)}; as part of one "
        f"{LARGER} times as large they would take {seconds(facts.step_s - lost)}",
        facts.step_s - lost,
        "a larger --batch-size, with the learning rate to match",
        "the host: the batch is too small for the work",
    )


def exchanging(facts: Facts) -> Claim | None:
    """Gradients on their way when there is nothing else left to do."""
    world = max(facts.world, len(facts.ranks))
    if world < 2:
        return None
    lost, first = facts.transfer_s, facts.ranks[0]
    wire = ring_bytes(first.sent_bytes, world)
    # However quick the link, the CPU has to move the bytes.
    without = facts.step_s - lost + min(lost, wire * facts.send_cpu)
    # Where nobody saw them arrive: some time between the first gradient and the end of the pass.
    under_way = first.sent_s or facts.part("backward") + lost
    rate = wire / under_way if under_way else 0.0
    sent = f"{wire / 1e6:,.0f} MB a step"
    said = f"{share(lost, facts)} of the time waiting for gradients to arrive: {sent}"
    if rate:
        said += f" at {rate * 8 / 1e6:,.0f} Mbit/s"
    if facts.capacity and facts.local_world < world:
        said += f"; the link can do {facts.capacity * 8 / 1e6:,.0f}"
        if rate >= FULL * facts.capacity:
            action = "a faster port; till then a larger batch a rank, so that fewer are exchanged"
            return Claim("network", lost, said, without, action)
    action = "a larger batch a rank, or fewer ranks"
    return Claim("exchange", lost, said, without, action)


def straggling(facts: Facts) -> Claim | None:
    """One rank that keeps the others waiting, step after step."""
    if len(facts.ranks) < 2:
        return None
    slow = max(facts.ranks, key=lambda rank: rank.own_s)
    others = [rank for rank in facts.ranks if rank is not slow]
    usual = statistics.median(rank.own_s for rank in others)
    if slow.own_s < SLOWER * usual or slow.slow_share < PERSISTENT:
        return None
    part = max(slow.parts, key=lambda name: behind(slow, others, name))
    there, here = median_part(others, part), slow.parts[part]
    # Its other parts are longer, too, where it exchanges in between what others have sent long ago.
    lost = here - there
    why = f"; {slow.trouble}" if slow.trouble else ""
    return Claim(
        "straggler",
        lost,
        f"rank {slow.rank} on {slow.host} takes {seconds(slow.own_s)} a step, the others "
        f"{seconds(usual)}; most of it in {part}: {seconds(here)} against {seconds(there)}{why}",
        facts.step_s - lost,
        f"look at {slow.host} (other jobs, heat, a slow disk), or replace it",
        f"one slow rank: rank {slow.rank} on {slow.host}",
    )


def median_part(ranks: list[RankFacts], part: str) -> float:
    return statistics.median(rank.parts.get(part, 0.0) for rank in ranks)


def behind(slow: RankFacts, others: list[RankFacts], part: str) -> float:
    if part in ("exchange", "checkpoint"):
        return 0.0
    return slow.parts[part] - median_part(others, part)


def occasional(part: str, action: str) -> Callable[[Facts], Claim]:
    """What comes now and then, as it falls on each step."""

    def claim(facts: Facts) -> Claim:
        # One rank saves, the others wait for it: its time counts once.
        lost = max(rank.parts.get(part, 0.0) for rank in facts.ranks)
        evidence = f"{share(lost, facts)} of the time, {seconds(lost)} a step"
        return Claim(part, lost, evidence, facts.step_s - lost, action)

    return claim


RULES: tuple[tuple[float, Callable[[Facts], Claim | None]], ...] = (
    (0.10, reading),
    (0.10, decoding),
    (0.10, waiting),
    (0.10, hogged),
    (0.25, small_batch),
    (0.10, exchanging),
    (0.07, straggling),
    (0.05, occasional("checkpoint", "a faster disk for --run, or a longer --checkpoint-interval")),
    (0.20, occasional("evaluation", "evaluate less often: --eval-every")),
)
"""The share of a step above which a claim binds, and who claims it."""


def judge(facts: Facts | None) -> Verdict | None:
    """What binds, or None where nothing was measured."""
    if facts is None or not facts.ranks or facts.step_s <= 0:
        return None
    claims = [(least, claim) for least, rule in RULES if (claim := rule(facts)) is not None]
    claims.sort(key=lambda row: row[1].lost_s, reverse=True)
    bound = next((c for least, c in claims if c.lost_s > least * facts.step_s), None)
    if bound is None:
        return unbound(facts, [claim for _, claim in claims])
    runner_up = compute_share(facts)
    rest = [claim for _, claim in claims if claim.limit != bound.limit]
    if rest and rest[0].lost_s > 0.05 * facts.step_s:
        runner_up = f"{words_of(rest[0])}, {share(rest[0].lost_s, facts)} of the time"
    return Verdict(
        bound.limit,
        words_of(bound),
        bound.evidence,
        bound.action,
        facts.step_s,
        bound.without_s,
        runner_up,
    )


def words_of(claim: Claim) -> str:
    return claim.words or NAMES[claim.limit]


def compute_share(facts: Facts) -> str:
    return f"{NAMES['compute']}, {share(facts.part(*COMPUTE), facts)} of the time"


def unbound(facts: Facts, claims: list[Claim]) -> Verdict:
    """Nothing but the network itself takes much of the time."""
    compute, waits = facts.part(*COMPUTE), facts.part(*WAITING)
    evidence = (
        f"{share(compute, facts)} of the time in forward, backward and optimiser, "
        f"{waits / facts.step_s:.1%} waiting for images"
    )
    asleep = asleep_s(facts, MODEL)
    if asleep > ASLEEP * facts.part(*MODEL):
        evidence += f"; the thread slept for {seconds(asleep)} of {seconds(facts.part(*MODEL))}"
        action = "look for what forward or backward wait for: py-spy dump --pid PID"
        return Verdict(
            "compute", NAMES["compute"], evidence, action, facts.step_s, facts.step_s - asleep
        )
    loading = facts.work("read", "cpu") - facts.work("read_cpu")
    action = "a faster device, --amp, a smaller --image-size or --model"
    if loading > BALANCED * facts.step_s:
        evidence += f"; loading alone takes {seconds(loading)} of {seconds(facts.step_s)}"
        action = "more cores and a faster device together; one alone gains little"
        return Verdict("balanced", NAMES["balanced"], evidence, action, facts.step_s)
    runner_up = ""
    if loading > 0:
        runner_up = f"loading, {seconds(loading)} a step by itself"
    if claims and claims[0].lost_s > max(loading, 0.02 * facts.step_s):
        runner_up = f"{words_of(claims[0])}, {share(claims[0].lost_s, facts)} of the time"
    return Verdict("compute", NAMES["compute"], evidence, action, facts.step_s, runner_up=runner_up)
