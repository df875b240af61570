"""Questions about time, devices, links and traffic, answered from the record alone.

Invariants: an answer is one or two plain sentences, and the evidence follows it. Where evidence is
missing, the answer says which. Pure functions of the facts.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime

import numpy as np

from stoker.history.history import AttemptHistory
from stoker.history.usage import Usage
from stoker.measure.ports import ring_bytes
from stoker.measure.spans import WAITING
from stoker.measure.verdict import COMPUTE
from stoker.show.cost import money
from stoker.show.report.charts import part_bars
from stoker.show.report.elements import PageTable
from stoker.show.report.facts import RunFacts
from stoker.show.report.questions import Evidence, Question
from stoker.text import clock, plural, printable, seconds, size

MOSTLY, PARTLY = 0.8, 0.5
"""Shares of a step spent computing, from which on devices were used well, and in part."""
INSIDE = ("cores", "host", "compute")
"""Limits whose time is inside of forward and backward."""
NOT_A_LINK = "There is no link between machines: the run had one machine."


def moment(at: float | None) -> str:
    """A time in UTC."""
    if not at:
        return "unknown"
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def mean_of(rows: Iterable[Usage], number: Callable[[Usage], float | None]) -> float | None:
    """The mean of what was measured; None where nothing was."""
    values = [value for usage in rows if (value := number(usage)) is not None]
    return statistics.fmean(values) if values else None


def all_usage(facts: RunFacts) -> list[Usage]:
    return [usage for rows in facts.history.usage.values() for usage in rows]


def began_of(facts: RunFacts) -> float | None:
    return min((a.began for a in facts.history.attempts.values() if a.began), default=None)


def how_long(facts: RunFacts) -> Question:
    title = "How long did it take?"
    history, ledger = facts.history, facts.history.ledger
    began, last = began_of(facts), history.last
    if began is None or last is None:
        return Question(title, "No time is on record: no attempt has written anything.")
    attempts = history.attempts.values()
    wall_s = last - began + startup_of(min(attempts, key=lambda a: a.began or last))
    count = len(attempts)
    so_far = " so far" if facts.is_running else ""
    answer = f"{clock(ledger.total_s)}{so_far} in {plural(count, 'attempt')}"
    attempted_s = sum((a.last or 0.0) - (a.began or 0.0) + startup_of(a) for a in attempts)
    pause_s = max(wall_s - attempted_s, 0.0)
    pauses = f", {clock(pause_s)} of it between attempts" if count > 1 else ""
    rows = [
        ("first event", moment(began)),
        ("last event", moment(last)),
        ("wall time, from the first command on", clock(wall_s)),
        ("time in all attempts", clock(ledger.total_s)),
        ("of it steps", clock(ledger.training_s)),
        ("of it starting up", clock(ledger.startup_s)),
        ("of it evaluating", clock(ledger.parts["evaluation"])),
        ("of it repeated steps", clock(ledger.redone_s)),
        ("pauses between attempts", clock(pause_s)),
    ]
    table = PageTable("Times of the run", ("what", "time"), rows, frozenset((1,)))
    return Question(title, f"{answer}; {clock(wall_s)} by the wall clock{pauses}.", (table,))


def startup_of(attempt: AttemptHistory) -> float:
    """Seconds from the command of an attempt to its first event."""
    return float(attempt.start["startup_s"]) if attempt.start else 0.0


def shares_of_step(facts: RunFacts) -> tuple[float, float, float] | None:
    """Shares of a step: computing, waiting for data, exchanging gradients. None without steps."""
    ledger = facts.history.ledger
    if ledger.training_s <= 0:
        return None
    groups = (COMPUTE, WAITING, ("exchange",))
    sums = [sum(ledger.parts[part] for part in group) / ledger.training_s for group in groups]
    return sums[0], sums[1], sums[2]


def devices_used(facts: RunFacts) -> Question:
    title = "Were the devices used?"
    shares = shares_of_step(facts)
    if shares is None:
        return Question(title, "It is not on record: no step was made.")
    computing, waiting, exchange = shares
    lost = lost_inside(facts)
    computing = max(computing - lost, 0.0)
    opening = "Yes" if computing >= MOSTLY else "In part" if computing >= PARTLY else "Not well"
    answer = (
        f"{opening}: {computing:.0%} of a step was computing, {waiting:.0%} waiting for images"
        f"{f', {exchange:.0%} exchanging gradients' if exchange else ''}"
        f"{f', {lost:.0%} lost to what limited the run' if lost else ''}."
    )
    rows = [device_row(host, usage, facts) for host, usage in facts.history.usage.items()]
    columns = ("machine", "GPU busy", "cores used", "all cores busy", "stolen")
    tables: list[Evidence] = []
    if rows:
        tables.append(PageTable("Means over the run", columns, rows, frozenset(range(1, 5))))
        tables.append(
            "Cores used are those of the machine's first rank. A GPU that waits inside of a kernel "
            "counts as busy, so the share of a step says more."
        )
    else:
        tables.append("Missing: the use of CPU and GPU was not sampled.")
    lines = facts.verdict.lines() if facts.verdict else []
    texts = (device_text(facts), *map(sentence, lines), *saving_text(facts))
    return Question(title, answer, (*texts, *tables))


def lost_inside(facts: RunFacts) -> float:
    """The share of a step that counts as computing, in which the device waited for a core, for the
    host or for something in the forward pass."""
    verdict = facts.verdict
    if verdict is None or verdict.without_s is None or verdict.limit not in INSIDE:
        return 0.0
    return max(1 - verdict.without_s / verdict.step_s, 0.0) if verdict.step_s > 0 else 0.0


def saving_text(facts: RunFacts) -> list[str]:
    """What all steps would take without the limit, in time and in dollars."""
    verdict, ledger = facts.verdict, facts.history.ledger
    if verdict is None or verdict.without_s is None or verdict.step_s <= 0:
        return []
    share = verdict.without_s / verdict.step_s
    saved_s = (1 - share) * ledger.training_s
    dollars = facts.cost.total * saved_s / max(ledger.total_s, saved_s)
    money_text = f", and {money(dollars)} less" if facts.is_priced else ""
    return [
        f"Without it, the steps of this run would take about {clock(share * ledger.training_s)} "
        f"instead of {clock(ledger.training_s)}{money_text}."
    ]


def sentence(line: str) -> str:
    return f"{line[:1].upper()}{line[1:]}."


def device_text(facts: RunFacts) -> str:
    start = facts.start
    if start is None:
        return ""
    environment = start["environment"]
    cores = environment.get("cores")
    on = f", {plural(cores, 'core')} a machine" if cores else ""
    return (
        f"{plural(start['world'], 'rank')} on {plural(facts.machines, 'machine')}, each on "
        f"{printable(environment['device']) or 'an unknown device'}{on}."
    )


def device_row(host: str, usage: Sequence[Usage], facts: RunFacts) -> tuple[str, ...]:
    gpus = [gpu["busy"] for row in usage for gpu in row.gpus.values() if "busy" in gpu]
    cores = mean_of(usage, lambda row: row.cores)
    busy, steal = mean_of(usage, lambda row: row.busy), mean_of(usage, lambda row: row.steal)
    return (
        host or "this machine",
        f"{statistics.fmean(gpus):.0%}" if gpus else "no GPU",
        "unknown" if cores is None else f"{cores:.2f}",
        "unknown" if busy is None else f"{busy:.0%}",
        "unknown" if steal is None else f"{steal:.1%}",
    )


def link_limit(facts: RunFacts) -> Question:
    title = "Was the link the bottleneck?"
    start, shares = facts.start, shares_of_step(facts)
    if start is None or shares is None:
        return Question(title, "It is not on record: no step was made.")
    exchange = shares[2]
    if start["world"] == 1:
        answer = "No: one rank exchanges no gradients with others."
        return Question(title, answer, (NOT_A_LINK, *link_table(facts)))
    took = f"waiting for the gradient exchange took {exchange:.1%} of a step"
    if facts.machines == 1:
        answer = f"No: all ranks are on one machine; {took}."
        return Question(title, answer, (NOT_A_LINK, *exchange_texts(facts), *link_table(facts)))
    cause = facts.verdict.claim if facts.verdict else None
    answer = f"No: {took}."
    if cause and "sent_mb" in cause.details:  # the verdict is about the exchange
        full = f"Yes: {took}, and the link was full."
        idle = f"The exchange was, though no link was full: {took}."
        answer = idle if cause.limit == "exchange" else full
    return Question(title, answer, (*exchange_texts(facts), *link_table(facts)))


def exchange_texts(facts: RunFacts) -> list[str]:
    """Bytes of a step, the rate, and the measured capacity."""
    measured = facts.facts
    sent = measured.ranks[0].sent_bytes if measured else 0.0
    if not measured or not sent:
        return ["Missing: the bytes of the gradient exchange are not on record."]
    wire = ring_bytes(sent, measured.world)
    texts = [
        f"Each rank exchanges {size(sent)} of gradients a step: {size(wire)} each way in a ring."
    ]
    if sent_s := measured.ranks[0].sent_s:
        texts.append(f"They were on their way for {seconds(sent_s)} a step: {rate(wire / sent_s)}.")
    if measured.capacity:
        texts.append(f"The link can do {rate(measured.capacity)}, measured before the first step.")
    else:
        texts.append("Missing: the capacity of the link was not measured.")
    return texts


def rate(bytes_s: float) -> str:
    """Bytes a second, also as links are sold."""
    bits = bytes_s * 8 / 1e6
    words = f"{bits / 1000:.2f} Gbit/s" if bits >= 1000 else f"{bits:.3g} Mbit/s"
    return f"{size(bytes_s)} a second ({words})"


def link_table(facts: RunFacts) -> list[Evidence]:
    rows = []
    for host, usage in facts.history.usage.items():
        out, into = mean_of(usage, lambda u: u.sent_s), mean_of(usage, lambda u: u.received_s)
        if out is None or into is None:
            continue
        peak = max((max(u.sent_s or 0.0, u.received_s or 0.0) for u in usage), default=0.0)
        rows.append((host or "this machine", rate(into), rate(out), rate(peak)))
    if not rows:
        return ["Missing: the traffic of links was not sampled."]
    columns = ("machine", "in", "out", "highest of ten seconds")
    caption = "All traffic of each machine's links, of this run or not"
    return [PageTable(caption, columns, rows, frozenset((1, 2, 3)))]


def quantiles(values: Sequence[float], weights: Sequence[float]) -> tuple[float, float, float]:
    """The 5th, 50th and 95th percentile of weighted values."""
    order = np.argsort(values)
    sums = np.cumsum(np.array(weights, float)[order])
    places = np.searchsorted(sums, [share * sums[-1] for share in (0.05, 0.5, 0.95)])
    low, middle, high = np.array(values)[order][np.minimum(places, len(order) - 1)]
    return float(low), float(middle), float(high)


def step_time(facts: RunFacts) -> Question:
    title = "How long does a step take?"
    points, ledger = facts.history.points, facts.history.ledger
    if not points:
        return Question(title, "It is not on record: no step was made.")
    low, middle, high = quantiles([p.step_s for p in points], [p.count for p in points])
    images_s = ledger.images_per_s
    steps = sum(point.count for point in points)
    batch = ledger.images / max(steps, 1)
    mean = f", {seconds(batch / images_s)} by the mean" if images_s else ""
    speed = f": {images_s:,.0f} images a second" if images_s else ""
    spread = (
        f"From {seconds(low)} to {seconds(high)} for 90% of the steps: {plural(steps, 'step')} in "
        f"{plural(len(points), 'row')} of about ten seconds, each with its mean. Evaluations and "
        "saves come between steps and are left out."
    )
    return Question(
        title,
        f"{seconds(middle)} by the median{mean}{speed}.",
        (spread, f"A step has {batch:,.0f} images over all ranks.", part_bars(facts)),
    )


def traffic(facts: RunFacts) -> Question:
    title = "How does that match the traffic?"
    images_s = facts.history.ledger.images_per_s
    if images_s is None:
        return Question(title, "It is not on record: no step was made.")
    saved = facts.history.checkpoints
    written = sum(event["bytes"] for event in saved)
    texts = [*disk_texts(facts, images_s), *link_texts(facts)]
    if saved:
        texts.append(f"Written: {size(written)} in {plural(len(saved), 'checkpoint')}.")
    return Question(title, texts[0], tuple(texts[1:]))


def disk_texts(facts: RunFacts, images_s: float) -> list[str]:
    """Bytes that training needed a second, and bytes that were read."""
    image_bytes, usage = facts.data.image_bytes, all_usage(facts)
    hosts = max(len(facts.history.usage), 1)
    read = mean_of(usage, lambda row: row.read_s)
    if image_bytes is None:
        measured = "unknown" if read is None else f"{size(read)} a second of each machine"
        return [
            "It cannot be compared: the stored bytes of an image are not known without the set.",
            f"Read from disks: {measured}.",
        ]
    needed = images_s * image_bytes
    product = f"{images_s:,.0f} images a second of {size(image_bytes)} are {size(needed)} a second"
    if read is None:
        return [f"{product}; what was read from disks was not sampled."]
    total = read * hosts
    explanation = "The two agree: the images came from the disk."
    if total < 0.8 * needed:
        explanation = (
            "Less was read than was used: the rest of the images came from the page cache, in "
            "memory."
        )
    elif total > 1.25 * needed:
        explanation = (
            "More was read than the images need: other programs read too, or the disk reads ahead."
        )
    return [f"{product}; {size(total)} a second were read from disks.", explanation]


def link_texts(facts: RunFacts) -> list[str]:
    """Bytes that the exchange needed a second, and bytes that went over links."""
    measured, start = facts.facts, facts.start
    if start is None or start["world"] == 1:
        return ["No gradients were exchanged: there was one rank."]
    sent = measured.ranks[0].sent_bytes if measured else 0.0
    if not measured or not sent or measured.step_s <= 0:
        return ["Missing: the bytes of the gradient exchange are not on record."]
    wire = ring_bytes(sent, measured.world)
    needed = wire / measured.step_s
    text = (
        f"{size(wire)} a step, {1 / measured.step_s:.3g} steps a second, are {rate(needed)} each "
        "way of a rank."
    )
    if facts.machines == 1:
        return [text, "None of it crosses a link: all ranks are on one machine."]
    out = mean_of(all_usage(facts), lambda row: row.sent_s)
    if out is None:
        return [text, "Missing: the traffic of links was not sampled."]
    return [text, f"Sent over the links of each machine: {rate(out)} by the mean."]
