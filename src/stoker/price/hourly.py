"""The price of a machine for an hour: never without its source and date."""

from __future__ import annotations

from dataclasses import dataclass

STATED, ON_DEMAND, SPOT = "stated", "on demand", "spot"
"""Who sets a price: the user with a flag, or a provider, who may change the second kind daily."""


@dataclass(frozen=True, kw_only=True)
class HourlyPrice:
    """US dollars for an hour of one machine, with all of its GPUs."""

    dollars: float
    kind: str
    """One of STATED, ON_DEMAND, SPOT."""
    source: str
    """Who says so, in words: a flag, or a table by its name."""
    date: str
    """The day of the price, such as 2026-08-22."""
    provider: str = ""
    machine: str = ""
    zone: str = ""

    def text(self) -> str:
        """The price in words, such as '$3.06 an hour (spot, SkyPilot catalogue, 2026-08-22)'."""
        return f"${self.dollars:,.4g} an hour ({self.kind}, {self.source}, {self.date})"
