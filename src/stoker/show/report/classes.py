"""The last evaluation, class by class: accuracy, confusions with images, the confusion matrix.

Invariants: a table of a thousand classes scrolls in a box of its own, and each row is a few hundred
bytes. An image is taken by its number in the index of the set, never by a path that a file names,
and only where set, split and label are those of the evaluation. Nothing in a set makes this fail or
wait: without images there is a `problem`.
"""

from __future__ import annotations

import base64
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import simplejpeg
from numpy.typing import NDArray

from stoker.data.dataset import SplitIndex
from stoker.data.index.shard_table import ROWS
from stoker.data.loading.render import RENDERERS
from stoker.run.evaluation import EvaluationReport, WorstSample
from stoker.show.report.blocks import heat_figure, heat_map, short_name
from stoker.show.report.elements import Html, PageTable, bar_svg, folded, section, table_html, tag
from stoker.show.report.facts import UNREADABLE, RunFacts
from stoker.text import one_line, plural, printable

MOST_PAIRS = 12
"""Confusions that are shown with images."""
MOST_LISTED = 100
"""Confusions in the table."""
LONGEST_CELL = 64
FEW_CLASSES = 5
"""With so many classes or fewer, every answer is among the top 5."""
SIDE = 96
"""Pixels of the longer side of a picture."""
QUALITY = 78
MOST_PICTURES, MOST_WORST = 40, 16


class Samples:
    """The images of the split that a run was evaluated on."""

    most_worst = MOST_WORST

    def __init__(self, facts: RunFacts) -> None:
        self.problem = facts.data.problem
        self._split: SplitIndex | None = None
        self._report: EvaluationReport | None = None
        self._left = MOST_PICTURES
        dataset = facts.data.dataset
        if facts.evaluation is None or dataset is None:
            return
        report = facts.evaluation.report
        if report.classes != dataset.classes or report.images != dataset.images(report.split):
            self.problem = "The set has other images than the evaluation."
            return
        try:
            if not dataset.store and not is_plain(dataset.path / report.split):
                raise ValueError("one of its files is not a plain file")
            self._split, self._report = dataset.split(report.split), report
        except (*UNREADABLE, pa.ArrowException) as error:
            self.problem = f"The set cannot be read: {one_line(str(error))}."

    def checked(self, row: WorstSample) -> int | None:
        """The number of a sample; None where the set has another label for it."""
        split = self._split
        if split is None or row.sample >= len(split) or split.labels[row.sample] != row.label:
            return None
        return row.sample

    def confused(self, label: int, predicted: int) -> int | None:
        """A sample of a class that was taken for another one, else any of the class."""
        for row in self._report.worst if self._report else ():
            if (row.label, row.predicted) == (label, predicted) and self.checked(row) is not None:
                return row.sample
        return self.typical(label)

    @cached_property
    def _labels(self) -> NDArray[np.int64]:
        return self._split.labels[:] if self._split else np.empty(0, np.int64)

    def typical(self, label: int) -> int | None:
        """The sample of a class in the middle of its own; None where there is none."""
        own = np.flatnonzero(self._labels == label)
        return int(own[len(own) // 2]) if len(own) else None

    def picture(self, sample: int | None, text: str) -> Html | None:
        """A sample as an element; None where there is none, or enough were made."""
        if self._split is None or sample is None or self._left <= 0:
            return None
        try:
            pixels = small_image(self._split, sample)
            data = simplejpeg.encode_jpeg(pixels, quality=QUALITY, colorsubsampling="420")
        except UNREADABLE as error:
            self.problem = f"An image cannot be read: {one_line(str(error))}."
            return None
        self._left -= 1
        address = Html(f"data:image/jpeg;base64,{base64.b64encode(data).decode()}")
        height, width = pixels.shape[:2]
        return tag("img", src=address, alt=text, width=width, height=height)


def is_plain(folder: Path) -> bool:
    """Whether a folder of a set holds plain files alone: opening a pipe would wait. The rows of a
    large split are read from plain files only."""
    files = [file for file in folder.iterdir() if file.name != ROWS] if folder.is_dir() else []
    return bool(files) and all(file.is_file() for file in files)


def small_image(split: SplitIndex, sample: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """The stored image of a sample, no side longer than SIDE pixels. Raises StokerError or
    ValueError where it cannot be read."""
    width, height = int(split.widths[sample]), int(split.heights[sample])
    factor = min(1.0, SIDE / max(width, height))
    shape = (max(round(height * factor), 1), max(round(width * factor), 1), 3)
    image = np.empty(shape, np.uint8)
    RENDERERS[split.codec](
        split.bytes_of(sample), width, height, [0, 0, width, height], False, image
    )
    return image


def class_section(facts: RunFacts) -> Html:
    """Everything about the last evaluation; one line where there is none."""
    title = "What does it get right, class by class?"
    if facts.evaluation is None:
        why = "The run has kept no evaluation class by class, or it cannot be read."
        return section(title, tag("p", why))
    report = facts.evaluation.report
    samples = Samples(facts)
    heat = heat_map(facts)
    return section(
        title,
        tag("p", summary_text(facts, report)),
        class_table(report),
        *([heat_figure(heat)] if heat else []),
        *confusion_parts(report, samples),
        *worst_parts(report, samples),
        *(
            [tag("p", f"No sample images: {samples.problem}", class_="soft")]
            if samples.problem
            else []
        ),
    )


def summary_text(facts: RunFacts, report: EvaluationReport) -> str:
    """What was evaluated, and the figures over all images."""
    kept = facts.evaluation
    step = kept.step if kept else 0
    ece = "unknown" if report.ece is None else f"{report.ece:.3f}"
    nan = (
        f" {plural(report.unpredicted, 'image')} have no answer: the model gives NaN."
        if report.unpredicted
        else ""
    )
    return (
        f"The last evaluation, after step {step:,}: {report.top1:,} of "
        f"{plural(report.images, 'image')} of the split '{printable(report.split)[:40]}' are "
        f"right ({report.top1 / report.images:.2%}). The mean over classes is {report.macro:.2%}, "
        f"the calibration error {ece}.{nan}"
    )


def class_table(report: EvaluationReport) -> Html:
    """The classes, the weakest first, with the class that each is most often taken for."""
    with_top5 = len(report.classes) > FEW_CLASSES
    rows = class_rows(report, with_top5)
    top5 = ["top-5"] if with_top5 else []
    numbers = [tag("th", name, scope="col", class_="n") for name in ("top-1", *top5, "images")]
    first, last = tag("th", "class", scope="col"), tag("th", "most often taken for", scope="col")
    head = tag("tr", first, tag("td", class_="barcell"), *numbers, last)
    caption = f"{plural(len(rows), 'class')}, the weakest first"
    table = tag(
        "table",
        tag("caption", caption),
        tag("thead", head),
        tag("tbody", *rows),
        class_="classes sortable",
    )
    label = "Show classes with this text"
    options = {"type": "search", "placeholder": "find a class", "aria-label": label}
    field = tag("input", class_="filter", hidden=True, **options)
    box = tag("div", table, class_="wide tall", tabindex="0", role="region", aria_label=caption)
    more = tag("p", "On paper the weakest 40 are shown.", class_="paper-only")
    return tag("div", field, box, *([more] if len(rows) > 40 else []))


def class_rows(report: EvaluationReport, with_top5: bool) -> list[Html]:
    """A row for each class with images."""
    taken_for: dict[int, tuple[int, int]] = {}
    for true, predicted, count in report.confusions:
        taken_for.setdefault(true, (predicted, count))
    shares = {n: row[1] / row[0] for n, row in enumerate(report.per_class) if row[0]}
    rows = []
    for number in sorted(shares, key=shares.__getitem__):
        images, _, hits5 = report.per_class[number]
        answer, count = taken_for.get(number, (None, 0))
        wrong = "" if answer is None else f"{short_name(report.classes[answer], 60)} ({count:,})"
        top5 = [tag("td", f"{hits5 / images:.1%}", class_="n")] if with_top5 else []
        rows.append(
            tag(
                "tr",
                tag("th", short_name(report.classes[number], LONGEST_CELL), scope="row"),
                tag("td", bar_svg(shares[number]), class_="barcell"),
                tag("td", f"{shares[number]:.1%}", class_="n"),
                *top5,
                tag("td", f"{images:,}", class_="n"),
                tag("td", wrong),
            )
        )
    return rows


def confusion_parts(report: EvaluationReport, samples: Samples) -> list[Html]:
    """The most frequent confusions, with an image of each class where the set is there."""
    heading = tag("h3", "What is taken for what?", id="confusions")
    if not report.confusions:
        return [heading, tag("p", "Nothing: no image got a wrong answer.")]
    shown = [confusion_item(row, report, samples) for row in report.confusions[:MOST_PAIRS]]
    rows = [
        (
            short_name(report.classes[true], 60),
            short_name(report.classes[predicted], 60),
            f"{count:,}",
            f"{count / max(report.per_class[true][0], 1):.1%}",
        )
        for true, predicted, count in report.confusions[:MOST_LISTED]
    ]
    caption = f"The {len(rows):,} most frequent of {plural(report.confused_pairs, 'pair')}"
    columns = ("class", "taken for", "images", "share of the class")
    table = table_html(PageTable(caption, columns, rows, frozenset((2, 3))))
    return [heading, tag("ul", *shown, class_="pairs"), folded("More pairs", table)]


def confusion_item(row: tuple[int, int, int], report: EvaluationReport, samples: Samples) -> Html:
    true, predicted, count = row
    names = [short_name(report.classes[number], 40) for number in (true, predicted)]
    pictures = [
        samples.picture(samples.confused(true, predicted), f"an image of class {names[0]}"),
        samples.picture(samples.typical(predicted), f"an image of class {names[1]}"),
    ]
    share = f"{count:,} of {report.per_class[true][0]:,}"
    between = tag("span", "taken for", class_="soft")
    words = tag("p", tag("b", names[0]), " ", between, " ", tag("b", names[1]), f": {share}")
    shown = [picture for picture in pictures if picture]
    return tag("li", *([tag("div", *shown, class_="thumbs")] if shown else []), words)


def worst_parts(report: EvaluationReport, samples: Samples) -> list[Html]:
    """The images with the highest loss, where the set is there."""
    items = []
    for row in report.worst[: samples.most_worst]:
        label = short_name(report.classes[row.label], 40)
        answer = "no answer" if row.predicted is None else report.classes[row.predicted]
        answer = short_name(answer, 40)
        if picture := samples.picture(samples.checked(row), f"class {label}, taken for {answer}"):
            sure = "" if row.probability is None else f" ({row.probability:.0%} sure)"
            words = tag("p", tag("b", label), ", taken for ", tag("b", answer), sure)
            items.append(tag("li", picture, words))
    if not items:
        return []
    heading = tag("h3", "Which images have the highest loss?", id="worst")
    note = tag("p", "Hard images, or wrong labels.", class_="soft")
    return [heading, note, tag("ul", *items, class_="pairs single")]
