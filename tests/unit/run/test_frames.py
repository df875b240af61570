"""Tables of a run for pandas: one row a step, in order, however often it was interrupted."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest

import stoker
from compat.kept import FORMAT_1
from made_runs import BEGAN, RunMaker
from run_records import record
from stoker.errors import BadRequest
from stoker.run.directory import Run
from stoker.run.events import Events
from stoker.run.frames import EVALUATION_COLUMNS, ROW_COLUMNS, STEP_COLUMNS

pandas = pytest.importorskip("pandas")


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Killed at step 90, resumed at 70, interrupted at 120, resumed there, of two ranks."""
    maker = RunMaker(tmp_path_factory.mktemp("runs") / "resumed", steps=200, ranks=2)
    return maker.attempt(0, 90, None).attempt(70, 120, "interrupted").attempt(120, 200).run


def test_an_interrupted_run_has_one_row_a_step_in_order(resumed: Run) -> None:
    frame = stoker.Run(resumed.path).frame()
    assert frame["step"].tolist() == list(range(200))
    assert frame["position"].tolist() == [256 * step for step in range(200)]
    assert frame["attempt"].tolist() == [1] * 70 + [2] * 50 + [3] * 80
    assert frame["time"].is_monotonic_increasing
    assert frame["time"][0] > BEGAN
    assert frame["epoch"].tolist() == pytest.approx([step / 20 for step in range(200)])


def test_the_numbers_are_those_of_all_ranks(resumed: Run) -> None:
    frame = resumed.frame()
    assert tuple(frame.columns[: len(STEP_COLUMNS)]) == STEP_COLUMNS
    assert set(frame["images"]) == {256}
    for step in (0, 75, 199):
        own = [next(e for e in resumed.merged("step", r) if e["step"] == step) for r in (0, 1)]
        for place, name in enumerate(("loss", "top1", "top5")):
            mean = sum(event["sums"][place] for event in own) / 256
            assert frame[name][step] == pytest.approx(mean)
        parts = own[0]["parts"]
        assert frame["parts.forward"][step] == parts["forward"]
        assert frame["step_s"][step] == pytest.approx(sum(parts.values()))
        assert (frame["lr"][step], frame["norm"][step]) == (own[0]["lr"], 1.5)


def test_evaluations(resumed: Run) -> None:
    frame = resumed.frame("evaluation")
    assert tuple(frame.columns) == EVALUATION_COLUMNS
    assert frame["step"].tolist() == list(range(10, 200, 10))
    assert frame["attempt"].tolist() == [1] * 6 + [2] * 5 + [3] * 8
    assert frame["top1"].between(0.1, 1).all()
    assert set(frame["seconds"]) == {4.0}


def test_rows_add_up_to_the_steps(resumed: Run) -> None:
    steps, rows = resumed.frame(), resumed.frame("rows")
    assert set(ROW_COLUMNS) <= set(rows.columns)
    assert len(rows) < len(steps)
    assert rows["count"].sum() == 200
    assert rows["step"].tolist() == (rows["count"].cumsum() - 1).tolist()
    assert rows["images"].sum() == steps["images"].sum()
    assert rows["position"].iloc[-1] == 200 * 256
    for name in ("step_s", "parts.forward", "parts.exchange"):
        assert (rows[name] * rows["count"]).sum() == pytest.approx(steps[name].sum(), rel=1e-4)


@pytest.fixture
def odd(tmp_path: Path) -> Run:
    """A run with a NaN loss, a step of no images, and missing fields."""
    run = Run(tmp_path / "odd")
    run.create(record(), "")
    events = Events(run.events_path(run.new_attempt(), 0))
    events.write("attempt", position=0, step=0)
    facts = {"batch": 4, "images": 4, "parts": {"forward": 1.0, "checkpoint": 5.0}}
    events.write("step", step=0, position=0, sums=[math.nan, 2.0, 4.0], **facts)
    events.write("step", step=1, position=4, sums=[math.inf, 2.0, 4.0], norm="x", **facts)
    events.write("step", step=2, position=8, sums=[0.0, 0.0, 0.0], images=0)
    events.write("evaluation", step=3, position=12, images=4, top1=1, loss=math.nan)
    events.close()
    return run


@pytest.mark.parametrize("kind", ["steps", "rows"])
def test_what_is_not_known_is_nan(odd: Run, kind: str) -> None:
    frame = odd.frame(kind)
    assert len(frame) == 3
    assert math.isnan(frame["loss"][0])
    assert math.isinf(frame["loss"][1])
    assert math.isnan(frame["loss"][2])
    assert frame["norm"].isna().all()
    assert frame["top1"][0] == 0.5
    assert (frame["step_s"][0], frame["parts.checkpoint"][0]) == (1.0, 5.0)
    assert math.isnan(frame["step_s"][2])
    assert frame["parts.checkpoint"][2] == 0


def test_a_loss_of_an_evaluation_stays_nan(odd: Run) -> None:
    frame = odd.frame("evaluation")
    assert math.isnan(frame["loss"][0])
    assert (frame["top1"][0], frame["top5"][0]) == (0.25, 0.0)


@pytest.mark.parametrize("kind", ["steps", "evaluation", "rows"])
def test_a_run_without_steps_has_the_columns(tmp_path: Path, kind: str) -> None:
    Run(tmp_path / "new").create(record(), "")
    frame = Run(tmp_path / "new").frame(kind)
    assert len(frame) == 0
    assert {"step", "position", "loss", "top1"} <= set(frame.columns)
    assert frame["step"].dtype == "int64"


def test_a_run_of_an_earlier_version() -> None:
    frame = Run(FORMAT_1 / "finished-jpeg").frame()
    assert frame["step"].tolist() == list(range(54))


def test_another_kind_is_refused_with_those_there_are(odd: Run) -> None:
    with pytest.raises(BadRequest, match="steps, evaluation, rows"):
        odd.frame("step")


def test_without_pandas_it_says_what_to_install(odd: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(BadRequest, match="pip install pandas"):
        odd.frame()


def test_pandas_is_loaded_by_a_frame_alone() -> None:
    code = "import stoker, sys; stoker.Run('x').exists; sys.exit('pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
