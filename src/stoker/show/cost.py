"""What a run has cost, in a few lines of `explain`."""

from __future__ import annotations

from stoker.history.history import best_of
from stoker.price.hourly import HourlyPrice
from stoker.price.ledger.cost import RunCost, cost_of
from stoker.price.ledger.rank_time import CATEGORIES
from stoker.run.directory import Run
from stoker.text import clock, one_line, shown

WORTH_NAMING = 0.005
"""A category below this share of the cost is left out."""
LABELS = {
    "redone": "repeated after interruptions",
    "data": "waiting for data",
    "exchange": "exchanging gradients",
}
"""The labels of categories that are not called by their name."""


def cost_lines(run: Run, stated: HourlyPrice | None = None) -> list[str]:
    """What the run has cost, where a price is known; else how to give one. A `stated` price counts
    in place of those that were recorded."""
    cost = cost_of(run, stated)
    if not cost.prices:
        return [f"cost unknown: stoker explain {shown(str(run.path))} --price-per-hour X counts it"]
    unpriced_s = cost.unpriced_s
    without = f", without {clock(unpriced_s)} of unknown price" if unpriced_s >= 1 else ""
    return [
        f"{money(cost.total)} for {clock(machine_seconds(cost))} of machines at "
        f"{price_text(cost.prices)}{without}",
        f"  {shares_text(cost)}",
        *units_line(run, cost),
    ]


def money(dollars: float) -> str:
    """Dollars and cents; of less than a dollar, three digits."""
    return f"${dollars:,.2f}" if dollars >= 1 or not dollars else f"${dollars:.3g}"


def machine_seconds(cost: RunCost) -> float:
    """Seconds of all machines."""
    return sum(machine.total_s for machine in cost.machines)


def price_text(prices: list[HourlyPrice]) -> str:
    """The latest price with its source and date, and how the earlier ones differed."""
    latest, amounts = prices[-1], [price.dollars for price in prices]
    if len(set(amounts)) == 1:
        return one_line(latest.text())
    return one_line(f"${min(amounts):,.4g} to {max(amounts):,.4g}, the latest {latest.text()}")


def shares_text(cost: RunCost) -> str:
    """The categories that are worth naming, the largest first."""
    dollars, total = cost.dollars, cost.total
    named = [
        (dollars[n], LABELS.get(n, n)) for n in CATEGORIES if dollars[n] > WORTH_NAMING * total
    ]
    texts = [
        f"{label} {money(amount)} ({amount / total:.1%})"
        for amount, label in sorted(named, reverse=True)
    ]
    return ", ".join(texts) or "nothing was spent"


def units_line(run: Run, cost: RunCost) -> list[str]:
    """Dollars an epoch, and up to the best accuracy; none before the first step."""
    starts, parts = run.starts(), []
    done = cost.points[-1].position if cost.points else 0
    if starts and starts[-1]["samples"] and done:
        epochs = done / starts[-1]["samples"]
        parts.append(f"{money(cost.total / epochs)} an epoch")
    if best := best_of(run.merged("evaluation")):
        share = best["top1"] / best["images"]
        dollars = dollars_at_evaluation(cost, best["position"])
        parts.append(f"{money(dollars)} up to the best top-1 of {share:.2%}")
    return [f"  {'; '.join(parts)}"] if parts else []


def dollars_at_evaluation(cost: RunCost, position: int) -> float:
    """What the run had cost when it was evaluated at a position."""
    points = (p.dollars for p in cost.points if p.is_evaluation and p.position == position)
    return max(points, default=cost.dollars_at(position=position))
