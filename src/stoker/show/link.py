"""What was measured between ranks, in words: links, the way bytes went, and what a step costs."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.measure.ports import (
    BACKWARD,
    COSTLY,
    exposed_s,
    exposed_share,
    images_ceiling,
    port_for,
    port_words,
    ring_bytes,
)
from stoker.measure.trials.link import Link, LinkReport, named
from stoker.text import plural, size

HALF = 0.5
"""A link below this share of the best one is a slow one."""


def lines(network: LinkReport) -> list[str]:
    """All that was measured."""
    count = plural(len(set(network.hosts)), "host")
    said = [
        f"network: {plural(network.world, 'rank')} on {count}, all-reduce through "
        f"{network.backend}, {network.took_s:.0f} s"
    ]
    said += [f"  {link_line(' - '.join(named(p.ranks, network.hosts)), p)}" for p in network.pairs]
    if len(network.pairs) > 1:
        said.append(f"  ({network.chosen})")
    said.append(f"  {link_line('all ranks', network.all_ranks)}")
    said.append(f"  transport: {transport(network)}")
    if network.gradient_bytes > 0:
        said.append(f"  {gradient_line(network)}")
    return said


def meaning(network: LinkReport, compute_wall_s: float, batch_size: int) -> list[str]:
    """What it means for a step that computes for so long on each rank."""
    if network.gradient_bytes <= 0:
        return []
    gradient = gradient_line(network, compute_wall_s, batch_size)
    return [f"  {gradient}", *warning(network, compute_wall_s)]


def link_line(who: str, link: Link) -> str:
    """One link: its rate, its latency, and the port that it looks like."""
    port = link.port_mbit
    looks = f": looks like a {port_words(port)} port" if port else ""
    return f"{who}  {link.mbit:,.0f} Mbit/s each way, {link.latency_s * 1000:.1f} ms{looks}"


def transport(network: LinkReport) -> str:
    """The way that bytes really went, as far as anybody says."""
    seen = [link for link in (*network.pairs, network.all_ranks) if link.interface]
    if network.backend == "nccl":
        said = f"NCCL says {network.nccl}" if network.nccl else "NCCL has said nothing of it"
        return said + (f"; {counted(seen[0])}" if seen and (seen[0].counted or 0) > HALF else "")
    if not seen:
        return "sockets; nothing counts bytes here, so no interface can be named"
    if network.all_ranks.loopback:
        return f"sockets over {seen[0].interface}: one machine with itself, no port is between"
    return f"sockets, {counted(seen[0])}{beyond(network)}"


def beyond(network: LinkReport) -> str:
    """Where a card has agreed on more than a capped link carries, the cap is not the card's."""
    slowest = min((*network.pairs, network.all_ranks), key=lambda link: link.mbit)
    cards = [network.cards_mbit.get(host, 0) for host in slowest.hosts]
    if not slowest.port_mbit or min(cards) < 2 * slowest.port_mbit:
        return ""
    return f"; the cards say {port_words(min(cards))}: the cap is elsewhere (switch, cable, plan)"


def counted(link: Link) -> str:
    share = f"it counted {link.counted:.0%} of the bytes due" if link.counted else ""
    return f"interface {link.interface} ({share})"


def gradient_line(
    network: LinkReport, compute_wall_s: float | None = None, batch_size: int | None = None
) -> str:
    """This model's gradient: seconds a step, and what of that nothing hides."""
    how = "" if network.gradient_measured else " (computed)"
    gradient = f"this model's gradient ({size(network.gradient_bytes)})"
    said = f"{gradient}: {short(network.gradient_s)} a step{how}"
    if compute_wall_s is not None:
        exposed = exposed_s(network.gradient_s, compute_wall_s)
        hidden = f"the backward pass ({short(BACKWARD * compute_wall_s)}) can hide"
        said += f"; {hidden} {'all of it' if not exposed else f'all but {short(exposed)}'}"
    if batch_size:
        ceiling = images_ceiling(batch_size, network.gradient_s)
        said += f"; at most {ceiling:,.0f} images/s at batch {batch_size:,}"
    return said


def warning(network: LinkReport, compute_wall_s: float) -> list[str]:
    """Where the network is too slow for this model: why, what it costs, and one thing to do."""
    share = exposed_share(network.gradient_s, compute_wall_s)
    if share <= COSTLY:
        return []
    exposed = exposed_s(network.gradient_s, compute_wall_s)
    step_s = compute_wall_s + exposed
    slowest = min((*network.pairs, network.all_ranks), key=lambda link: link.mbit)
    port = slowest.port_mbit
    needed = ring_bytes(network.gradient_bytes, network.world) * 8e-6 / (BACKWARD * compute_wall_s)
    better = port_for(needed)
    if slowest.loopback:
        what = f"loopback ({slowest.mbit:,.0f} Mbit/s)"
        better = None
    else:
        where = where_slow(network.pairs) or " and ".join(slowest.hosts)
        kind = f"a {port_words(port)} port" if port else "a network"
        what = f"{kind} at {where} ({slowest.mbit:,.0f} Mbit/s measured)"
    times = network.gradient_s / (BACKWARD * compute_wall_s)
    action = (
        f"a port or plan of {port_words(better)} or more, which the backward pass can hide"
        if better and better > slowest.mbit
        else f"a --batch-size {times:.1f} times as large (in micro-batches, if memory is short): "
        "ranks exchange once a batch"
    )
    return [
        f"  warning: {share:.0%} of a step would be waiting for {what}: {short(step_s)} a step, "
        f"{short(compute_wall_s)} without",
        f"  next: {action}",
    ]


def where_slow(pairs: Sequence[Link]) -> str:
    """The one host that all slow links have in common, where some are slow and others are not."""
    best = max((pair.mbit for pair in pairs), default=0.0)
    slow = [set(pair.hosts) for pair in pairs if pair.mbit < HALF * best]
    common = set.intersection(*slow) if slow else set()
    return common.pop() if len(common) == 1 else ""


def short(seconds: float) -> str:
    """4.2 s, 0.36 s, 57 ms."""
    if seconds < 0.1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s"
