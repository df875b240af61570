"""Link reports for tests, as if they had been measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stoker.measure.ports import allreduce_s
from stoker.measure.trials.link import LARGE, Link, LinkReport

GRADIENT = 46_758_184
"""Bytes of the gradient of a resnet18."""


def link(
    mbit: float, hosts: tuple[str, ...] = ("a", "b"), ranks: tuple[int, ...] = (0, 1), **more: Any
) -> Link:
    seconds = allreduce_s(LARGE, len(ranks), mbit)
    interface = "eth0" if len(hosts) > 1 else "lo"
    plain = Link(ranks, hosts, LARGE, seconds, 0.01, mbit, 0.006, 0.0003, 0.05, interface, 1.0)
    return replace(plain, **more)


def network(mbit: float = 94, pairs: tuple[Link, ...] = (), **more: Any) -> LinkReport:
    pairs = pairs or (link(mbit),)
    hosts = tuple(dict.fromkeys(host for pair in pairs for host in pair.hosts))
    slowest = min(pair.mbit for pair in pairs)
    if len(hosts) == 1:
        hosts *= 2
    together = link(slowest, tuple(dict.fromkeys(hosts)), tuple(range(len(hosts))))
    plain = LinkReport(
        backend="gloo",
        hosts=hosts,
        pairs=pairs,
        chosen="every pair of hosts, by the first rank of each",
        all_ranks=together,
        gradient_bytes=GRADIENT,
        gradient_s=allreduce_s(GRADIENT, len(hosts), slowest),
        gradient_measured=True,
        cards_mbit={},
        nccl="",
        took_s=12.0,
    )
    return replace(plain, **more)
