"""Which planned machines are worth a look: in time, within the budget, on the frontier."""

from __future__ import annotations

import math
from collections.abc import Sequence

from stoker.errors import BadRequest
from stoker.plan.frontier import frontier
from stoker.plan.machines import MachinePlan
from stoker.text import rough

FASTER = "stoker plan without --here shows faster machines"


def cost(plan: MachinePlan, *, spot: bool) -> tuple[float, float]:
    """Hours and dollars as expected; infinite where the machine is not to be had or too small."""
    hours, dollars = plan.rented(spot=spot)
    return (hours.middle if hours else math.inf, dollars.middle if dollars else math.inf)


def affordable(
    plans: Sequence[MachinePlan], deadline: float, budget: float, *, spot: bool
) -> list[MachinePlan]:
    """The plans that end in time and within the budget, at the high end of their ranges. Raises
    BadRequest where none does, with the nearest ones."""
    possible = [plan for plan in plans if math.isfinite(cost(plan, spot=spot)[1])]
    if not possible:
        kind = "spot" if spot else "on demand"
        raise BadRequest(f"none of these machines is offered {kind} and fits the run's memory")
    chosen = [plan for plan in possible if within(plan, deadline, budget, spot=spot)]
    if not chosen:
        fastest = min(possible, key=lambda plan: cost(plan, spot=spot)[0])
        cheapest = min(possible, key=lambda plan: cost(plan, spot=spot)[1])
        raise BadRequest(
            f"no machine ends in time and within the budget at worst: the fastest is "
            f"{name_of(fastest)} ({text(fastest, spot=spot)}), the cheapest {name_of(cheapest)} "
            f"({text(cheapest, spot=spot)}); raise --deadline or --budget"
        )
    return chosen


def within(plan: MachinePlan, deadline: float, budget: float, *, spot: bool) -> bool:
    hours, dollars = plan.rented(spot=spot)
    return bool(hours and dollars and hours.high <= deadline and dollars.high <= budget)


def require_within(plan: MachinePlan, deadline: float, budget: float | None) -> None:
    """Raise BadRequest where a plan does not end in time or within the budget at worst."""
    if plan.hours and plan.hours.high > deadline:
        raise BadRequest(
            f"it may take {rough(plan.hours.high, 2)} h here, more than --deadline: {FASTER}"
        )
    if budget is None:
        return
    if plan.on_demand is None:
        raise BadRequest("--budget needs a price: state --price-per-hour")
    if plan.on_demand.high > budget:
        raise BadRequest(
            f"it may cost ${plan.on_demand.high:,.2f} here, more than --budget {budget:g}: {FASTER}"
        )


def name_of(plan: MachinePlan) -> str:
    return f"{plan.offer.provider} {plan.offer.machine}".strip()


def text(plan: MachinePlan, *, spot: bool) -> str:
    hours, dollars = cost(plan, spot=spot)
    return f"{rough(hours, 2)} h, ${dollars:,.2f}"


def best_of(
    plans: Sequence[MachinePlan], rows: int, *, spot: bool
) -> tuple[list[MachinePlan], set[int]]:
    """The cheapest plans, so many besides the frontier (0: all), and which numbers are on it."""
    edge = frontier(plans, lambda plan: cost(plan, spot=spot))
    ordered = sorted(plans, key=lambda plan: cost(plan, spot=spot)[::-1])
    kept = [*edge, *(plan for plan in ordered if plan not in edge)]
    kept = kept[: max(rows, len(edge)) if rows else None]
    kept.sort(key=lambda plan: cost(plan, spot=spot)[::-1])
    return kept, {number for number, plan in enumerate(kept) if plan in edge}
