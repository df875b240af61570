"""The links between ranks as lines of text: rates, interfaces, and what they cost a step."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.measure import ports
from stoker.measure.trials.link import Link, LinkReport, rank_labels
from stoker.text import plural, seconds, size

HALF = 0.5
"""A link below this share of the fastest one is a slow one."""


def lines(report: LinkReport) -> list[str]:
    hosts = plural(len(set(report.hosts)), "host")
    lines = [
        f"links: {plural(report.world, 'rank')} on {hosts}, all-reduce through {report.backend}, "
        f"measured in {report.took_s:.0f} s"
    ]
    names = (" - ".join(rank_labels(pair.ranks, report.hosts)) for pair in report.pairs)
    lines += [f"  {link_line(*link)}" for link in zip(names, report.pairs, strict=True)]
    if len(report.pairs) > 1:
        lines.append(f"  ({report.chosen})")
    lines += [f"  {link_line('all ranks', report.all_ranks)}", f"  transport: {transport(report)}"]
    if report.gradient_bytes > 0:
        lines.append(f"  {gradient_line(report)}")
    return lines


def step_lines(report: LinkReport, compute_s: float, batch_size: int) -> list[str]:
    """What the links mean for a step that computes for `compute_s` on each rank."""
    if report.gradient_bytes <= 0:
        return []
    exposed = ports.exposed_s(report.gradient_s, compute_s)
    hidden = f"all but {seconds(exposed)}" if exposed else "all of it"
    ceiling = ports.images_ceiling(batch_size, report.gradient_s)
    return [
        f"  {gradient_line(report)}; the backward pass ({seconds(ports.BACKWARD * compute_s)}) can "
        f"hide {hidden}; at most {ceiling:,.0f} images/s at batch {batch_size:,}",
        *warning(report, compute_s),
    ]


def link_line(name: str, link: Link) -> str:
    """One link: its rate, its latency, and the port that its rate suggests."""
    port = f": looks like a {ports.port_words(link.port_mbit)} port" if link.port_mbit else ""
    return f"{name}  {link.mbit:,.0f} Mbit/s each way, {link.latency_s * 1000:.1f} ms{port}"


def transport(report: LinkReport) -> str:
    """How the bytes travelled, as far as the kernel or NCCL recorded it."""
    link = next((link for link in (*report.pairs, report.all_ranks) if link.interface), None)
    share = f"it sent {link.counted:.0%} of the bytes" if link and link.counted else ""
    interface = f"interface {link.interface} ({share})" if link else ""
    if report.backend == "nccl":
        text = f"NCCL uses {report.nccl}" if report.nccl else "NCCL has not logged one"
        return text + (f"; {interface}" if link and (link.counted or 0) > HALF else "")
    if link is None:
        return "sockets; no interface can be named, because the kernel counts no bytes here"
    if report.all_ranks.loopback:
        return f"sockets over {link.interface}: one machine with itself, through no port"
    return f"sockets, {interface}{faster_cards(report)}"


def faster_cards(report: LinkReport) -> str:
    """A note for a link that is limited by something slower than the cards at its ends."""
    slowest = report.slowest
    cards = [report.cards_mbit.get(host, 0) for host in slowest.hosts]
    if not slowest.port_mbit or min(cards) < 2 * slowest.port_mbit:
        return ""
    rate = ports.port_words(min(cards))
    return f"; the network cards run at {rate}: the limit is elsewhere (switch, cable, contract)"


def gradient_line(report: LinkReport) -> str:
    source = "" if report.gradient_measured else " (computed)"
    gradient = f"this model's gradient ({size(report.gradient_bytes)})"
    return f"{gradient}: {seconds(report.gradient_s)} a step{source}"


def warning(report: LinkReport, compute_s: float) -> list[str]:
    """For links that are too slow for this model: which one, what it costs, and what to do."""
    share = ports.exposed_share(report.gradient_s, compute_s)
    if share <= ports.COSTLY:
        return []
    step_s = compute_s + ports.exposed_s(report.gradient_s, compute_s)
    slowest, backward_s = report.slowest, ports.BACKWARD * compute_s
    needed_mbit = ports.ring_bytes(report.gradient_bytes, report.world) * 8e-6 / backward_s
    better = None if slowest.loopback else ports.port_for(needed_mbit)
    if slowest.loopback:
        cause = f"loopback ({slowest.mbit:,.0f} Mbit/s)"
    else:
        hosts = slow_host(report.pairs) or " and ".join(slowest.hosts)
        kind = f"a {ports.port_words(slowest.port_mbit)} port" if slowest.port_mbit else "a link"
        cause = f"{kind} at {hosts} ({slowest.mbit:,.0f} Mbit/s measured)"
    action = (
        f"a port or contract of {ports.port_words(better)} or more, which the backward pass can "
        "hide"
        if better and better > slowest.mbit
        else f"a --batch-size {report.gradient_s / backward_s:.1f} times as large (in "
        "micro-batches, if memory is short): ranks exchange once a batch"
    )
    return [
        f"  warning: {share:.0%} of a step would be waiting for {cause}: {seconds(step_s)} a step, "
        f"{seconds(compute_s)} without",
        f"  next: {action}",
    ]


def slow_host(pairs: Sequence[Link]) -> str:
    """The one host that all slow links have in common; empty if there is no such host."""
    best = max((pair.mbit for pair in pairs), default=0.0)
    slow = [set(pair.hosts) for pair in pairs if pair.mbit < HALF * best]
    common = set.intersection(*slow) if slow else set()
    return common.pop() if len(common) == 1 else ""
