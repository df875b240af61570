"""CSV: metrics.csv, evaluations.csv and parameters.csv in a folder.

Invariants: RFC 4180, with a header line. metrics.csv has one value a line (step, time, metric,
value), so it is only appended to; where an attempt goes back, both files are replaced by copies
without the lost lines. No cell that is text begins with a character that a spreadsheet takes for a
formula.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from stoker.commit import open_at_end, publish, temporary, write_bytes
from stoker.history.metrics import EVAL, MetricPoint
from stoker.text import plain_cell
from stoker.track.curve import CurvePosition
from stoker.track.folder import SinkFolder
from stoker.track.sink import SinkOptions

METRICS, EVALUATIONS, PARAMETERS = "metrics.csv", "evaluations.csv", "parameters.csv"
HEADERS = {
    METRICS: ("step", "time", "metric", "value"),
    EVALUATIONS: ("step", "time", "top1", "top5", "loss"),
}


class CsvFiles:
    """The sink `csv`."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._folder = SinkFolder(options.out, options.run_id)
        self._position = CurvePosition()

    def open(self) -> CurvePosition:
        self._position = self._folder.open((*HEADERS, PARAMETERS))
        if not self._cut_to_sizes():
            self._position = CurvePosition()
            self._begin()
        rows = {**self._options.parameters, **self._options.tags}
        table = lines_of_rows(
            [("name", "value"), *(tuple(map(plain_cell, row)) for row in rows.items())]
        )
        write_bytes(self._folder.path / PARAMETERS, table)
        return self._position

    def _cut_to_sizes(self) -> bool:
        """Remove what a killed tracker wrote after the position. Returns whether both files have
        all that the position counts."""
        for name in HEADERS:
            path, size = self._folder.path / name, self._folder.sizes.get(name, 0)
            if not size or not path.is_file() or path.stat().st_size < size:
                return False
            if path.stat().st_size > size:
                os.truncate(path, size)
        return True

    def _begin(self) -> None:
        for name, header in HEADERS.items():
            write_bytes(self._folder.path / name, lines_of_rows([header]))
        self._save()

    def _save(self) -> None:
        self._folder.sizes = {n: (self._folder.path / n).stat().st_size for n in HEADERS}
        self._folder.save(self._position)

    def write(self, points: Sequence[MetricPoint], position: CurvePosition) -> None:
        values = [
            (point.step, moment(point.time), plain_cell(name), number(value))
            for point in points
            if point.stream != EVAL
            for name, value in point.values.items()
        ]
        evaluations = [
            (
                point.step,
                moment(point.time),
                *(number(point.values.get(f"eval/{n}")) for n in HEADERS[EVALUATIONS][2:]),
            )
            for point in points
            if point.stream == EVAL
        ]
        for name, rows in ((METRICS, values), (EVALUATIONS, evaluations)):
            if rows:
                append(self._folder.path / name, lines_of_rows(rows))
        self._position = position
        self._save()

    def back(self, step: int, attempt: int) -> CurvePosition:
        for name in HEADERS:
            keep_lines(self._folder.path / name, lambda line: is_before(line, step))
        self._position = self._position.before(step, attempt)
        self._save()
        return self._position

    def close(self, outcome: str) -> None:
        self._folder.close()


SINK = CsvFiles


def lines_of_rows(rows: Iterable[Sequence[object]]) -> bytes:
    buffer = io.StringIO(newline="")
    csv.writer(buffer, lineterminator="\r\n").writerows(rows)
    return buffer.getvalue().encode("utf-8", "replace")


def number(value: float | None) -> str:
    """A number with all its digits; empty where there is none."""
    return "" if value is None else repr(float(value))


def moment(at: float) -> str:
    """A time in UTC, such as 2026-09-21T14:13:20.500Z; empty where it is not known."""
    if not at:
        return ""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def is_before(line: bytes, step: int) -> bool:
    """Whether a line is a header, or of a smaller step."""
    cell = line.split(b",", 1)[0]
    return not cell.isdigit() or int(cell) < step


def append(path: Path, data: bytes) -> None:
    with open_at_end(path) as file:
        view = memoryview(data)
        while view:
            view = view[file.write(view) :]


def keep_lines(path: Path, holds: Callable[[bytes], bool]) -> None:
    """Replace a file by a copy of the lines for which this holds."""
    draft = temporary(path)
    with path.open("rb") as file, draft.open("wb") as copy:
        copy.writelines(line for line in file if holds(line))
    publish(draft, path)
