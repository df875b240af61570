"""What a screen says about runs of every kind: young, old, damaged, diverged, empty."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from made_runs import RunMaker
from stoker.history.usage import Usage
from stoker.run.events import Events
from stoker.show.watch.layout import full_screen
from stoker.show.watch.run_texts import gpu_texts, usage_texts
from stoker.show.watch.screen_data import WatchedRun
from stoker.show.watch.watcher import RunWatcher

FIRST_FORMAT = sorted((Path(__file__).parents[3] / "compat" / "data" / "1").glob("*-*/"))
FIRST_FORMAT = [path for path in FIRST_FORMAT if (path / "run.json").exists()]
GPU = {"busy": 0.93, "used_bytes": 30e9, "total_bytes": 40e9, "power_w": 310.0}


def look(maker: RunMaker, later_s: float = 5.0) -> WatchedRun:
    return RunWatcher(maker.run.path).look(maker.clock.now + later_s)


def add(maker: RunMaker, kind: str, attempt: int = 1, rank: int = 0, **facts: Any) -> None:
    """Add an event to an attempt, at the time of the run's own clock."""
    with mock.patch("stoker.run.events.time", maker.clock):
        events = Events(maker.run.events_path(attempt, rank))
        events.write(kind, **facts)
        events.close()


def steps(maker: RunMaker, losses: list[float]) -> None:
    """An attempt with these losses, a step each."""
    maker.run.attempt_path(1).mkdir(parents=True)
    with mock.patch("stoker.run.events.time", maker.clock):
        events = Events(maker.run.events_path(1, 0))
        events.write("attempt", step=0, position=0, steps=len(losses), samples=10, epochs=1)
        for number, loss in enumerate(losses):
            maker.clock.now += 11.0
            events.write(
                "step", step=number, position=number * 4, batch=4, images=4,
                sums=[loss * 4, 1.0, 2.0], parts={"forward": 1.0, "read": 1.0}, lr=0.1,
            )  # fmt: skip
        events.close()


class TestState:
    def test_running(self, tmp_path: Path) -> None:
        run = look(RunMaker(tmp_path, steps=100).attempt(0, 60, None))
        assert (run.state, run.step, run.epoch) == ("running", "step 60 of 100", "epoch 6.00 of 10")
        assert run.eta.startswith("ends in ") and run.share == 0.6

    def test_silent(self, tmp_path: Path) -> None:
        run = look(RunMaker(tmp_path, steps=100).attempt(0, 60, None), 130.0)
        assert run.state_text == "running, silent for 2:10"

    @pytest.mark.parametrize(
        ("outcome", "state", "text"),
        [
            ("finished", "finished", "finished"),
            ("interrupted", "stopped", "stopped (SIGTERM)"),
            ("failed", "failed", "failed"),
        ],
    )
    def test_ended(self, tmp_path: Path, outcome: str, state: str, text: str) -> None:
        run = look(RunMaker(tmp_path, steps=50).attempt(0, 50, outcome))
        assert (run.state, run.state_text) == (state, text)
        assert run.eta.startswith("trained ")

    def test_killed(self, tmp_path: Path) -> None:
        run = look(RunMaker(tmp_path, steps=100).attempt(0, 60, None), 4000.0)
        assert run.state == "killed" and "killed after" in run.attempts[0]

    def test_without_steps(self, tmp_path: Path) -> None:
        run = look(RunMaker(tmp_path, steps=100))
        assert (run.state, run.step, run.money, run.speed) == ("new", "", "", "")
        assert run.about == "resnet18 on photos"


class TestNumbers:
    def test_nothing_unmeasured_is_shown(self, tmp_path: Path) -> None:
        maker = RunMaker(tmp_path, steps=4)
        steps(maker, [2.0, 1.5, 1.2])
        run = look(maker)
        assert (run.machines, run.ranks, run.accuracy) == ((), "", "")
        text = "\n".join(line.plain for line in full_screen(run, 80, 40, "step"))
        for label in ("machine", "ranks", "incidents"):
            assert label not in text
        assert "not evaluated yet" in text

    def test_the_parts_of_a_step_add_up(self, tmp_path: Path) -> None:
        run = look(RunMaker(tmp_path, steps=200).attempt(0, 200))
        assert sum(share for _, share in run.parts) == pytest.approx(1.0)
        shares = dict(run.parts)
        assert shares["backward"] == pytest.approx(0.5, abs=0.01)
        assert shares["data wait"] == pytest.approx(0.1, abs=0.01)

    def test_money(self, tmp_path: Path) -> None:
        priced = look(RunMaker(tmp_path / "a", steps=100).attempt(0, 60, None))
        assert priced.money.startswith("$") and "to the end, at $2.00 an hour" in priced.money
        free = look(RunMaker(tmp_path / "b", steps=100, dollars_per_h=None).attempt(0, 60, None))
        assert "--price-per-hour" in free.money and free.dollars == ""

    def test_ranks(self, tmp_path: Path) -> None:
        run = look(RunMaker(tmp_path, steps=100, ranks=3).attempt(0, 100))
        assert run.ranks.startswith("slowest rank ") and run.ranks.endswith("x")
        assert run.loss.endswith("(of rank 0)")

    def test_the_axes_of_a_curve_are_those_of_the_run(self, tmp_path: Path) -> None:
        run = look(RunMaker(tmp_path, steps=1000).attempt(0, 1000))
        for curve in (run.curves.loss, run.curves.accuracy, run.curves.lr):
            assert len(curve.y) == len(curve.step) == len(curve.epoch) == len(curve.time)
            assert list(curve.step) == sorted(curve.step)
            assert list(curve.time) == sorted(curve.time)
            for step, epoch in zip(curve.step, curve.epoch, strict=True):
                assert epoch == pytest.approx(step / 100, abs=0.01)
        assert run.curves.accuracy.step[0] == pytest.approx(50, abs=1)

    def test_a_part_that_a_gpu_does_not_measure_is_left_out(self) -> None:
        assert gpu_texts({0: GPU}) == ["GPU 0 93% busy, 30.0 of 40.0 GB, 310 W"]
        assert gpu_texts({0: {**GPU, "temperature_c": 61.0}})[0].endswith("310 W, 61 °C")
        assert gpu_texts({0: {"busy": 0.5}}) == ["GPU 0 50% busy"]
        assert gpu_texts({0: {}}) == gpu_texts({}) == []

    def test_several_gpus_are_one_range(self) -> None:
        gpus = {0: GPU, 1: {**GPU, "busy": 0.5}}
        assert gpu_texts(gpus) == ["2 GPUs 50-93% busy, 30.0 of 40.0 GB, 310 W"]

    def test_the_use_of_a_machine_is_a_mean_of_what_was_measured(self) -> None:
        rows = [Usage(1.0, 1, busy=0.5), Usage(2.0, 2, busy=0.7, read_s=2e6), Usage(3.0, 3)]
        assert usage_texts(rows, is_shared=False) == ["CPU 60% busy", "disk read 2.0 MB/s"]
        assert usage_texts([Usage(1.0, 1)], is_shared=False) == []


class TestDivergence:
    def test_a_loss_that_is_not_a_number_is_said(self, tmp_path: Path) -> None:
        maker = RunMaker(tmp_path, steps=9)
        steps(maker, [2.0, 1.5, float("nan"), float("inf")])
        run = look(maker)
        assert "(diverged)" in run.loss
        assert len(full_screen(run, 80, 23, "step")) <= 23

    def test_a_gap_is_said(self, tmp_path: Path) -> None:
        maker = RunMaker(tmp_path, steps=9)
        steps(maker, [2.0, float("nan"), 1.0])
        assert "gaps" in look(maker).loss

    def test_only_bad_losses(self, tmp_path: Path) -> None:
        maker = RunMaker(tmp_path, steps=9)
        steps(maker, [float("nan")] * 3)
        text = "\n".join(line.plain for line in full_screen(look(maker), 80, 23, "time"))
        assert "not a number" in text


class TestIncidents:
    def test_the_newest_first_and_equal_ones_once(self, tmp_path: Path) -> None:
        maker = RunMaker(tmp_path, steps=60).attempt(0, 60)
        for _ in range(3):
            maker.clock.now += 10
            add(maker, "stall", words="no step for 60 s")
        add(maker, "save_failed", reason="the disk is full")
        add(maker, "faults", words={"odd": 1})
        add(maker, "skipped", step=7, position=70)
        run = look(maker)
        assert run.incidents == (
            "5 s ago: skipped: step 7: its batch had caused a roll-back",
            "5 s ago: faults",
            "5 s ago: save failed: the disk is full",
            "5 s ago: stall: no step for 60 s (3 times)",
        )

    def test_of_another_rank(self, tmp_path: Path) -> None:
        maker = RunMaker(tmp_path, steps=60, ranks=2).attempt(0, 60)
        add(maker, "note", rank=1, words="slow disk")
        assert look(maker).incidents == ("5 s ago: note on rank 1: slow disk",)

    def test_damage_is_said(self, tmp_path: Path) -> None:
        maker = RunMaker(tmp_path, steps=60).attempt(0, 60)
        with maker.run.events_path(1, 0).open("ab") as file:
            file.write(b"{not json}\n")
        assert "1 damaged line" in look(maker).incidents[0]


class TestVerdict:
    def test_of_the_run(self, tmp_path: Path) -> None:
        run = look(RunMaker(tmp_path, steps=60).attempt(0, 60))
        assert run.verdict[0] == "bound by compute: 83% of the time"
        assert run.verdict_at == "as of step 60"

    def test_is_computed_where_the_run_gave_none(self, tmp_path: Path) -> None:
        run = look(RunMaker(tmp_path, steps=200).attempt(0, 120, None))
        assert run.verdict and run.verdict[0].startswith("slowed by ") and not run.verdict_at

    def test_too_few_steps(self, tmp_path: Path) -> None:
        run = look(RunMaker(tmp_path, steps=200).attempt(0, 5, None))
        text = "\n".join(line.plain for line in full_screen(run, 80, 23, "step"))
        assert run.verdict == () and "none yet: too few steps" in text


@pytest.mark.parametrize("path", FIRST_FORMAT, ids=lambda path: path.name)
def test_runs_of_the_first_format(path: Path) -> None:
    run = RunWatcher(path).look()
    assert run.state in (("finished",) if path.name == "finished-jpeg" else ("stopped", "killed"))
    assert run.curves.loss.y and run.parts and run.checkpoint.startswith("step ")
    for width, height in ((80, 23), (160, 49)):
        assert len(full_screen(run, width, height, "epoch")) <= height


def test_a_damaged_record_is_said(tmp_path: Path) -> None:
    maker = RunMaker(tmp_path, steps=60).attempt(0, 60)
    (tmp_path / "run.json").write_text(json.dumps({"format": 1}))
    run = look(maker)
    assert "damaged" in run.notice and run.step == "step 60 of 60"
