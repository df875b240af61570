"""Which rented machine this is, and what an hour of it costs.

Invariants: the metadata service is asked only where the firmware names a provider, or the user
does. Its answers are untrusted texts: short, of a few characters, and looked up in the price table.
All requests together take LONGEST_S at most. Nothing here fails: where there is no price, there is
a reason. GCP does not name the GPUs that are attached to an n1 machine: it has no price.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stoker.errors import StokerError
from stoker.price.hourly import ON_DEMAND, SPOT, STATED, HourlyPrice
from stoker.price.offer import Offer, over_regions
from stoker.price.offers import local_offers, newest_offers
from stoker.price.table import today
from stoker.survive.spot import Service, provider_here
from stoker.text import shown

LONGEST_S = 4.0
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}", re.ASCII)
AWS, GCP = "/latest/meta-data/", "/computeMetadata/v1/instance/"
AZURE = "/metadata/instance/compute?api-version=2021-02-01"


class NoAnswer(Exception):
    """The metadata service does not say what was asked; the message says why."""


@dataclass(frozen=True, kw_only=True)
class RentedMachine:
    """This machine by its provider's names."""

    provider: str
    machine: str
    region: str
    zone: str
    spot: bool


def name_in(text: str) -> str:
    """The name that an answer is. Raises NoAnswer where it is none."""
    if not NAME.fullmatch(text.strip()):
        raise NoAnswer(f"it answers '{shown(text[:80])}'")
    return text.strip()


def aws(service: Service) -> RentedMachine:
    def ask(path: str) -> str:
        status, text = service.ask_with_token(AWS + path)
        if status != 200:
            raise NoAnswer(f"it answers {status} to {path}")
        return name_in(text)

    return RentedMachine(
        provider="aws",
        machine=ask("instance-type"),
        region=ask("placement/region"),
        zone=ask("placement/availability-zone-id"),
        spot=ask("instance-life-cycle") == "spot",
    )


def gcp(service: Service) -> RentedMachine:
    def ask(path: str) -> str:
        status, text = service.ask(GCP + path, {"Metadata-Flavor": "Google"})
        if status != 200:
            raise NoAnswer(f"it answers {status} to {path}")
        return name_in(text.rpartition("/")[2])  # of projects/N/zones/us-central1-a the last part

    zone = ask("zone")
    return RentedMachine(
        provider="gcp",
        machine=ask("machine-type"),
        region=zone.rpartition("-")[0],
        zone=zone,
        spot=ask("scheduling/preemptible") == "TRUE",
    )


def azure(service: Service) -> RentedMachine:
    status, text = service.ask(AZURE, {"Metadata": "true"})
    answer = json.loads(text) if status == 200 else None
    if not isinstance(answer, dict):
        raise NoAnswer(f"it answers {status} to instance/compute")
    return RentedMachine(
        provider="azure",
        machine=name_in(str(answer.get("vmSize"))),
        region=name_in(str(answer.get("location"))),
        zone="",
        spot=answer.get("priority") in ("Spot", "Low"),
    )


PROVIDERS: dict[str, Callable[[Service], RentedMachine]] = {"aws": aws, "gcp": gcp, "azure": azure}


def machine_here(provider: str) -> RentedMachine | str:
    """This machine as its provider's metadata service describes it, or why it is unknown. Takes
    LONGEST_S at most, whatever the service does."""
    answers: list[RentedMachine | str] = []

    def look() -> None:
        try:
            answers.append(PROVIDERS[provider](Service()))
        except NoAnswer as error:
            answers.append(f"{provider}'s metadata service does not name this machine: {error}")
        except Exception as error:  # a service may answer anything
            kind = type(error).__name__
            answers.append(f"{provider}'s metadata service gives no valid answer ({kind})")

    thread = threading.Thread(target=look, name="stoker-machine", daemon=True)
    thread.start()
    thread.join(LONGEST_S)
    late = f"{provider}'s metadata service does not answer within {LONGEST_S:g} s"
    return answers[0] if answers else late


def price_here(stated: float | None, spot_notice: str) -> HourlyPrice | None:
    """What an hour of this machine costs: what the user states, else what the newest table has for
    the machine that the metadata service names; None where neither is known. `spot_notice` is the
    recipe's key: auto, off, or a provider."""
    price = price_or_reason(stated, spot_notice)
    return price if isinstance(price, HourlyPrice) else None


def why_unknown(spot_notice: str) -> str:
    """Why `price_here` has no price unless one is stated; empty where it has one."""
    price = price_or_reason(None, spot_notice)
    return price if isinstance(price, str) else ""


def price_or_reason(
    stated: float | None, spot_notice: str, folder: Path | None = None
) -> HourlyPrice | str:
    """The price of this machine, or why it is unknown. `folder` has the user's tables."""
    if stated is not None:
        return HourlyPrice(
            dollars=stated, kind=STATED, source="--price-per-hour", date=today().isoformat()
        )
    provider = provider_here(spot_notice)
    if provider is None:
        off = spot_notice == "off"
        why = "spot_notice is off" if off else "this is no machine of AWS, GCP or Azure"
        return f"{why}: --price-per-hour states a price"
    machine = machine_here(provider)
    if isinstance(machine, str):
        return f"{machine}: --price-per-hour states a price"
    try:
        return price_of(machine, newest_offers(folder), local_offers(provider, folder))
    except StokerError as error:
        return str(error)


def price_of(
    machine: RentedMachine, offers: Sequence[Offer], local: Sequence[Offer]
) -> HourlyPrice | str:
    """The price of a machine where it runs: of its zone, else of the cheapest zone of its region,
    else the median over the regions. Why there is none, where there is none."""
    own = [o for o in local if (o.machine, o.region) == (machine.machine, machine.region)]
    zone = [offer for offer in own if offer.zone == machine.zone]
    tiers = [(zone, ""), (over_regions(own), f", cheapest zone of {machine.region}")]
    for group, where in tiers:
        for offer in group:
            dollars = offer.spot if machine.spot else offer.on_demand
            if dollars is not None:
                return priced(machine, offer, dollars, where if machine.spot else "")
    for offer in offers:
        if (offer.provider, offer.machine) == (machine.provider, machine.machine):
            dollars, middle = offer.on_demand, offer.on_demand_median
            if machine.spot:
                dollars, middle = offer.spot, offer.spot_median
            here = offer.region if machine.spot else offer.on_demand_region
            if dollars is not None and here == machine.region:
                return priced(machine, offer, dollars, "")
            if middle is not None:
                return priced(machine, offer, middle, ", median of the regions")
    kind = "spot" if machine.spot else "on-demand"
    name = f"{machine.provider}'s {shown(machine.machine)}"
    return f"the price table has no {kind} price of {name}: --price-per-hour states one"


def priced(machine: RentedMachine, offer: Offer, dollars: float, where: str) -> HourlyPrice:
    return HourlyPrice(
        dollars=dollars,
        kind=SPOT if machine.spot else ON_DEMAND,
        source=offer.source + where,
        date=offer.date,
        provider=machine.provider,
        machine=machine.machine,
        zone=machine.zone or machine.region,
    )
