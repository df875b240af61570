"""Arithmetic of the gradient exchange: bytes on the wire, seconds, ports, time that is not hidden.

Pure functions on plain numbers. Rates are in Mbit/s, each way, as ports are sold: a port of 100
Mbit/s sends that much and receives that much at the same time.
"""

from __future__ import annotations

PORTS_MBIT = (10, 100, 1_000, 2_500, 5_000, 10_000, 25_000, 40_000, 50_000, 100_000)
LEAST_OF_PORT, MOST_OF_PORT = 0.70, 1.02
"""The share of a port's rate that a transfer limited by it reaches: headers cost a few percent."""
USUAL_OF_PORT = 0.85
STEADY, VERY_STEADY = 0.15, 0.03
"""How much faster than its median a transfer limited by a port can be, as a share. The second value
applies below USUAL_OF_PORT, where other limits explain the rate as well."""
BUSY = 0.70
"""If a process uses the CPU for more than this share of a transfer, the CPU is the limit."""
BACKWARD = 2 / 3
"""The share of the compute time that is the backward pass, which can hide the exchange."""
COSTLY = 0.20
"""If more than this share of a step waits for the exchange, the link is too slow for the model."""


def ring_bytes(size: float, ranks: int) -> float:
    """Bytes that each rank sends, and receives, in a ring all-reduce of so many bytes."""
    return 2 * (ranks - 1) / ranks * size


def allreduce_s(size: float, ranks: int, rate_mbit: float) -> float:
    """The least seconds of an all-reduce of so many bytes, at a rate on the wire."""
    return ring_bytes(size, ranks) * 8 / (rate_mbit * 1e6) if ranks > 1 else 0.0


def rate_mbit(size: float, ranks: int, seconds: float) -> float:
    """The rate on the wire, each way, of an all-reduce that took so long."""
    return ring_bytes(size, ranks) * 8 / max(seconds, 1e-9) / 1e6


def port_mbit(rate: float, spread: float = 0.0, busy: float | None = None) -> int | None:
    """The port that limits a transfer; None if none fits, it is unsteady or the CPU limits it."""
    nearest = next((port for port in PORTS_MBIT if rate <= MOST_OF_PORT * port), None)
    if nearest is None or rate < LEAST_OF_PORT * nearest or (busy is not None and busy > BUSY):
        return None
    steady = STEADY if rate >= USUAL_OF_PORT * nearest else VERY_STEADY
    return nearest if spread <= steady else None


def port_for(rate: float) -> int | None:
    """The smallest port that carries a rate; None where no port does."""
    return next((port for port in PORTS_MBIT if rate <= 0.9 * port), None)


def port_words(mbit: int) -> str:
    """100 Mbit/s, 2.5 Gbit/s."""
    return f"{mbit / 1000:g} Gbit/s" if mbit >= 1000 else f"{mbit} Mbit/s"


def exposed_s(exchange_s: float, compute_s: float, last: float = 1.0) -> float:
    """Seconds of the exchange that the last micro-batch's backward pass (a share) cannot hide."""
    return max(0.0, exchange_s - BACKWARD * last * compute_s)


def exposed_share(exchange_s: float, compute_s: float, last: float = 1.0) -> float:
    """The least share of a step that waits for the exchange."""
    exposed = exposed_s(exchange_s, compute_s, last)
    return exposed / (compute_s + exposed) if exposed else 0.0


def images_ceiling(batch: int, exchange_s: float) -> float:
    """Images a second if computing took no time: a step of a global batch takes one exchange."""
    return batch / exchange_s if exchange_s > 0 else float("inf")
