"""What prediction says on standard error."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from golden import check_golden
from stoker.data.images.encode import Storage
from stoker.show.use import predict
from stoker.show.use.predict import PredictProgress, ignored_lines, no_images, notes
from stoker.use.image_stream import NamedImages


@pytest.fixture
def source() -> NamedImages:
    source = NamedImages(("photos",))
    for name, reason in [("photos/.git", "hidden"), ("photos/a.txt", "not an image by its name")]:
        source.ignored.append((name, reason))
        source.ignored.append((f"{name}2", reason))
    return source


def older() -> Any:
    return SimpleNamespace(facts={}, preprocessing=SimpleNamespace(storage=Storage()))


def test_predict_golden(source: NamedImages, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 10.0, 14.0, 14.0])
    monkeypatch.setattr(predict.time, "monotonic", lambda: next(times))
    bar = PredictProgress(0, rows_on_terminal=True)
    names = [f"{number}.jpg" for number in range(2000)]
    errors: list[str | None] = [None] * 2000
    errors[3:6] = ["damaged: ends early", "damaged: no scan", "too many pixels (60000 x 60000)"]
    names[3] = "\x1b[2Jclear.jpg"
    bar.update(names, errors)
    lines = bar.lines("runs/mine, checkpoint 000000128")
    check_golden(
        "predict_summary",
        [
            *lines,
            *ignored_lines([source]),
            no_images(["photos", "more"], [source]),
            no_images(list("abcdefg"), []),
            *notes(older(), [source]),
        ],
    )
    assert (bar.images, bar.broken_images) == (2000, 3)


def test_a_run_that_records_its_storage_needs_no_note(source: NamedImages) -> None:
    newer = older()
    newer.facts["storage"] = {}
    assert notes(newer, [source]) == []
    assert notes(older(), []) == []


def test_progress_goes_to_standard_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("stoker.show.progress.SECONDS_BETWEEN_LINES", -1.0)
    bar = PredictProgress(10, rows_on_terminal=False)
    bar.update(["a", "b"], [None, "empty file"])
    bar.close()
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "2 of 10 images, 1 broken\n")
