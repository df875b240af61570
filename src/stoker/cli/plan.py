"""stoker plan DATA: what a run takes and costs on machines that one has not rented."""

from __future__ import annotations

import argparse
import math
import re
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from stoker.cli.flags import Parser, add_recipe_flags, flag_values, resolve_flags, say_note
from stoker.cli.places import run_folder
from stoker.cli.prices import day_of
from stoker.cli.streams import check_json, write_figures
from stoker.errors import BAD_REQUEST, FINISHED, BadRequest
from stoker.recipe.recipe import Recipe
from stoker.stores.location import is_location
from stoker.survive.stopping import UNCHANGED, listening, stops_at_once
from stoker.text import say, shown
from stoker.train.model.names import check_model

if TYPE_CHECKING:
    from stoker.price.offers import Offer

ROWS = 12
"""Machines that are shown without --all."""
RENTED = (
    "spot",
    "interrupted_every",
    "bid",
    "zone",
    "volume_zone",
    "disk",
    "gpu",
    "provider",
    "on_day",
    "probe",
    "bench",
    "all",
)
"""Flags that are about machines to rent."""
HOURS = {"": 1.0, "h": 1.0, "m": 1 / 60, "min": 1 / 60, "d": 24.0}


def parser() -> Parser:
    plan = Parser(
        prog="stoker plan",
        usage="stoker plan DATA [--recipe NAME] [flags]; stoker plan --check CLAIMS.toml",
        description="Forecast a run on every GPU machine of the price table: images a second, what "
        "binds, hours, dollars on demand and on spot machines, each with its range. Measures how "
        "fast a core of this machine loads the images. Takes the flags of 'stoker train'.",
        examples=(
            "stoker plan photos-packed --recipe imagenet-resnet50 --spot --deadline 6h",
            "stoker plan photos-packed --on-day 2025-03-01 --gpu A100",
            "stoker plan photos-packed --here --price-per-hour 0.34",
            "stoker plan --check examples/claims/p4d_in_45_minutes.toml",
        ),
    )
    add = plan.add_argument
    add("data", metavar="DATA", nargs="?", help="a folder that 'stoker pack' made")
    add("--check", metavar="CLAIMS.toml", type=Path, help="check stated figures instead")
    add("--deadline", metavar="2h", default="", help="only machines that end in time, at worst")
    add("--budget", metavar="X", type=float, help="only machines that cost no more, at worst")
    add("--spot", action="store_true", help="order by spot prices, not by those on demand")
    add("--interrupted-every", metavar="H", type=float, help="hours that a spot machine lasts [4]")
    add("--bid", metavar="X", type=float, help="the most that you pay for an hour of spot")
    add("--zone", metavar="ZONE", default="", help="where the machine shall be")
    add("--volume-zone", metavar="ZONE", default="", help="where the volume with the set is")
    add("--disk", metavar="GB", type=float, help="size of the machine's disk")
    add("--gpu", metavar="NAME", default="", help="machines with this GPU alone")
    add("--provider", metavar="NAME", default="", help="machines of this provider alone")
    add("--on-day", metavar="DAY", default="", help="AWS's prices of a past day")
    add("--stale-prices", action="store_true", help=argparse.SUPPRESS)  # of 0.1.0: no effect now
    add("--probe", metavar="FILE", type=Path, help="take loading from a file of 'doctor --json'")
    help = "a file of 'stoker bench train': its machine joins the table, and its GPU is calibrated"
    add("--bench", metavar="FILE", type=Path, action="append", default=[], help=help)
    help = "plan for this machine alone: measures training steps and an evaluation, for two minutes"
    add("--here", action="store_true", help=help)
    help = "dollars an hour of this machine, with --here"
    add("--price-per-hour", metavar="X", type=float, help=help)
    help = "a run that reached --target: plan as many epochs as it took"
    add("--curve", metavar="RUN", type=Path, help=help)
    add("--all", action="store_true", help="every machine, not the best alone")
    add("--json", metavar="FILE", default="", help="also write the figures there")
    add_recipe_flags(plan, common=())
    return plan


def run(words: Sequence[str]) -> int:
    parsed = parser().parse(words)
    if parsed.check is not None:
        return check_claims_in(parsed.check)
    if parsed.data is None:
        raise BadRequest("name a packed set: stoker plan DATA; or stoker plan --check CLAIMS.toml")
    if parsed.curve:
        parsed.curve = Path(run_folder(parsed.curve))
    resolved = resolve_flags(parsed)
    recipe = resolved.recipe
    check_model(recipe)
    deadline = hours_of(parsed.deadline)
    check_numbers(parsed)
    check_json(parsed.json)
    if parsed.here:
        refuse_beside_here(parsed)
        require_packed(parsed.data)
        say_note(resolved)
        with listening() as stop, stops_at_once(stop, "planning", UNCHANGED):
            return show_here(parsed, recipe, deadline)
    if parsed.price_per_hour is not None:
        raise BadRequest("--price-per-hour is the price of this machine: add --here")
    day = day_of("--on-day", parsed.on_day) if parsed.on_day else None
    offers = offers_for(parsed, day)
    require_packed(parsed.data)
    say_note(resolved)
    with listening() as stop, stops_at_once(stop, "planning", UNCHANGED):
        return show_plans(parsed, recipe, offers, deadline, day)


def check_claims_in(path: Path) -> int:
    """Check a file of claims, and print what contradicts itself. Returns the exit code."""
    from stoker.plan.claims.check import check_claims
    from stoker.plan.claims.claims_file import read_claims
    from stoker.show.plan.claims import claim_lines

    claims = read_claims(path)
    findings = check_claims(claims)
    say(*claim_lines(claims, findings))
    return BAD_REQUEST if any(finding.refused for finding in findings) else FINISHED


def hours_of(text: str) -> float:
    """The hours of a duration such as 2h or 90m; infinite for none. Raises BadRequest."""
    if not text:
        return math.inf
    parts = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)\s*(h|m|min|d|)", text)
    if not parts or not float(parts[1]):
        raise BadRequest(f"--deadline must be a duration such as 2h or 90m, not '{shown(text)}'")
    return float(parts[1]) * HOURS[parts[2]]


def check_numbers(parsed: argparse.Namespace) -> None:
    """Raise BadRequest for numbers that are not above 0."""
    for name in ("budget", "bid", "disk", "interrupted_every", "price_per_hour"):
        value = getattr(parsed, name)
        if value is not None and not 0 < value < math.inf:
            raise BadRequest(f"--{name.replace('_', '-')} must be above 0, not {value:g}")


def require_packed(data: str) -> None:
    """Raise BadRequest for a folder that is not packed, before torch is loaded."""
    from stoker.data.dataset import Dataset
    from stoker.data.sources.classes import nothing_at

    if is_location(data):
        Dataset(data)
    elif not Path(data).exists():
        raise nothing_at("packed set", data)
    elif not Dataset.is_packed(data):
        raise BadRequest(f"{shown(data)} is not packed: run stoker pack {shown(data)}")


def refuse_beside_here(parsed: argparse.Namespace) -> None:
    """Raise BadRequest for flags that say which machine to rent: --here rents none."""
    plain = parser().parse([parsed.data])
    for name in RENTED:
        if getattr(parsed, name) != getattr(plain, name):
            flag = f"--{name.replace('_', '-')}"
            raise BadRequest(f"--here plans for this machine alone: leave out {flag}, or --here")


def offers_for(parsed: argparse.Namespace, day: date | None) -> list[Offer]:
    """The offers that the flags ask for. Raises BadRequest where there is none, and for a bid that
    no machine starts for."""
    from stoker.plan.rental import offers_in_zone, offers_under
    from stoker.price.offers import newest_offers, offers_on, select_offers

    if parsed.zone:
        offers = offers_in_zone(parsed.zone, day)
    else:
        offers = offers_on(day) if day else newest_offers()
    offers = select_offers(offers, parsed.provider, parsed.gpu)
    return offers if parsed.bid is None else offers_under(parsed.bid, offers)


def show_here(parsed: argparse.Namespace, recipe: Recipe, deadline: float) -> int:
    """Measure this machine, forecast the run on it, and print that."""
    from stoker.plan.choice import require_within
    from stoker.plan.measured.here import measure_here
    from stoker.plan.measured.machine import plan_on_measured
    from stoker.plan.planned import planned_run, planned_work, rental_terms
    from stoker.price.machine_here import price_here
    from stoker.show.plan.machines import figures_of, work_lines
    from stoker.show.plan.measured import here_lines

    dataset, work = planned_work(Path(parsed.data), recipe, parsed.curve)
    price = price_here(parsed.price_per_hour, recipe.spot_notice)
    run = planned_run(work, recipe, None)
    say(*work_lines(run), "measuring training steps and an evaluation here: about two minutes")
    result = measure_here(dataset, recipe, work, price)
    terms = rental_terms(recipe, work)
    plan = plan_on_measured(run, result, terms)
    say(*here_lines(plan, result))
    if parsed.json:
        write_figures(parsed.json, figures_of([plan], terms.begins))
    require_within(plan, deadline, parsed.budget)
    words = ["stoker", "train", *train_words(parsed)]
    if parsed.price_per_hour is not None:
        words += ["--price-per-hour", f"{parsed.price_per_hour:g}"]
    say(f"start it: {' '.join(map(shlex.quote, words))}")
    return FINISHED


def show_plans(
    parsed: argparse.Namespace,
    recipe: Recipe,
    offers: Sequence[Offer],
    deadline: float,
    day: date | None,
) -> int:
    """Count, measure, forecast, and print the machines."""
    from stoker.plan.bench.result import read_result
    from stoker.plan.choice import affordable, best_of
    from stoker.plan.machines import plan_machines
    from stoker.plan.measured.machine import calibrations, plan_measured
    from stoker.plan.planned import loading_probe, planned_run, planned_work, rental_terms
    from stoker.plan.rental import RentalRequest, check_request
    from stoker.show.plan.machines import (
        closing_lines,
        figures_of,
        launch_line,
        machine_lines,
        work_lines,
    )
    from stoker.show.plan.measured import measured_lines

    results = [read_result(path) for path in parsed.bench]
    dataset, work = planned_work(Path(parsed.data), recipe, parsed.curve)
    request = RentalRequest(parsed.zone, parsed.volume_zone, parsed.disk)
    check_request(request, work.data_bytes, work.checkpoint_bytes)
    terms = rental_terms(recipe, work, parsed.interrupted_every, day)
    run = planned_run(work, recipe, loading_probe(dataset, recipe, work, parsed.probe))
    run = replace(run, calibrations=calibrations(run, results))
    spot = parsed.spot or parsed.bid is not None
    plans, unknown = plan_machines(run, offers, terms)
    measured = plan_measured(run, results, terms)
    plans += [plan for plan in measured if plan.on_demand]
    elsewhere = [one for one in results if one.data.fingerprint != dataset.fingerprint]
    chosen = affordable(plans, deadline, parsed.budget or math.inf, spot=spot)
    rows, best = best_of(chosen, 0 if parsed.all else ROWS, spot=spot)
    say(*work_lines(run), *measured_lines(measured, elsewhere))
    width = shutil.get_terminal_size().columns
    say("", *machine_lines(rows, best, width, spot=spot), "", wrap=False)
    say(*closing_lines(rows, plans, unknown, terms))
    say(f"the cheapest: {launch_line(rows[0], train_words(parsed), spot=spot)}")
    if parsed.json:
        write_figures(parsed.json, figures_of(plans, terms.begins))
    return FINISHED


def train_words(parsed: argparse.Namespace) -> list[str]:
    """The flags of `stoker train` for the planned run."""
    words = [parsed.data, *(["--recipe", parsed.recipe] if parsed.recipe else [])]
    for name, value in flag_values(parsed).items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
            words += [f"--{flag}", text]
    return words
