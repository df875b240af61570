"""The newest offer of every machine, and the offers of a day of the past.

Invariant: of each provider the newer table counts: the one of the package, or the user's, which
`stoker prices --refresh` writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from stoker.errors import BadRequest
from stoker.price.corrections import is_gpu
from stoker.price.history import days, local_offers_on, offers_on
from stoker.price.offer import Offer, over_regions
from stoker.price.table import packaged_offers, user_offers
from stoker.recipe.resolve import nearest
from stoker.text import shown

__all__ = ["Offer", "local_offers", "newest_offers", "offers_on", "select_offers"]


def newest_offers(folder: Path | None = None) -> list[Offer]:
    """Every machine once, at its cheapest newest prices, by provider and name. `folder` has the
    user's tables, by default `table.user_folder()`. Raises BadRequest where one is damaged."""
    tables: dict[str, list[Offer]] = {}
    for offer in packaged_offers():
        tables.setdefault(offer.provider, []).append(offer)
    for provider, offers in user_offers(folder).items():
        if provider not in tables or offers[0].date >= tables[provider][0].date:
            tables[provider] = over_regions(offers)
    return [offer for provider in sorted(tables) for offer in tables[provider]]


def day_in_use(provider: str) -> str:
    """The day of the table that counts for a provider; empty where there is none that is whole."""
    offers = [offer for offer in packaged_offers() if offer.provider == provider]
    with suppress(BadRequest):
        offers += user_offers(only=provider).get(provider, [])
    return max((offer.date for offer in offers), default="")


def local_offers(provider: str, folder: Path | None = None) -> list[Offer]:
    """A provider's newest offers zone by zone, or region by region; empty where the newest table
    has prices over all regions alone. Raises BadRequest where a user's table is damaged."""
    offers = user_offers(folder).get(provider, [])
    last = days()[-1]
    if provider == "aws" and (not offers or offers[0].date < last.isoformat()):
        return local_offers_on(last)
    return offers


def select_offers(
    offers: Sequence[Offer], provider: str = "", gpu: str = "", most: float = float("inf")
) -> list[Offer]:
    """The offers of a provider, with a GPU and at most at a price; empty texts ask for any. Raises
    BadRequest where there is none."""
    providers = sorted({offer.provider for offer in offers})
    if provider and provider not in providers:
        raise BadRequest(
            f"no prices of '{shown(provider)}': there are those of {', '.join(providers)}"
        )
    gpus = sorted({offer.gpu for offer in offers})
    if gpu and not any(is_gpu(name, gpu) for name in gpus):
        near = nearest(gpu, gpus)
        hint = f"did you mean '{near}'?" if near else f"there are {', '.join(gpus)}"
        raise BadRequest(f"no machine with the GPU '{shown(gpu)}': {hint}")
    fitting = [
        offer
        for offer in offers
        if provider in ("", offer.provider) and (not gpu or is_gpu(offer.gpu, gpu))
    ]
    if not fitting:
        own = ", ".join(sorted({offer.gpu for offer in offers if offer.provider == provider}))
        raise BadRequest(f"{provider} has no machine with the GPU '{shown(gpu)}': it has {own}")
    answers = [offer for offer in fitting if offer.cheapest <= most]
    if not answers:
        least = min(offer.cheapest for offer in fitting)
        raise BadRequest(f"the cheapest costs ${least:,.4g} an hour: raise --max-price")
    return answers
