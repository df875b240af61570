"""The other parts of the page: the headline, time and money, attempts, recipe, machines, notes.

Invariants: each function makes one part from the facts, and has something to say about a run in any
state. Every text goes through `tag`.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stoker.measure.spans import PARTS
from stoker.price.ledger.rank_time import CATEGORIES
from stoker.recipe.recipe import SPECS, dump_value
from stoker.show.cost import LABELS as COST_LABELS
from stoker.show.cost import machine_seconds, money, price_text
from stoker.show.explain import LABELS
from stoker.show.report.blocks import MOST_SPANS, ending_of, time_line, timeline_figure
from stoker.show.report.charts import BarRow, Bars, as_share, usage_charts
from stoker.show.report.elements import Html, PageTable, folded, section, table_html, tag
from stoker.show.report.facts import RunFacts
from stoker.show.report.questions import schedule_text, top1
from stoker.show.report.speed import began_of, moment, sentence
from stoker.show.report.svg import bars_figure, line_figure
from stoker.text import clock, one_line, plural, printable, seconds, shown

MOST_ATTEMPTS, MOST_INCIDENTS, MOST_CHANGES = 200, 200, 50

PART_MEANINGS = {
    "startup": "from the command to the first step: imports, opening the set, building the model",
    "data": "the model waited for images",
    "read": "the model waited for bytes from storage",
    "decode": "the model waited for images to be decoded",
    "to_device": "a batch on its way to the device",
    "forward": "the model's answers and their loss",
    "backward": "the gradients",
    "exchange": "waiting for gradients of other ranks, beyond the backward pass",
    "optimiser": "changing the weights",
    "checkpoint": "saving, as far as training waited for it",
    "evaluation": "measuring the accuracy on other images",
    "compile": "compiling the model",
    "measuring": "measurements of the run itself",
    "other": "everything between the other parts",
    "redone": "steps that were lost with an attempt, and made again",
}
COST_MEANINGS = {
    "useful": "steps that count: forward, backward, optimiser",
    "redone": "steps that were lost with an attempt, and made again",
    "data": "machines that waited for images",
    "exchange": "machines that waited for gradients of others",
    "saving": "training that waited for a checkpoint",
    "evaluating": "measuring the accuracy on other images",
    "starting": "from the command to the first step, compiling, measuring",
    "idle": "machines that ran while no event accounts for their time",
}


def headline(facts: RunFacts) -> Html:
    """Model, data, accuracy, time, dollars and verdict, a sentence each."""
    items = (
        ("Model", model_text(facts)),
        ("Data", data_text(facts)),
        ("Accuracy", accuracy_text(facts)),
        ("Time", time_text(facts)),
        ("Dollars", dollar_text(facts)),
        ("Verdict", verdict_text(facts)),
    )
    cards = [tag("div", tag("dt", name), tag("dd", text)) for name, text in items]
    return tag("dl", *cards, class_="cards")


def model_text(facts: RunFacts) -> str:
    start = facts.run.start.get("line") if facts.record["classes"] else None
    begin = f", {one_line(start)}" if isinstance(start, str) else ""
    return f"{facts.values.get('model')}, with the recipe {facts.record['recipe']}{begin}."


def data_text(facts: RunFacts) -> str:
    name = Path(facts.record["data"]).name or "unknown"
    images = plural(facts.samples, "training image") if facts.samples else "images"
    return f"{shown(name)}: {images} of {plural(len(facts.record['classes']), 'class')}."


def accuracy_text(facts: RunFacts) -> str:
    best = facts.history.best
    if best is None:
        return "Not evaluated yet."
    last = facts.history.evaluations[-1]
    at = f"{top1(best):.2%} top-1 at epoch {best['epoch']:.2f}"
    if len(facts.history.evaluations) == 1:
        return f"{at}, in one evaluation."
    count = len(facts.history.evaluations)
    return f"{at} at best; {top1(last):.2%} at the last of {count:,} evaluations."


def time_text(facts: RunFacts) -> str:
    total_s, count = facts.history.ledger.total_s, len(facts.history.attempts)
    if not count:
        return "Nothing has been trained yet."
    return f"{clock(total_s)} in {plural(count, 'attempt')}. {schedule_text(facts)}"


def dollar_text(facts: RunFacts) -> str:
    if not facts.is_priced:
        return "Unknown: no price is on record; --price-per-hour X counts it."
    cost = facts.cost
    unknown = f", without {clock(cost.unpriced_s)} of unknown price" if cost.unpriced_s >= 1 else ""
    return (
        f"{money(cost.total)} for {clock(machine_seconds(cost))} of machines at "
        f"{price_text(cost.prices)}{unknown}."
    )


def verdict_text(facts: RunFacts) -> str:
    if facts.verdict is None:
        return "None: there are too few steps to say what limits the run."
    return sentence(facts.verdict.lines()[0])


def spending_section(facts: RunFacts) -> Html:
    """Where time and money went."""
    title = "Where did time and money go?"
    bars = time_bars(facts)
    if not bars.rows:
        return section(title, tag("p", "Nowhere yet: no time is on record."))
    parts = [
        tag("h3", "Time, by the clock of the first rank", id="time-parts"),
        bars_figure(bars),
        tag("h3", "Machines and dollars" if facts.is_priced else "Machines", id="money-parts"),
    ]
    if not facts.is_priced:
        parts.append(tag("p", "No price is on record, so dollars are left out.", class_="soft"))
    return section(title, *parts, bars_figure(cost_bars(facts)))


def time_bars(facts: RunFacts) -> Bars:
    """Seconds of all attempts by part."""
    ledger = facts.history.ledger
    parts = {"startup": ledger.startup_s, "redone": ledger.redone_s, **ledger.parts}
    total = max(ledger.total_s, 1e-9)
    order = [name for name in ("startup", *PARTS, "redone") if parts.get(name, 0.0) > 0]
    order += [name for name in parts if name not in order and parts[name] > 0]
    rows = [
        BarRow(
            printable(LABELS.get(name, name))[:60],
            parts[name],
            (duration(parts[name]), as_share(parts[name] / total)),
            PART_MEANINGS.get(name, ""),
        )
        for name in sorted(order, key=lambda name: -parts[name])[:30]
    ]
    return Bars("time", f"{clock(ledger.total_s)} in all", ("time", "share"), tuple(rows))


def cost_bars(facts: RunFacts) -> Bars:
    """Seconds and dollars of all machines by category."""
    cost = facts.cost
    used_s, dollars = cost.seconds, cost.dollars
    total = max(sum(used_s.values()), 1e-9)
    rows = []
    for name in sorted(CATEGORIES, key=lambda name: -used_s[name]):
        if used_s[name] <= 0 and dollars[name] <= 0:
            continue
        amount = (amount_text(dollars[name]),) if facts.is_priced else ()
        texts = (duration(used_s[name]), as_share(used_s[name] / total), *amount)
        label = COST_LABELS.get(name, name)
        rows.append(BarRow(label, used_s[name], texts, COST_MEANINGS[name]))
    title = f"{clock(machine_seconds(cost))} of machines"
    if facts.is_priced:
        title += f", {money(cost.total)}"
        return Bars("cost", title, ("time", "share", "dollars"), tuple(rows))
    return Bars("cost", title, ("time", "share"), tuple(rows))


def duration(value: float) -> str:
    """Seconds with their digits where they are few."""
    return seconds(value) if value < 60 else clock(value)


def amount_text(dollars: float) -> str:
    return money(dollars) if dollars >= 0.001 or not dollars else "< $0.001"


def attempt_section(facts: RunFacts) -> Html:
    """The attempts on a time line, and in a table."""
    title = "Which attempts and interruptions were there?"
    line = time_line(facts)
    if not line.spans:
        return section(title, tag("p", "None: no attempt has written an event with its time."))
    rows = [attempt_row(facts, number) for number in sorted(facts.history.attempts)]
    columns = ("attempt", "began", "time", "steps", "repeated later", "how it ended", "ranks")
    shown_rows = rows[-MOST_ATTEMPTS:]
    caption = f"{plural(len(rows), 'attempt')}{', the latest' if len(rows) > MOST_ATTEMPTS else ''}"
    table = PageTable(caption, columns, shown_rows, frozenset((1, 2, 3, 4)))
    span = f"From {moment(began_of(facts))} to {moment(facts.history.last)}."
    if len(line.spans) > MOST_SPANS:
        span += f" The latest {MOST_SPANS} attempts are drawn."
    figure = tag("figure", timeline_figure(line), class_="chart broad")
    note = tag("p", span, class_="soft")
    return section(title, note, figure, table_html(table))


def attempt_row(facts: RunFacts, number: int) -> tuple[object, ...]:
    attempt = facts.history.attempts[number]
    reason = one_line(attempt.end["reason"]) if attempt.end else ""
    ended = f"{ending_of(facts, number)}{f' ({reason})' if reason else ''}"
    start = attempt.start
    ranks = (
        "did not train"
        if start is None
        else (f"{start['world']} on {one_line(start['environment']['device']) or 'unknown'}")
    )
    lasted = (attempt.last or 0.0) - (attempt.began or 0.0)
    steps, redone = f"{attempt.steps:,}", f"{attempt.redone:,}"
    return (str(number), moment(attempt.began), clock(lasted), steps, redone, ended, ranks)


def machine_section(facts: RunFacts) -> Html:
    """What the machines did over time."""
    title = "What did the machines do?"
    charts = usage_charts(facts)
    if not charts:
        return section(title, tag("p", "The use of machines was not sampled."))
    return section(title, tag("div", *map(line_figure, charts), class_="charts"))


def recipe_section(facts: RunFacts) -> Html:
    """Every value with its origin; those that someone chose come first."""
    rows = [recipe_row(facts, name) for name in facts.values]
    chosen = [row for row in rows if row[2] != "default"]
    rest = [row for row in rows if row[2] == "default"]
    columns = ("key", "value", "origin", "what it is")
    parts = [table_html(PageTable("Values that were chosen", columns, chosen))]
    if rest:
        table = table_html(PageTable("Default values", columns, rest))
        parts.append(folded(plural(len(rest), "default value"), table))
    return section("With which recipe?", *parts, *change_parts(facts))


def recipe_row(facts: RunFacts, name: str) -> tuple[str, str, str, str]:
    spec, value = SPECS.get(name), facts.values[name]
    help = spec.metadata["help"] if spec else ""
    is_default = spec is not None and value == dump_value(spec.default)
    origin = facts.origins.get(name, "default" if is_default else "not on record")
    return name, value_text(value), origin, help


def value_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)[:300] if not isinstance(value, str) else value


def change_parts(facts: RunFacts) -> list[Html]:
    """How the recipe was changed on the way."""
    changes, before = facts.record["changes"], facts.record["values"]
    rows = []
    for change in changes[:MOST_CHANGES]:
        values = change["values"]
        for name in sorted({*before, *values}, key=str):
            if before.get(name) != values.get(name):
                old, new = value_text(before.get(name)), value_text(values.get(name))
                rows.append((f"{change['step']:,}", name, old, new))
        before = values
    if not changes:
        return []
    table = PageTable("Changes of the recipe", ("from step", "key", "before", "after"), rows[:500])
    return [table_html(table)]


def environment_section(facts: RunFacts) -> Html:
    """Versions, the machine and the command of the newest attempt."""
    title = "In which environment?"
    environment: Mapping[str, Any] = facts.start["environment"] if facts.start else {}
    rows = [
        (name, command_text(value) if name == "command" else value_text(value))
        for name, value in list(environment.items())[:100]
        if value not in (None, "")
    ]
    if not rows:
        return section(title, tag("p", "It is not on record."))
    return section(title, table_html(PageTable("Of the newest attempt", ("what", "value"), rows)))


def command_text(value: Any) -> str:
    return shlex.join(map(str, value)) if isinstance(value, list) else value_text(value)


def note_section(facts: RunFacts) -> Html:
    """What was noticed on the way, and what could not be read."""
    incidents = list(facts.history.incidents)
    rows = [
        (
            moment(event.get("time") if isinstance(event.get("time"), float) else None),
            str(event["attempt"]),
            str(event["rank"]),
            event["kind"].replace("_", " "),
            one_line(str(event.get("words") or event.get("reason") or step_words(event))),
        )
        for event in incidents[-MOST_INCIDENTS:]
    ]
    warnings = facts.start["warnings"] if facts.start else []
    texts = [*facts.notes, *warnings[:50]]
    parts: list[Html] = []
    if texts:
        parts.append(tag("ul", *(tag("li", one_line(text)) for text in texts)))
    if rows:
        columns = ("when", "attempt", "rank", "kind", "what")
        caption = (
            f"{plural(len(incidents), 'event')}{', the latest' * (len(incidents) > len(rows))}"
        )
        parts.append(table_html(PageTable(caption, columns, rows)))
    return section("What else was noticed?", *(parts or [tag("p", "Nothing.")]))


def step_words(event: Mapping[str, Any]) -> str:
    return f"at step {event['step']:,}" if "step" in event else ""
