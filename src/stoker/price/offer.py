"""One machine that a provider rents, with its prices.

Invariants: dollars are US dollars for an hour of the whole machine, and never without a source and
a date. A price that a provider does not offer is None.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A machine at its cheapest prices: over all regions, or in one zone."""

    provider: str
    machine: str
    gpu: str
    """One name at every provider, see `corrections`."""
    gpus: int
    gpu_memory_gib: float | None
    vcpus: float
    memory_gib: float
    on_demand: float | None
    on_demand_median: float | None = None
    """Over the regions that offer the machine."""
    on_demand_region: str = ""
    spot: float | None
    spot_median: float | None
    region: str
    """Where the spot price is to be had; without one, where the on-demand price is."""
    zone: str
    source: str
    date: str
    correction: str = ""
    """What the catalogue got wrong and the table has right; mostly empty."""

    @property
    def cheapest(self) -> float:
        """The lower one of the two prices; infinite without any."""
        return min([p for p in (self.on_demand, self.spot) if p is not None], default=float("inf"))


def over_regions(offers: Iterable[Offer]) -> list[Offer]:
    """One offer for each machine: its cheapest prices, and the medians over the regions, of each of
    which the cheapest zone counts."""
    machines: dict[tuple[str, str], list[Offer]] = {}
    for offer in offers:
        machines.setdefault((offer.provider, offer.machine), []).append(offer)
    return [summary_of(machines[key]) for key in sorted(machines)]


def summary_of(offers: list[Offer]) -> Offer:
    """The offers of one machine in several zones as one."""
    spots = [offer for offer in offers if offer.spot is not None]
    demands = [offer for offer in offers if offer.on_demand is not None]
    spot = min(spots, key=lambda o: (o.spot or 0, o.zone), default=None)
    demand = min(demands, key=lambda o: (o.on_demand or 0, o.region), default=None)
    return replace(
        spot or demand or offers[0],
        on_demand=demand.on_demand if demand else None,
        on_demand_median=median_of({o.region: o.on_demand or 0.0 for o in demands}.values()),
        on_demand_region=demand.region if demand else "",
        spot=spot.spot if spot else None,
        spot_median=median_of(cheapest_by_region(spots).values()),
    )


def cheapest_by_region(offers: Iterable[Offer]) -> dict[str, float]:
    prices: dict[str, float] = {}
    for offer in offers:
        if offer.spot is not None:
            prices[offer.region] = min(offer.spot, prices.get(offer.region, offer.spot))
    return prices


def median_of(values: Iterable[float]) -> float | None:
    prices = list(values)
    return round(statistics.median(prices), 5) if prices else None
