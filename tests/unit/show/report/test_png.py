"""The charts as pictures for slides."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from made_runs import RunMaker
from priced_runs import new_run
from report_pages import HOSTILE, NOW, hostile_run
from stoker.errors import BadRequest
from stoker.show.report.charts import HeatMap, TimeLine, TimeSpan, part_bars
from stoker.show.report.facts import facts_of
from stoker.show.report.png import (
    STYLE,
    drawn_bars,
    drawn_heat,
    drawn_spans,
    require_matplotlib,
    write_pictures,
)

matplotlib = pytest.importorskip("matplotlib", reason="the extra 'report' is not installed")


def test_each_chart_is_a_picture(tmp_path: Path) -> None:
    run = RunMaker(tmp_path / "run", steps=200, dollars_per_h=None).attempt(0, 100, None).run
    files = write_pictures(facts_of(run, now=NOW), tmp_path / "new" / "pictures")
    names = {file.stem for file in files}
    assert names == {
        *(f"{chart}-{axis}" for chart in ("accuracy", "loss", "rate", "speed")
          for axis in ("epochs", "hours")),
        *("parts", "confusion", "attempts"),
    }  # fmt: skip
    for file in files:
        with Image.open(file) as image:
            assert image.width == 1600 and image.height >= 600


def test_hostile_names_are_drawn_as_text(tmp_path: Path) -> None:
    """A name that looks like mathematics must not be parsed as such."""
    facts = facts_of(hostile_run(tmp_path / "run"), now=NOW)
    names = ("$\\frac{", HOSTILE)
    heat = HeatMap("confusion", names[0], "", names, np.eye(2, dtype=np.int64))
    spans = TimeLine("attempts", HOSTILE, "", (TimeSpan("$\\frac{", 0.0, 9.0, 0.5, False),))
    with matplotlib.rc_context(STYLE):
        for figure in (drawn_heat(heat), drawn_spans(spans), drawn_bars(part_bars(facts))):
            figure.savefig(io.BytesIO(), format="png")


def test_a_run_without_anything_has_no_pictures(tmp_path: Path) -> None:
    assert write_pictures(facts_of(new_run(tmp_path / "run"), now=NOW), tmp_path / "p") == []


def test_without_matplotlib_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(BadRequest, match="pip install matplotlib"):
        require_matplotlib()
