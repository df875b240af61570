"""Contradictions in what the user wants to rent: refused before anything is priced.

Invariant: every refusal states both figures and the change that removes the contradiction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from stoker.errors import BadRequest
from stoker.price.history import local_offers_on
from stoker.price.offers import Offer, local_offers
from stoker.text import shown

CHECKPOINTS_KEPT = 4
"""Checkpoints that lie on the disk at once: the last ones, the best one, and one being written."""
GB = 1e9


@dataclass(frozen=True)
class RentalRequest:
    """What the user says of the machine to rent; empty or None where it is left open."""

    zone: str = ""
    volume_zone: str = ""
    disk_gb: float | None = None


def check_request(request: RentalRequest, data_bytes: int, checkpoint_bytes: int) -> None:
    """Raise BadRequest for request that contradict each other or the run."""
    zone, volume = request.zone, request.volume_zone
    if zone and volume and zone != volume:
        raise BadRequest(
            f"a machine in {shown(zone)} cannot mount a volume in {shown(volume)}: use "
            f"--zone {shown(volume)}, or copy the volume"
        )
    data_gb, saved_gb = data_bytes / GB, CHECKPOINTS_KEPT * checkpoint_bytes / GB
    if request.disk_gb is not None and request.disk_gb < data_gb + saved_gb:
        raise BadRequest(
            f"a disk of {request.disk_gb:g} GB is too small: the set has {data_gb:.1f} GB, and "
            f"{CHECKPOINTS_KEPT} checkpoints have {saved_gb:.1f} GB: use "
            f"--disk {int((data_gb + saved_gb) * 1.1) + 1}"
        )


def offers_in_zone(zone: str, day: date | None) -> list[Offer]:
    """The offers of AWS in a zone or a region, of today or of a day. Raises BadRequest where there
    are none. A table has the cheapest zone of each region alone."""
    offers = local_offers_on(day) if day else local_offers("aws")
    chosen = [offer for offer in offers if zone in (offer.zone, offer.region)]
    if not chosen:
        zones = sorted({offer.zone for offer in offers if offer.zone})
        raise BadRequest(
            f"no spot price of the zone '{shown(zone)}': the table has the cheapest zone of each "
            f"region, {', '.join(zones[:8])}, ...; name a region, or one of these"
        )
    return chosen


def offers_under(bid: float, offers: Sequence[Offer]) -> list[Offer]:
    """The offers whose spot price is not above a bid. Raises BadRequest where none is."""
    priced = [offer for offer in offers if offer.spot is not None]
    if not priced:
        raise BadRequest("--bid needs a spot price, and none of these machines has one")
    cheapest = min(priced, key=lambda offer: offer.spot or 0.0)
    if bid < (cheapest.spot or 0.0):
        raise BadRequest(
            f"a bid of ${bid:g} an hour is under the lowest spot price, ${cheapest.spot:g} for "
            f"{shown(cheapest.provider)} {shown(cheapest.machine)} on {cheapest.date}: no machine "
            "starts for it; raise --bid"
        )
    return [offer for offer in priced if (offer.spot or 0.0) <= bid]
