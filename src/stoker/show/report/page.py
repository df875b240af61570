"""The page: one HTML file with everything in it, which opens without a server or a link.

Invariants: a policy in the page allows exactly our style and our script, by their hashes, and
images inside of the page: a mistake in escaping could run nothing and load nothing. The page is
complete without its script. A part that cannot be made is replaced by a sentence, so that nothing
in a run keeps the rest of the page from being written.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib import resources
from pathlib import Path

from stoker.commit import write_bytes
from stoker.price.hourly import HourlyPrice
from stoker.run.directory import Run
from stoker.show.report.charts import Bars, Chart, PageAxis, curve_charts
from stoker.show.report.classes import class_section
from stoker.show.report.elements import Html, PageTable, joined, section, slug, table_html, tag
from stoker.show.report.facts import RunFacts, facts_of
from stoker.show.report.questions import (
    Evidence,
    Question,
    checkpoint_parts,
    checkpoint_size,
    fully_trained,
    learning_rate,
    overfitting,
    set_size,
)
from stoker.show.report.sections import (
    attempt_section,
    environment_section,
    headline,
    machine_section,
    note_section,
    recipe_section,
    spending_section,
)
from stoker.show.report.speed import (
    devices_used,
    how_long,
    link_limit,
    moment,
    step_time,
    traffic,
)
from stoker.show.report.svg import bars_figure, line_figure
from stoker.text import shown

QUESTIONS: tuple[Callable[[RunFacts], Question], ...] = (
    how_long,
    fully_trained,
    overfitting,
    devices_used,
    link_limit,
    learning_rate,
    set_size,
    checkpoint_parts,
    checkpoint_size,
    step_time,
    traffic,
)
SECTIONS: tuple[Callable[[RunFacts], Html], ...] = (
    spending_section,
    attempt_section,
    class_section,
    machine_section,
    recipe_section,
    environment_section,
    note_section,
)
"""What follows the curves and the questions."""


def write_report(
    run: Run, target: Path, price: HourlyPrice | None = None, now: float | None = None
) -> int:
    """Write the report of a run to a file, complete or not at all. Returns its bytes. Raises
    OSError where the file cannot be written, and nothing for what is in the run."""
    return write_page(facts_of(run, price, now), target)


def write_page(facts: RunFacts, target: Path) -> int:
    """Write the page of one run to a file. Returns its bytes; raises OSError."""
    return write_document(run_page(facts), target)


def write_document(page: Html, target: Path) -> int:
    """Write a page to a file, complete or not at all. Returns its bytes; raises OSError."""
    data = page.encode("utf-8", "backslashreplace")
    write_bytes(target, data)
    return len(data)


def run_page(facts: RunFacts) -> Html:
    """The page of one run."""
    questions = [question_part(number, facts) for number in range(len(QUESTIONS))]
    charts = made(lambda: curves_section(curve_charts(facts)))
    model = str(facts.values.get("model"))
    state = f"{facts.state}, as of {moment(facts.now)}"
    return document(
        f"Run of {model}",
        [
            tag("p", shown(str(facts.run.path)), class_="path"),
            tag("p", f"This run is {state}.", class_="soft"),
            made(lambda: headline(facts)),
        ],
        [
            charts,
            section("Questions and answers", tag("div", *questions, class_="questions")),
            *(made(partial(make, facts)) for make in SECTIONS),
        ],
    )


def made(make: Callable[[], Html]) -> Html:
    """A part of the page, or a sentence where it cannot be made."""
    try:
        return make()
    except Exception as error:
        words = f"This part could not be made ({type(error).__name__}): please report it."
        return tag("p", words, class_="failure")


def question_part(number: int, facts: RunFacts) -> Html:
    """A question as a part of the page."""
    return made(lambda: question_html(number + 1, QUESTIONS[number](facts)))


def question_html(number: int, question: Question) -> Html:
    name = slug(question.title)
    return tag(
        "article",
        tag("h3", f"{number}. {question.title}", id=name),
        tag("p", question.answer, class_="answer"),
        *(evidence_html(part) for part in question.evidence if part),
        aria_labelledby=name,
    )


def evidence_html(part: Evidence) -> Html:
    """Evidence as it is shown. A chart is shown once, among the curves, and linked here."""
    if isinstance(part, PageTable):
        return table_html(part)
    if isinstance(part, Bars):
        return bars_figure(part)
    if isinstance(part, Chart):
        return tag("p", tag("a", f"The curve: {part.title}", href=f"#chart-{part.key}"))
    return tag("p", part)


def curves_section(charts: Sequence[Chart], title: str = "How did it go?", note: str = "") -> Html:
    """The curves, with a switch for their horizontal axis."""
    if not charts:
        return section(title, tag("p", "There are no curves: no step and no evaluation is known."))
    figures = tag("div", *map(line_figure, charts), class_="charts")
    return section(title, axis_switch(charts[0].axes), figures, note=note)


def axis_switch(axes: Sequence[PageAxis]) -> Html:
    """Radio buttons; page.css shows the pictures of the chosen axis."""
    choices = [
        tag(
            "label",
            tag("input", type="radio", name="axis", id=f"axis-{axis.key}", checked=not number),
            axis.label,
        )
        for number, axis in enumerate(axes)
    ]
    return tag("fieldset", tag("legend", "Curves over"), *choices, class_="switch")


def document(title: str, opening: Sequence[Html], parts: Sequence[Html]) -> Html:
    """A whole page: a title, what opens it, its parts, and their table of contents."""
    style, script = asset("page.css"), asset("page.js")
    policy = (
        f"default-src 'none'; img-src data:; style-src '{digest(style)}'; "
        f"script-src '{digest(script)}'; base-uri 'none'; form-action 'none'"
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", title),
        tag("style", Html(style)),
    )
    button = tag("button", "Dark or light", type="button", id="theme", hidden=True)
    body = tag(
        "body",
        tag("a", "Skip to the content", href="#content", class_="skip"),
        tag("header", tag("div", tag("h1", title), button, class_="bar-top"), *opening),
        contents(parts),
        tag("main", *parts, id="content"),
        tag("footer", tag("p", "Written by stoker report.")),
        tag("script", Html(script)),
    )
    return joined([Html("<!DOCTYPE html>\n"), tag("html", head, body, lang="en"), Html("\n")])


def contents(parts: Sequence[Html]) -> Html:
    """Links to the sections of a page."""
    links = []
    for part in parts:
        if '<h2 id="' in part:
            name, _, rest = part.partition('<h2 id="')[2].partition('">')
            text = Html(rest.partition("</h2>")[0])
            links.append(tag("li", tag("a", text, href=f"#{name}")))
    return tag("nav", tag("ul", *links), aria_label="Contents")


@cache
def asset(name: str) -> str:
    """A file of the page: its style or its script."""
    file = resources.files("stoker.show.report") / name
    return file.read_text(encoding="utf-8")


def digest(text: str) -> str:
    """The hash of an element's content, as a policy has it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
