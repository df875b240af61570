"""How quickly ranks can exchange gradients: all-reduce alone, through the backend of training.

Invariants: every rank calls the same functions in the same order, and what decides how often
something is repeated is agreed between the ranks first: none waits for one that has gone on. The
first all-reduce of a kind is not counted. Sizes shrink where the network is slow, so that time is
bounded; results are plain data, the same on every rank, and never pickled.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from stoker.host.interfaces import card_mbit, grown, grown_most, sent_bytes
from stoker.measure.ports import allreduce_s, port_mbit, rate_mbit, ring_bytes

SMALL, PROBE, LARGE = 64 << 10, 1 << 20, 16 << 20
"""Bytes of an all-reduce: for latency, for a first guess, for the rate."""
MOST_PAIRED = 8
"""Of so many hosts (or ranks of one) every pair is measured, of more a ring of neighbours."""
PAIRS_SHARE, ALL_SHARE, GRADIENT_SHARE = 0.35, 0.25, 0.4
"""How the time is shared out."""
MOST_GRADIENT = 1 << 30
"""A gradient larger than this is not allocated to be measured, but computed."""
Group = Any
"""torch.distributed's process group; None is everybody."""


@dataclass(frozen=True)
class Link:
    """An all-reduce between some ranks, alone on the network."""

    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    """The hosts they are on, each once."""
    size: int
    """Bytes of the larger all-reduce."""
    seconds: float
    """What it took: the median, as the slowest rank saw it."""
    spread: float
    """How much quicker than the median the quickest was, as a share of it."""
    mbit: float
    """On the wire, each way."""
    small_s: float
    """An all-reduce of 64 KiB."""
    latency_s: float
    """An all-reduce of one number."""
    busy: float | None
    """Processor seconds a second, of the busiest rank; None where that says nothing (a GPU)."""
    interface: str
    """What sent the bytes, on the host of the first rank: empty where nothing counted any."""
    counted: float | None
    """What that interface sent, as a share of what had to be sent."""

    @property
    def loopback(self) -> bool:
        return len(self.hosts) == 1

    @property
    def port_mbit(self) -> int | None:
        """The port that it seems to be capped by."""
        return None if self.loopback else port_mbit(self.mbit, self.spread, self.busy)


@dataclass(frozen=True)
class LinkReport:
    """What was measured between all ranks, as plain data."""

    backend: str
    hosts: tuple[str, ...]
    """The host of each rank."""
    pairs: tuple[Link, ...]
    chosen: str
    """Which pairs these are, in words."""
    all_ranks: Link
    gradient_bytes: int
    gradient_s: float
    """The exchange of this model's gradient, once a step."""
    gradient_measured: bool
    """False: computed from the rate."""
    cards_mbit: dict[str, int]
    """The rate that a host's card says it has agreed on, where it says one."""
    nccl: str
    """What NCCL says of its transport."""
    took_s: float

    @property
    def world(self) -> int:
        return len(self.hosts)

    def as_data(self) -> dict[str, Any]:
        return {"world": self.world, **asdict(self)}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> LinkReport:
        """What `as_data` gave, also after JSON."""
        told = {name: value for name, value in data.items() if name != "world"}
        told["hosts"] = tuple(told["hosts"])
        told["pairs"] = tuple(link_from(pair) for pair in told["pairs"])
        return cls(**{**told, "all_ranks": link_from(told["all_ranks"])})


def link_from(data: Mapping[str, Any]) -> Link:
    return Link(**{**data, "ranks": tuple(data["ranks"]), "hosts": tuple(data["hosts"])})


def pairs_of(hosts: Sequence[str]) -> tuple[list[tuple[int, int]], str]:
    """Which pairs of ranks are measured, from the host of each rank; and that in words."""
    firsts = [hosts.index(host) for host in dict.fromkeys(hosts)]
    several = len(firsts) > 1
    members = firsts if several else list(range(len(hosts)))
    who = "hosts, by the first rank of each" if several else "ranks"
    if len(members) <= MOST_PAIRED:
        return list(combinations(members, 2)), f"every pair of {who}"
    ring = list(zip(members, [*members[1:], members[0]], strict=True))
    return [(min(pair), max(pair)) for pair in ring], f"neighbours in a ring of {who}"


def measure_links(
    rank: int,
    world: int,
    host: str,
    gradient_bytes: int,
    budget_s: float,
    *,
    at: Callable[[str], None] = lambda words: None,
    nccl: Callable[[], str] = str,
) -> LinkReport:
    """Measure between all ranks of the default group, each of which calls this; the same result
    on all. `at` hears what is measured next, `nccl` reads what NCCL has said."""
    began = time.monotonic()
    at("the first words between all ranks")
    met = [json.loads(text) for text in exchanged(json.dumps([host, gradient_bytes, budget_s]))]
    hosts = [str(name) for name, _, _ in met]
    # Hosts may have been told of different models: what rank 0 was told counts.
    gradient, budget = int(met[0][1]), float(met[0][2])
    pairs, chosen = pairs_of(hosts)
    links = []
    for pair in pairs:
        at(" - ".join(named(pair, hosts)))
        group = dist.new_group(list(pair))
        if rank in pair:
            links.append(measure_link(group, pair, hosts, budget * PAIRS_SHARE / len(pairs)))
            dist.destroy_process_group(group)
        agreed([0.0])  # whoever is not of the pair waits here, and sends nothing meanwhile
    at("all ranks together")
    together = measure_link(None, range(world), hosts, budget * ALL_SHARE)
    at("this model's gradient")
    gradient_s, measured = measure_gradient(gradient, together, budget * GRADIENT_SHARE)
    at("the last words between all ranks")
    card = card_mbit(together.interface)
    mine = [asdict(together), [asdict(link) for link in links], card, nccl()]
    told = [json.loads(text) for text in exchanged(json.dumps(mine))]
    # Of the two ranks of a pair, the lower one speaks for both.
    spoken = {
        tuple(link["ranks"]): link_from(link)
        for number, words in enumerate(told)
        for link in words[1]
        if link["ranks"][0] == number
    }
    return LinkReport(
        backend="nccl" if here().type == "cuda" else "gloo",
        hosts=tuple(hosts),
        pairs=tuple(spoken[pair] for pair in pairs),
        chosen=chosen,
        all_ranks=link_from(told[0][0]),
        gradient_bytes=gradient,
        gradient_s=gradient_s,
        gradient_measured=measured,
        cards_mbit={hosts[n]: int(words[2]) for n, words in enumerate(told) if words[2]},
        nccl=next((str(words[3]) for words in told if words[3]), ""),
        took_s=time.monotonic() - began,
    )


def measure_link(group: Group, ranks: Sequence[int], hosts: Sequence[str], share_s: float) -> Link:
    """All-reduce of one number, of 64 KiB and of up to 16 MiB between some ranks, in about so many
    seconds; called by these ranks only."""
    began, count = time.monotonic(), len(ranks)
    on = tuple(dict.fromkeys(hosts[rank] for rank in ranks))
    latency = repeated(1, group, share_s * 0.05, 3, 30)
    small = repeated(SMALL, group, share_s * 0.10, 2, 20)
    (probe_s,) = agreed([timed(blank(PROBE), group)], group)
    (spent_s,) = agreed([time.monotonic() - began], group)
    size = LARGE
    # One that is not counted, and two that are.
    while size > PROBE and 3 * probe_s * size / PROBE > share_s - spent_s:
        size //= 2
    large = repeated(size, group, share_s - spent_s, 2, 10)
    seconds = median(large.times)
    sent = {name: grown for name, grown in large.sent.items() if (name == "lo") == (len(on) == 1)}
    interface, grown = grown_most(sent) or ("", 0)
    # On loopback one interface counts what every rank sends; between hosts, one neighbour's share.
    due = ring_bytes(size, count) * len(large.times) * (count if len(on) == 1 else 1)
    return Link(
        ranks=tuple(ranks),
        hosts=on,
        size=size,
        seconds=seconds,
        spread=1 - min(large.times) / seconds,
        mbit=rate_mbit(size, count, seconds),
        small_s=median(small.times),
        latency_s=median(latency.times),
        busy=None if here().type == "cuda" else large.busy,
        interface=interface,
        counted=grown / due if interface else None,
    )


@dataclass(frozen=True)
class Repeated:
    """The same all-reduce, some times."""

    times: list[float]
    busy: float
    sent: dict[str, int]


def repeated(size: int, group: Group, share_s: float, least: int, most: int) -> Repeated:
    """As often as fits into some seconds; one more goes before, which is not counted."""
    tensor = blank(size)
    (first_s,) = agreed([timed(tensor, group)], group)
    times = min(most, max(least, int(share_s / max(first_s, 1e-9)) - 1))
    before, processor_s = sent_bytes(), time.process_time()
    took = [timed(tensor, group) for _ in range(times)]
    busy = (time.process_time() - processor_s) / max(sum(took), 1e-9)
    sent = grown(before, sent_bytes())
    (busy, *took) = agreed([busy, *took], group)
    return Repeated(took, busy, sent)


def measure_gradient(size: int, link: Link, share_s: float) -> tuple[float, bool]:
    """Seconds to exchange so many bytes between all ranks, and whether that was measured: what
    would take too long, or too much memory, is computed from the rate."""
    expected_s = allreduce_s(size, len(link.ranks), link.mbit)
    if size <= 0 or size > MOST_GRADIENT or expected_s > share_s:
        return expected_s, False
    if expected_s > share_s / 3:
        (seconds,) = agreed([timed(blank(size), None)], None)
        return seconds, True
    return median(repeated(size, None, share_s, 2, 5).times), True


def sending(world: int, seconds: float = 3.0) -> tuple[float, float] | None:
    """Bytes a second on the wire, each way, of an all-reduce over all ranks of the default group,
    and the CPU time that a byte takes: no link is quicker than that. The same numbers on every
    rank, each of which calls this. None for one rank.

    Begins small and grows while it is quick: also on a slow network about so many seconds."""
    if world == 1:
        return None
    began, size = time.monotonic(), 256 << 10
    agreed([timed(blank(SMALL), None)], None)
    rates: dict[int, float] = {}
    cpu_s: dict[int, float] = {}
    for _ in range(6):
        tensor, used = blank(size), time.process_time()
        took = timed(tensor, None)
        used = time.process_time() - used
        took_s, used_s, spent_s = agreed([took, used, time.monotonic() - began], None)
        rates[size] = max(rates.get(size, 0.0), ring_bytes(size, world) / max(took_s, 1e-9))
        cpu_s[size] = used_s / ring_bytes(size, world)
        larger = min(size * 4, LARGE)
        if spent_s + took_s * larger / size > seconds:
            break
        size = larger
    # Small ones tell more of latency, and of what a shaped link lets through at once.
    return rates[max(rates)], cpu_s[max(rates)]


def timed(tensor: Tensor, group: Group) -> float:
    """Seconds of one all-reduce, as this rank sees them."""
    began = time.perf_counter()
    dist.all_reduce(tensor, group=group)
    if tensor.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - began


def agreed(numbers: Sequence[float], group: Group = None) -> list[float]:
    """For each place of a list, the largest number that any rank has there."""
    tensor = torch.tensor(numbers, dtype=torch.float64, device=here())
    dist.all_reduce(tensor, dist.ReduceOp.MAX, group=group)
    return [float(number) for number in tensor.tolist()]


def exchanged(text: str) -> list[str]:
    """What each rank says, on every rank."""
    said = text.encode()
    longest = int(agreed([len(said)])[0])
    mine = torch.frombuffer(bytearray(said.ljust(longest)), dtype=torch.uint8).to(here())
    theirs = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(theirs, mine)
    return [bytes(words.tolist()).decode() for words in theirs]


def blank(size: int) -> Tensor:
    """So many bytes to sum up, that no link can compress; the chance of training is left alone."""
    chance = torch.Generator().manual_seed(0)
    return torch.rand(max(1, size // 4), generator=chance).to(here())


def here() -> torch.device:
    """Where training would have its gradients."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def named(ranks: Sequence[int], hosts: Sequence[str]) -> list[str]:
    """Ranks as people tell them apart: by host where they are on several."""
    names = [hosts[rank] for rank in ranks]
    return names if len(set(names)) > 1 else [f"rank {rank}" for rank in ranks]
