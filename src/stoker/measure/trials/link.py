"""How fast ranks can exchange gradients: all-reduce alone, through the backend of training.

Invariants: every rank calls the same functions in the same order, and ranks agree on the number of
repeats first, so that none waits for one that has moved on. The first all-reduce of a kind is not
counted. Sizes shrink on slow links, to bound the time. Results are equal on all ranks, not pickled.
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

from stoker.host.counters import growth
from stoker.host.interfaces import busiest_interface, card_mbit, sent_bytes
from stoker.measure.ports import allreduce_s, port_mbit, rate_mbit, ring_bytes

SMALL, PROBE, LARGE = 64 << 10, 1 << 20, 16 << 20
"""Bytes of an all-reduce: for the latency, for a first estimate, for the rate."""
MOST_PAIRED = 8
"""Up to this many hosts (or ranks of one host) every pair is measured; of more, neighbours."""
PAIRS_SHARE, ALL_SHARE, GRADIENT_SHARE = 0.35, 0.25, 0.4
"""Shares of the time budget."""
MOST_GRADIENT = 1 << 30
"""The time of a gradient of more bytes is computed, not measured: the memory may not suffice."""
Group = Any
"""A process group of torch.distributed; None stands for all ranks."""
OnStage = Callable[[str], None]


@dataclass(frozen=True)
class Link:
    """An all-reduce between some ranks while the others send nothing."""

    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    """The hosts of these ranks, each once."""
    size: int
    """Bytes of the larger all-reduce."""
    seconds: float
    """Its duration: the median, on the slowest rank."""
    spread: float
    """How much faster than the median the fastest was, as a share of the median."""
    mbit: float
    """On the wire, in each direction."""
    small_s: float
    """Duration of an all-reduce of 64 KiB."""
    latency_s: float
    """Duration of an all-reduce of one number."""
    busy: float | None
    """CPU seconds a second of the busiest rank; None with a GPU, where it means nothing."""
    interface: str
    """The interface that sent the bytes, on the host of the first rank; empty if unknown."""
    counted: float | None
    """Bytes that this interface sent, as a share of the bytes that had to be sent."""

    @property
    def loopback(self) -> bool:
        return len(self.hosts) == 1

    @property
    def port_mbit(self) -> int | None:
        """The rate of the port that seems to limit the link; None if no port does."""
        return None if self.loopback else port_mbit(self.mbit, self.spread, self.busy)


@dataclass(frozen=True)
class LinkReport:
    """The links between all ranks, as plain data."""

    backend: str
    hosts: tuple[str, ...]
    """The host of each rank."""
    pairs: tuple[Link, ...]
    chosen: str
    """Which pairs were measured, as text."""
    all_ranks: Link
    gradient_bytes: int
    gradient_s: float
    """Duration of the exchange of this model's gradient, once a step."""
    gradient_measured: bool
    """False if that duration was computed from the rate."""
    cards_mbit: dict[str, int]
    """The rate that a host's network card has negotiated, where it is known."""
    nccl: str
    """The transport that NCCL names in its log."""
    took_s: float

    @property
    def world(self) -> int:
        return len(self.hosts)

    @property
    def slowest(self) -> Link:
        return min((*self.pairs, self.all_ranks), key=lambda link: link.mbit)

    def as_data(self) -> dict[str, Any]:
        return {"world": self.world, **asdict(self)}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> LinkReport:
        """The report that `as_data` returned, also after JSON."""
        values = {name: value for name, value in data.items() if name != "world"}
        values["hosts"] = tuple(values["hosts"])
        values["pairs"] = tuple(link_from(pair) for pair in values["pairs"])
        return cls(**{**values, "all_ranks": link_from(values["all_ranks"])})


def link_from(data: Mapping[str, Any]) -> Link:
    return Link(**{**data, "ranks": tuple(data["ranks"]), "hosts": tuple(data["hosts"])})


def pairs_of(hosts: Sequence[str]) -> tuple[list[tuple[int, int]], str]:
    """The pairs of ranks to measure, given the host of each rank; and a description of them."""
    firsts = [hosts.index(host) for host in dict.fromkeys(hosts)]
    several = len(firsts) > 1
    members = firsts if several else list(range(len(hosts)))
    kind = "hosts, by the first rank of each" if several else "ranks"
    if len(members) <= MOST_PAIRED:
        return list(combinations(members, 2)), f"every pair of {kind}"
    ring = list(zip(members, [*members[1:], members[0]], strict=True))
    return [(min(pair), max(pair)) for pair in ring], f"neighbours in a ring of {kind}"


def measure_links(
    host: str, gradient_bytes: int, budget_s: float, on_stage: OnStage, transport: Callable[[], str]
) -> LinkReport:
    """Measure the links between all ranks of the default group. Each calls this, all return the
    same. `on_stage` receives what is measured next, `transport` returns what NCCL has logged."""
    began = time.monotonic()
    on_stage("the first messages between all ranks")
    settings = gather_data([host, gradient_bytes, budget_s])
    hosts = [str(name) for name, _, _ in settings]
    # Hosts may have been started with different models: the settings of rank 0 apply.
    gradient_bytes, budget_s = int(settings[0][1]), float(settings[0][2])
    pairs, chosen = pairs_of(hosts)
    links = measure_pairs(pairs, hosts, budget_s * PAIRS_SHARE, on_stage)
    on_stage("all ranks together")
    all_ranks = measure_link(None, range(len(hosts)), hosts, budget_s * ALL_SHARE)
    on_stage("this model's gradient")
    gradient_s, measured = measure_gradient(gradient_bytes, all_ranks, budget_s * GRADIENT_SHARE)
    on_stage("the last messages between all ranks")
    card = card_mbit(all_ranks.interface)
    results = gather_data([asdict(all_ranks), list(map(asdict, links)), card, transport()])
    # Both ranks of a pair have measured it: the figures of the lower one are kept.
    kept = {
        tuple(link["ranks"]): link_from(link)
        for rank, (_, rank_links, _, _) in enumerate(results)
        for link in rank_links
        if link["ranks"][0] == rank
    }
    return LinkReport(
        backend="nccl" if gradient_device().type == "cuda" else "gloo",
        hosts=tuple(hosts),
        pairs=tuple(kept[pair] for pair in pairs),
        chosen=chosen,
        all_ranks=link_from(results[0][0]),
        gradient_bytes=gradient_bytes,
        gradient_s=gradient_s,
        gradient_measured=measured,
        cards_mbit={hosts[rank]: int(mbit) for rank, (*_, mbit, _) in enumerate(results) if mbit},
        nccl=next((str(nccl) for *_, nccl in results if nccl), ""),
        took_s=time.monotonic() - began,
    )


def measure_pairs(
    pairs: Sequence[tuple[int, int]], hosts: Sequence[str], share_s: float, on_stage: OnStage
) -> list[Link]:
    """Measure one pair after the other; returns the links that this rank is part of."""
    links = []
    for pair in pairs:
        on_stage(" - ".join(rank_labels(pair, hosts)))
        group = dist.new_group(list(pair))
        if dist.get_rank() in pair:
            links.append(measure_link(group, pair, hosts, share_s / len(pairs)))
            dist.destroy_process_group(group)
        max_over_ranks([0.0])  # the ranks outside the pair wait here, and send nothing
    return links


def measure_link(group: Group, ranks: Sequence[int], hosts: Sequence[str], share_s: float) -> Link:
    """All-reduce one number, 64 KiB and up to 16 MiB within a group, in about `share_s` seconds."""
    began, count = time.monotonic(), len(ranks)
    own_hosts = tuple(dict.fromkeys(hosts[rank] for rank in ranks))
    loopback = len(own_hosts) == 1
    latency = repeat_allreduce(1, group, share_s * 0.05, 3, 30)
    small = repeat_allreduce(SMALL, group, share_s * 0.10, 2, 20)
    (probe_s,) = max_over_ranks([time_allreduce(random_tensor(PROBE), group)], group)
    (spent_s,) = max_over_ranks([time.monotonic() - began], group)
    size = LARGE
    # One all-reduce that is not counted, and two that are, have to fit into the time.
    while size > PROBE and 3 * probe_s * size / PROBE > share_s - spent_s:
        size //= 2
    large = repeat_allreduce(size, group, share_s - spent_s, 2, 10)
    seconds = median(large.times)
    sent = {name: grown for name, grown in large.sent.items() if (name == "lo") == loopback}
    interface, interface_bytes = busiest_interface(sent) or ("", 0)
    # Loopback counts what every rank sends; a card counts what the rank of this host sends.
    due = ring_bytes(size, count) * len(large.times) * (count if loopback else 1)
    return Link(
        ranks=tuple(ranks),
        hosts=own_hosts,
        size=size,
        seconds=seconds,
        spread=1 - min(large.times) / seconds,
        mbit=rate_mbit(size, count, seconds),
        small_s=median(small.times),
        latency_s=median(latency.times),
        busy=None if gradient_device().type == "cuda" else large.busy,
        interface=interface,
        counted=interface_bytes / due if interface else None,
    )


@dataclass(frozen=True)
class Repeats:
    """All-reduces of one size: times and CPU share of the slowest rank, bytes of each interface."""

    times: list[float]
    busy: float
    sent: dict[str, int]


def repeat_allreduce(size: int, group: Group, share_s: float, least: int, most: int) -> Repeats:
    """All-reduce as often as fits into `share_s` seconds, after one that is not counted."""
    tensor = random_tensor(size)
    (first_s,) = max_over_ranks([time_allreduce(tensor, group)], group)
    count = min(most, max(least, int(share_s / max(first_s, 1e-9)) - 1))
    sent_before, cpu_before = sent_bytes(), time.process_time()
    times = [time_allreduce(tensor, group) for _ in range(count)]
    busy = (time.process_time() - cpu_before) / max(sum(times), 1e-9)
    sent = growth(sent_before, sent_bytes())
    (busy, *times) = max_over_ranks([busy, *times], group)
    return Repeats(times, busy, sent)


def measure_gradient(size: int, link: Link, share_s: float) -> tuple[float, bool]:
    """Seconds to all-reduce `size` bytes, and whether measured: what costs too much is computed."""
    expected_s = allreduce_s(size, len(link.ranks), link.mbit)
    if size <= 0 or size > MOST_GRADIENT or expected_s > share_s:
        return expected_s, False
    if expected_s > share_s / 3:
        return max_over_ranks([time_allreduce(random_tensor(size))])[0], True
    return median(repeat_allreduce(size, None, share_s, 2, 5).times), True


def measure_send_rate(world: int, seconds: float = 3.0) -> tuple[float, float] | None:
    """Bytes a second on the wire, each way, of an all-reduce over the default group, and the CPU
    seconds of a byte, which limit the rate on any link. Each rank calls this, and all return the
    same; None for one rank. Sends more while that is fast, so a slow link takes about as long."""
    if world == 1:
        return None
    began, size = time.monotonic(), 256 << 10
    max_over_ranks([time_allreduce(random_tensor(SMALL))])
    rate = cpu_s = 0.0
    for _ in range(6):
        tensor, cpu_before = random_tensor(size), time.process_time()
        own_s = time_allreduce(tensor)
        own_cpu_s = time.process_time() - cpu_before
        took_s, used_s, spent_s = max_over_ranks([own_s, own_cpu_s, time.monotonic() - began])
        rate = max(rate, ring_bytes(size, world) / max(took_s, 1e-9))
        cpu_s = used_s / ring_bytes(size, world)
        larger = min(size * 4, LARGE)
        if spent_s + took_s * larger / size > seconds:
            break
        if larger > size:
            # Small sizes show the latency, and the burst that a shaped link lets through.
            size, rate = larger, 0.0
    return rate, cpu_s


def time_allreduce(tensor: Tensor, group: Group = None) -> float:
    """Seconds of one all-reduce on this rank."""
    began = time.perf_counter()
    dist.all_reduce(tensor, group=group)
    if tensor.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - began


def max_over_ranks(numbers: Sequence[float], group: Group = None) -> list[float]:
    """For each position of a list, the largest number that any rank has there."""
    tensor = torch.tensor(numbers, dtype=torch.float64, device=gradient_device())
    dist.all_reduce(tensor, dist.ReduceOp.MAX, group=group)
    return [float(number) for number in tensor.tolist()]


def gather_data(data: Any) -> list[Any]:
    """The data of every rank, which must be JSON, on every rank."""
    encoded = json.dumps(data).encode()
    longest = int(max_over_ranks([len(encoded)])[0])
    padded = bytearray(encoded.ljust(longest))
    own = torch.frombuffer(padded, dtype=torch.uint8).to(gradient_device())
    every = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(every, own)
    return [json.loads(bytes(tensor.tolist())) for tensor in every]


def random_tensor(size: int) -> Tensor:
    """`size` bytes that no link can compress, without touching the random state of training."""
    generator = torch.Generator().manual_seed(0)
    return torch.rand(max(1, size // 4), generator=generator).to(gradient_device())


def gradient_device() -> torch.device:
    """The device on which training has its gradients."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def rank_labels(ranks: Sequence[int], hosts: Sequence[str]) -> list[str]:
    """A label for each rank: its host if they are on several, else its number."""
    names = [hosts[rank] for rank in ranks]
    return names if len(set(names)) > 1 else [f"rank {rank}" for rank in ranks]
