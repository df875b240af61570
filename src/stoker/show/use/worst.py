"""The samples with the highest loss as a contact sheet: a way to find wrong labels."""

from __future__ import annotations

from pathlib import Path

from stoker.run.evaluation import EvaluationReport, WorstSample
from stoker.show.sheet import Tile, tile_side, write_sheet
from stoker.show.use.evaluate import share_of, short
from stoker.use.evaluate import stored_image
from stoker.use.selection import Selection


def write_worst(file: str, report: EvaluationReport, selection: Selection) -> None:
    """Write the worst samples of a report as a PNG: label, prediction and path below each. Raises
    StokerError where an image cannot be read or the file cannot be written."""
    side = tile_side(len(report.worst))
    tiles = [
        Tile(
            stored_image(selection.split, row.sample, side),
            tile_lines(report, row),
        )
        for row in report.worst
    ]
    write_sheet(Path(file), tiles)


def tile_lines(report: EvaluationReport, row: WorstSample) -> tuple[str, str, str]:
    """The lines below an image. The probability comes first: a long name is cut."""
    answer = "no prediction"
    if row.predicted is not None:
        answer = f"{share_of(row)}{short(report.classes[row.predicted])}"
    return f"label {short(report.classes[row.label])}", f"model {answer}", row.path
