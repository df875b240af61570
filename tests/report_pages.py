"""Runs for the tests of reports, and a reader of pages that refuses what is not well-formed."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from made_runs import RunMaker
from stoker.run.directory import Run
from stoker.run.evaluation import BINS, EvaluationReport, WorstSample, report_bytes, report_data
from stoker.show.report.facts import facts_of
from stoker.show.report.page import run_page

VOID = ("meta", "input", "img")
NOW = 1_790_100_000.0
"""When the tests look at a run."""
MARKUP = (
    "</script><script>document.title='ran'</script><img src=x onerror=\"document.title='ran'\">"
    "' \" & <svg onload=document.title='ran'> </style></title></td>"
)
CONTROLS = "\x00\x07\x1b[31m\u202egnp.exe\u2066\u200f\n\ud800"
HOSTILE = f"{MARKUP}{CONTROLS}"
"""A text that would run a script, leave its element, or turn the direction of writing."""


class PageReader(HTMLParser):
    """Reads a page. Raises AssertionError where an element is not closed in its place."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, (tag, self.getpos())

    def handle_data(self, data: str) -> None:
        if self.open[-1:] not in (["style"], ["script"]):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.texts)

    def named(self, tag: str) -> list[dict[str, str | None]]:
        """The attributes of each element of a name."""
        return [attributes for name, attributes in self.elements if name == tag]


def page_of(run: Run) -> str:
    """The page of a run, without a part that could not be made."""
    page = run_page(facts_of(run, now=NOW))
    assert "could not be made" not in page, page[page.index("could not be made") :][:200]
    return page


def read_page(run: Run) -> PageReader:
    return PageReader(page_of(run))


def keep_evaluation(run: Run, classes: list[str], images: int = 50, step: int = 100) -> None:
    """Write an evaluation.json: class number n has so many right answers as its number says."""
    count = len(classes)
    right = [number * images // count for number in range(count)]
    wrong = [(n, (n + 1) % count, images - right[n]) for n in range(count)] if count > 1 else []
    if count == 1:
        right = [images]
    report = EvaluationReport(
        split="val",
        images=images * count,
        top1=sum(right),
        top5=images * count,
        loss=0.5,
        classes=classes,
        per_class=[(images, hits, images) for hits in right],
        confusions=sorted(wrong, key=lambda row: -row[2]),
        confused_pairs=len(wrong),
        unpredicted=0,
        ece=0.03,
        bins=[(0, 0, 0.0)] * (BINS - 1) + [(images * count, sum(right), 0.9)],
        worst=[WorstSample(3, "val/a/3.jpg", 0, 1 % count, 0.98, 4.2)],
    )
    data = report_data(report, step=step, position=step * 256)
    (run.path / "evaluation.json").write_bytes(report_bytes(data))


def change_record(run: Run, **changes: Any) -> None:
    """Change fields of run.json."""
    file = run.path / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def hostile_run(path: Path) -> Run:
    """A run with a hostile text in every place that a report shows."""
    classes = [f"{HOSTILE} {number}" for number in range(6)]
    maker = RunMaker(path, steps=300, ranks=2, gpus=True)
    maker.attempt(0, 150, None).attempt(100, 300, f"interrupted {HOSTILE}")
    run = maker.run
    keep_evaluation(run, classes)
    values = {"model": HOSTILE, "scheduler": HOSTILE, "lr": HOSTILE, f"key {HOSTILE}": [HOSTILE]}
    change = {"position": 256, "step": 1, "values": {**values, "epochs": HOSTILE}}
    change_record(
        run,
        recipe=HOSTILE,
        data=f"/sets/{HOSTILE}",
        values=values,
        changes=[change],
        classes=classes,
    )
    origins = "".join(f"{key} = 1  # {MARKUP}\n" for key in ("model", "lr", "epochs"))
    (path / "recipe-2.toml").write_text(origins)
    for file in path.glob("attempts/*/rank*.jsonl"):
        file.write_text("".join(hostile_line(line) for line in file.read_text().splitlines()))
    return run


def hostile_line(line: str) -> str:
    """An event, with hostile words in its texts. A summary is damaged by that, and left unused."""
    event = json.loads(line)
    if event["kind"] == "attempt":
        event["environment"] |= {"host": HOSTILE, "device": HOSTILE, "command": [HOSTILE, HOSTILE]}
        event |= {"derived": HOSTILE, "warnings": [HOSTILE]}
    if event["kind"] == "end":
        event["reason"] = HOSTILE
    note = json.dumps({"kind": "note", "time": 1.0, "words": HOSTILE})
    stall = json.dumps({"kind": "stall", "time": 1.0, "words": HOSTILE})
    more = f"{note}\n{stall}\n" if event["kind"] == "attempt" else ""
    return f"{json.dumps(event)}\n{more}"
