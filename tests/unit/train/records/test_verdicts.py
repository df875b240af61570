"""A run says what it saw and what binds it; nothing about that can hurt it."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from measured import held, measured
from stoker.host import sampler as probes
from stoker.host.sampler import PATIENCE_S
from stoker.run.directory import Run
from stoker.run.events import Event, Events
from stoker.train.records import verdicts as watching
from stoker.train.records.verdicts import STEPS_JUDGED, VerdictWatch

NEVER = 1e9
PARTS = {"decode": 0.5, "forward": 0.2, "backward": 0.3}


class Stage:
    """One rank of a run that somebody watches; it trains nothing."""

    def __init__(self, path: Path, rank: int = 0, micro_batch: int = 0, **recipe: Any) -> None:
        self.run = Run(path)
        self.heard: list[Event] = []
        self.events = Events(self.run.events_path(1, rank), (self.heard.append,))
        self.step = SimpleNamespace(
            recipe=SimpleNamespace(**{"compile": False, **recipe}),
            state=SimpleNamespace(step=0),
            ranks=SimpleNamespace(first=rank == 0, rank=rank, device=torch.device("cpu")),
            spans=lambda name: nullcontext(),
            loaded="images",
            micro_batch=micro_batch,
        )
        self.watch = VerdictWatch(self.run, 1, self.events, self.step)  # type: ignore[arg-type]
        begin(self.events)

    def train(self, steps: int, parts: dict[str, float] = PARTS) -> None:
        """Steps and their events, as the loop would have them; then the loop looks up."""
        for _ in range(steps):
            write_step(self.events, self.step.state.step, parts)
            self.step.state.step += 1
        self.watch()

    def of_kind(self, kind: str) -> list[Event]:
        return [event for event in self.heard if event["kind"] == kind]


def begin(events: Events) -> None:
    events.write("attempt", step=0, position=0, environment={"host": "box"})


def write_step(events: Events, step: int, parts: dict[str, float]) -> None:
    facts = {"batch": 32, "parts": parts, "on_cpu": parts}
    events.write("step", step=step, position=step * 32, **facts)


@pytest.fixture
def due(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Nothing is due, until a test says so."""
    times = {"PROBE_S": NEVER, "FIRST_VERDICT_S": NEVER, "VERDICT_S": NEVER, "SHORT_STEP_S": 0.0}
    for name, seconds in times.items():
        monkeypatch.setattr(watching, name, seconds)
    monkeypatch.setattr(probes, "PATIENCE_S", 60)  # a slow machine is waited for
    return times


@pytest.fixture
def stages(tmp_path: Path, due: dict[str, float]) -> Iterator[Any]:
    made: list[Stage] = []

    def make(rank: int = 0, **recipe: Any) -> Stage:
        made.append(Stage(tmp_path / "run", rank, **recipe))
        return made[-1]

    yield make
    for stage in made:
        stage.watch.close()
        stage.events.close()


def probing() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "stoker-probes"}


class TestThread:
    def test_is_not_started_before_the_run_begins(self, stages: Any) -> None:
        before = probing()
        stage = stages()
        stage.train(20)
        assert probing() <= before
        stage.watch.begin()
        assert len(probing() - before) == 1

    @measured(5)
    def test_ends_quickly_and_for_good(self, stages: Any) -> None:
        before, stage = probing(), stages()
        stage.watch.begin()
        began = time.monotonic()
        stage.watch.close()
        took_s = time.monotonic() - began
        assert probing() <= before
        held(took_s < PATIENCE_S, took_s)
        stage.watch.close()
        stage.watch.begin()
        assert probing() <= before

    def test_that_never_began_can_be_ended(self, stages: Any) -> None:
        stages().watch.close()


class TestProbes:
    def test_are_on_record_with_their_step(
        self, stages: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(watching, "PROBE_S", 0.0)
        stage = stages()
        for _ in range(3):
            stage.train(4)
        assert [event["step"] for event in stage.of_kind("probe")] == [4, 8, 12]
        stage.events.flush()
        kept = [e for e in stage.run.attempt_events(1) if e["kind"] == "probe"]
        assert kept == stage.of_kind("probe")

    def test_tell_what_the_machine_did(self, stages: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        stage = stages()
        told = {"seconds": 10.0, "lock": {"late_share": 0.25}, "failed": "OSError: gone"}
        monkeypatch.setattr(stage.watch.sampler, "take", lambda: told)
        stage.watch.probe()
        (event,) = stage.of_kind("probe")
        assert told.items() <= event.items()

    def test_of_a_real_sampler_can_be_written_down(self, stages: Any) -> None:
        stage = stages()
        stage.watch.begin()
        stage.watch.close()  # a last look, and so one to compare the first with
        stage.watch.probe()
        (event,) = stage.of_kind("probe")
        assert event["seconds"] >= 0
        assert json.loads(json.dumps(event)) == event

    def test_wait_until_they_are_due(self, stages: Any) -> None:
        stage = stages()
        stage.train(10)
        assert stage.of_kind("probe") == []

    def test_come_from_every_rank(self, stages: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(watching, "PROBE_S", 0.0)
        for rank in range(2):
            stage = stages(rank)
            stage.train(1)
            assert len(stage.of_kind("probe")) == 1


class TestVerdict:
    @pytest.fixture(autouse=True)
    def at_once(self, due: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(watching, "FIRST_VERDICT_S", 0.0)

    def test_is_on_record_when_it_is_due(self, stages: Any) -> None:
        stage = stages()
        stage.train(20)
        (verdict,) = stage.of_kind("verdict")
        assert verdict["step"] == 20
        assert verdict["limit"] == "decode"
        assert verdict["lines"][0].startswith("slowed by decoding")
        assert verdict["step_s"] == pytest.approx(1.0)
        assert (
            list(stage.run.attempt_events(1))[-1]["kind"] != "verdict"
        )  # written, not yet flushed
        stage.events.flush()
        assert list(stage.run.attempt_events(1))[-1] == verdict

    def test_comes_again_only_after_its_time(
        self, stages: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stage = stages()
        stage.train(20)
        stage.train(20)
        assert len(stage.of_kind("verdict")) == 1
        monkeypatch.setattr(watching, "VERDICT_S", 0.0)
        again = stages()
        again.train(20)
        again.train(20)
        assert [event["step"] for event in again.of_kind("verdict")] == [20, 40]

    def test_is_not_there_before_its_time(
        self, stages: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(watching, "FIRST_VERDICT_S", NEVER)
        stage = stages()
        stage.train(20)
        assert stage.of_kind("verdict") == []

    def test_is_not_there_where_there_is_nothing_to_judge(self, stages: Any) -> None:
        stage = stages()
        stage.train(2)
        assert stage.of_kind("verdict") == []

    def test_is_rank_0_s_to_say(self, stages: Any) -> None:
        first, second = stages(0), stages(1)
        second.train(20)
        second.events.flush()
        assert second.of_kind("verdict") == []
        assert second.watch.judge(20) is None
        first.train(20)
        assert len(first.of_kind("verdict")) == 1

    def test_is_about_all_ranks(self, stages: Any) -> None:
        first, second = stages(0), stages(1)
        second.train(20, {"forward": 2.0, "exchange": 0.0})
        second.events.flush()
        first.train(20, {"forward": 1.0, "exchange": 1.0})
        (verdict,) = first.of_kind("verdict")
        assert verdict["limit"] == "straggler"
        assert "rank 1" in verdict["words"]

    def test_is_about_the_latest_steps(self, stages: Any) -> None:
        stage = stages()
        stage.watch._judge_at = time.monotonic() + NEVER
        stage.train(3 * STEPS_JUDGED)
        stage.train(STEPS_JUDGED, {"forward": 3.0})
        found = stage.watch.judge(stage.step.state.step)
        assert found is not None
        assert (found.limit, found.step_s) == ("compute", pytest.approx(3.0))

    def test_of_the_end_is_the_same_as_of_the_run_directory(self, stages: Any) -> None:
        from stoker.measure.facts_from_events import facts_of_run
        from stoker.measure.verdict import verdict_of

        stage = stages()
        stage.train(40)
        stage.events.flush()
        newest, whole = stage.watch.judge(40), verdict_of(facts_of_run(stage.run, 1))
        assert newest is not None
        assert whole is not None
        assert newest.lines() == whole.lines()
        assert newest.step_s == pytest.approx(whole.step_s)


class TestTrial:
    @pytest.fixture
    def tried(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        seen: list[int] = []

        def cost(step: Any, free_bytes: int) -> tuple[float, float] | None:
            seen.append(step.state.step)
            return (0.0123456789, 0.05) if step.loaded == "images" else None

        monkeypatch.setattr(watching, "larger_batch", cost)
        monkeypatch.setattr(watching, "SHORT_STEP_S", NEVER)
        return seen

    def test_is_made_once_after_some_steps(self, stages: Any, tried: list[int]) -> None:
        stage = stages()
        for _ in range(40):
            stage.train(1)
        assert tried == [watching.STEPS_BEFORE_TRIAL]
        (event,) = stage.of_kind("larger_batch")
        assert event["step"] == watching.STEPS_BEFORE_TRIAL
        assert (event["seconds"], event["larger_s"]) == (0.012346, 0.05)

    def test_that_fails_is_not_on_record(self, stages: Any, tried: list[int]) -> None:
        stage = stages()
        stage.step.loaded = "more images than fit"
        for _ in range(40):
            stage.train(1)
        assert len(tried) == 1
        assert stage.of_kind("larger_batch") == []

    def test_is_not_made_of_steps_that_take_their_time(
        self, stages: Any, tried: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(watching, "SHORT_STEP_S", 0.0)
        stage = stages()
        for _ in range(40):
            stage.train(1)
        assert tried == []

    def test_is_not_made_of_a_compiled_model(self, stages: Any, tried: list[int]) -> None:
        stage = stages(compile=True)
        for _ in range(40):
            stage.train(1)
        assert tried == []

    def test_is_not_made_of_a_batch_in_pieces(self, stages: Any, tried: list[int]) -> None:
        stage = stages(micro_batch=8)
        for _ in range(40):
            stage.train(1)
        assert tried == []

    def test_is_not_made_without_images(self, stages: Any, tried: list[int]) -> None:
        stage = stages()
        stage.step.loaded = None
        for _ in range(40):
            stage.train(1)
        assert tried == []


class TestTrouble:
    @pytest.fixture(autouse=True)
    def everything_is_due(self, due: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("PROBE_S", "FIRST_VERDICT_S", "VERDICT_S"):
            monkeypatch.setattr(watching, name, 0.0)

    def test_of_a_run_directory_that_vanishes_does_not_hurt(self, stages: Any) -> None:
        stage = stages()
        stage.watch.begin()
        stage.train(20)
        shutil.rmtree(stage.run.path)
        stage.train(20)
        stage.watch.close()
        assert len(stage.of_kind("probe")) == 2

    def test_of_a_disk_that_takes_nothing_does_not_hurt(
        self, stages: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stage = stages()
        stage.watch.begin()
        stage.train(20)

        def refuse(*given: Any) -> int:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

        with monkeypatch.context() as read_only:
            read_only.setattr("stoker.run.events.os.write", refuse)
            stage.train(20)
            stage.watch.close()
        assert stage.events.flush()
        kinds = [event["kind"] for event in stage.run.attempt_events(1)]
        assert kinds.count("probe") == 2 and kinds.count("step") == 40

    def test_of_another_rank_s_file_does_not_hurt(self, stages: Any) -> None:
        stage = stages()
        for rank, content in enumerate([b"", b"{", b"\0" * 100, b"[1]\n3\n{}\n"], 1):
            stage.run.events_path(1, rank).write_bytes(content)
        stage.run.events_path(1, 9).mkdir()
        stage.run.events_path(1, 0).with_name("rank0 (copy).jsonl").write_text("hello")
        stage.train(20)
        assert len(stage.of_kind("verdict")) == 1

    def test_in_judging_is_a_note_and_no_more(
        self, stages: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(facts: Any) -> None:
            raise ZeroDivisionError("no steps")

        monkeypatch.setattr(watching, "verdict_of", fail)
        stage = stages()
        stage.train(20)
        (note,) = stage.of_kind("note")
        assert "no steps" in note["words"]
        assert stage.of_kind("verdict") == []
