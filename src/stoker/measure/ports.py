"""Arithmetic of exchanging gradients: bytes on the wire, seconds, ports, what stays in the open.

Pure functions on plain numbers. Rates are in Mbit/s, each way, as people speak of ports: a port of
100 Mbit/s sends that much and receives that much at the same time.
"""

from __future__ import annotations

PORTS_MBIT = (10, 100, 1_000, 2_500, 5_000, 10_000, 25_000, 40_000, 50_000, 100_000)
LEAST_OF_PORT, MOST_OF_PORT = 0.70, 1.02
"""Which share of a port's rate a transfer reaches that the port caps: headers cost some percent."""
USUAL_OF_PORT = 0.85
STEADY, VERY_STEADY = 0.15, 0.03
"""A transfer that a port caps is at times slower than usual, but never quicker by more than this:
the second where it reaches less of the port than is usual, which other limits explain as well."""
BUSY = 0.70
"""A process that computes for so much of the time is itself what caps a transfer."""
BACKWARD = 2 / 3
"""The share of computing that is the backward pass: at best it hides the exchange."""
COSTLY = 0.20
"""The share of a step in the open above which the network is too slow for a model."""


def ring_bytes(size: float, ranks: int) -> float:
    """Bytes that each rank sends, and receives, to sum so many bytes over all ranks in a ring."""
    return 2 * (ranks - 1) / ranks * size


def allreduce_s(size: float, ranks: int, rate_mbit: float) -> float:
    """Seconds that summing so many bytes takes at best, at a rate on the wire."""
    return ring_bytes(size, ranks) * 8 / (rate_mbit * 1e6) if ranks > 1 else 0.0


def rate_mbit(size: float, ranks: int, seconds: float) -> float:
    """The rate on the wire, each way, of an all-reduce that took so long."""
    return ring_bytes(size, ranks) * 8 / max(seconds, 1e-9) / 1e6


def port_mbit(rate: float, spread: float = 0.0, busy: float | None = None) -> int | None:
    """The port that seems to cap a transfer; None where no port explains its rate, where it is
    unsteady, or where the processor was the limit."""
    nearest = next((port for port in PORTS_MBIT if rate <= MOST_OF_PORT * port), None)
    if nearest is None or rate < LEAST_OF_PORT * nearest or (busy is not None and busy > BUSY):
        return None
    steady = STEADY if rate >= USUAL_OF_PORT * nearest else VERY_STEADY
    return nearest if spread <= steady else None


def port_for(rate: float) -> int | None:
    """The smallest port on which a rate can be had; None where it needs more than any."""
    return next((port for port in PORTS_MBIT if rate <= 0.9 * port), None)


def port_words(mbit: int) -> str:
    """100 Mbit/s, 2.5 Gbit/s."""
    return f"{mbit / 1000:g} Gbit/s" if mbit >= 1000 else f"{mbit} Mbit/s"


def exposed_s(exchange_s: float, compute_s: float, last: float = 1.0) -> float:
    """Seconds of the exchange that nothing can hide, of a step that computes for so long. `last` is
    the share of its images that go through at last: gradients travel with these only."""
    return max(0.0, exchange_s - BACKWARD * last * compute_s)


def exposed_share(exchange_s: float, compute_s: float, last: float = 1.0) -> float:
    """The share of a step that is waiting for the network, at best."""
    exposed = exposed_s(exchange_s, compute_s, last)
    return exposed / (compute_s + exposed) if exposed else 0.0


def images_ceiling(batch: int, exchange_s: float) -> float:
    """Images a second that the network lets through, were computing free: a step of a (global)
    batch takes at least one exchange."""
    return batch / exchange_s if exchange_s > 0 else float("inf")
