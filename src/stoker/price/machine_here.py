"""What an hour of this machine costs: what the user states."""

from __future__ import annotations

import datetime

from stoker.price.hourly import STATED, HourlyPrice


def price_here(stated: float | None, spot_notice: str) -> HourlyPrice | None:
    """The price of this machine; None where it is not known."""
    if stated is None:
        return None
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return HourlyPrice(dollars=stated, kind=STATED, source="--price-per-hour", date=today)
