"""A run directory has one value for each step, however often its writer was killed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from run_records import record
from stoker.errors import BadRequest
from stoker.run.directory import Run
from stoker.run.events import Event, Events

BATCH = 10


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "run")


def attempt(run: Run, resumed: int, ended: int, *, ranks: int = 1, **facts: Any) -> int:
    """An attempt that does the steps from `resumed` up to `ended`, then dies without a word."""
    number = run.new_attempt()
    for rank in range(ranks):
        events = Events(run.events_path(number, rank))
        events.write("attempt", position=resumed * BATCH, step=resumed)
        for step in range(resumed, ended):
            share = BATCH // ranks
            sums = [number * 1.0, float(rank), 1.0]
            events.write("step", step=step, position=step * BATCH, images=share, sums=sums, **facts)
        events.close()
    return number


def note(run: Run, number: int, kind: str, **facts: Any) -> None:
    events = Events(run.events_path(number, 0))
    events.write(kind, **facts)
    events.close()


def doers(run: Run) -> list[int]:
    """Which attempt each step is taken from."""
    steps = run.merged("step")
    assert [event["step"] for event in steps] == list(range(len(steps)))
    return [event["attempt"] for event in steps]


class TestEvents:
    def test_what_was_flushed_is_there_for_others(self, tmp_path: Path) -> None:
        path = tmp_path / "new" / "folder" / "rank0.jsonl"
        events = Events(path)
        events.write("step", step=3)
        events.flush()
        (line,) = path.read_text().splitlines()
        event = json.loads(line)
        assert (event["kind"], event["step"]) == ("step", 3)
        assert event["time"] > 0

    def test_a_second_writer_appends(self, tmp_path: Path) -> None:
        for number in range(3):
            events = Events(tmp_path / "rank0.jsonl")
            events.write("step", step=number)
            events.close()
        lines = (tmp_path / "rank0.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines] == [0, 1, 2]

    def test_listeners_see_what_the_file_says(self, tmp_path: Path) -> None:
        seen: list[Event] = []
        events = Events(tmp_path / "rank0.jsonl", (seen.append, seen.append))
        events.write("evaluation", top1=7)
        events.close()
        written = json.loads((tmp_path / "rank0.jsonl").read_text())
        assert seen == [written, written]

    def test_a_torn_last_line_is_passed_over_wherever_it_is_torn(self, run: Run) -> None:
        attempt(run, 0, 2)
        path = run.events_path(1, 0)
        whole = path.read_bytes()
        last = whole.rstrip(b"\n").rfind(b"\n") + 1
        for length in range(last, len(whole) - 1):
            path.write_bytes(whole[:length])
            assert doers(run) == [1]
        path.write_bytes(whole[:-1])
        assert doers(run) == [1, 1]

    def test_after_a_torn_line_the_next_attempt_is_read(self, run: Run) -> None:
        attempt(run, 0, 3)
        path = run.events_path(1, 0)
        path.write_bytes(path.read_bytes()[:-5])
        attempt(run, 1, 4)
        assert doers(run) == [1, 2, 2, 2]

    def test_an_attempt_without_a_file_is_empty(self, run: Run) -> None:
        run.new_attempt()
        assert list(run.events()) == []
        assert run.end() is None


class TestMerged:
    @pytest.mark.parametrize(
        ("attempts", "expected"),
        [
            ([(0, 5)], [1, 1, 1, 1, 1]),
            ([(0, 5), (5, 7)], [1, 1, 1, 1, 1, 2, 2]),
            ([(0, 5), (3, 7)], [1, 1, 1, 2, 2, 2, 2]),
            ([(0, 5), (0, 7)], [2, 2, 2, 2, 2, 2, 2]),
            ([(0, 5), (2, 3)], [1, 1, 2]),
            ([(0, 5), (2, 2)], [1, 1]),
            ([(0, 5), (3, 4), (3, 6)], [1, 1, 1, 3, 3, 3]),
            ([(0, 5), (4, 6), (2, 3), (3, 5)], [1, 1, 3, 4, 4]),
            ([], []),
        ],
    )
    def test_a_later_attempt_replaces_from_where_it_resumed(
        self, run: Run, attempts: list[tuple[int, int]], expected: list[int]
    ) -> None:
        for resumed, ended in attempts:
            attempt(run, resumed, ended)
        assert doers(run) == expected

    @settings(max_examples=30, deadline=None)
    @given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=6))
    def test_any_history_is_one_run(
        self, tmp_path_factory: pytest.TempPathFactory, history: list[tuple[int, int]]
    ) -> None:
        run, expected = Run(tmp_path_factory.mktemp("run")), []
        for number, (start, steps) in enumerate(history, 1):
            resumed = min(start, len(expected))
            expected = expected[:resumed] + [number] * steps
            attempt(run, resumed, resumed + steps)
        assert doers(run) == expected

    def test_an_evaluation_at_the_very_place_of_resuming_is_kept(self, run: Run) -> None:
        attempt(run, 0, 5)
        note(run, 1, "evaluation", position=30, images=9, top1=1)
        note(run, 1, "evaluation", position=40, images=9, top1=2)
        attempt(run, 3, 4)
        assert [event["top1"] for event in run.merged("evaluation")] == [1]

    def test_and_replaced_by_one_that_is_made_there_again(self, run: Run) -> None:
        attempt(run, 0, 5)
        note(run, 1, "evaluation", position=30, images=9, top1=1)
        note(run, 1, "evaluation", position=40, images=9, top1=2)
        attempt(run, 3, 5)
        note(run, 2, "evaluation", position=30, images=9, top1=3)
        note(run, 2, "evaluation", position=40, images=9, top1=4)
        assert [event["top1"] for event in run.merged("evaluation")] == [3, 4]

    def test_every_event_carries_its_attempt(self, run: Run) -> None:
        attempt(run, 0, 1)
        attempt(run, 1, 2)
        kinds = [(event["attempt"], event["kind"]) for event in run.events()]
        assert kinds == [(1, "attempt"), (1, "step"), (2, "attempt"), (2, "step")]


class TestSteps:
    def test_images_and_sums_are_taken_over_all_ranks(self, run: Run) -> None:
        attempt(run, 0, 3, ranks=2)
        steps = run.steps()
        assert [event["step"] for event in steps] == [0, 1, 2]
        assert {event["images"] for event in steps} == {BATCH}
        assert [event["sums"] for event in steps] == [[2.0, 1.0, 2.0]] * 3

    def test_each_rank_is_merged_first(self, run: Run) -> None:
        attempt(run, 0, 4, ranks=2)
        attempt(run, 2, 4, ranks=2)
        assert [event["sums"][0] for event in run.steps()] == [2.0, 2.0, 4.0, 4.0]

    @pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (5, 2)])
    def test_a_run_may_go_on_with_another_number_of_ranks(
        self, run: Run, before: int, after: int
    ) -> None:
        attempt(run, 0, 4, ranks=before)
        attempt(run, 2, 6, ranks=after)
        images = [event["images"] for event in run.steps()]
        assert images == [BATCH] * 6

    def test_no_attempts_have_no_steps(self, run: Run) -> None:
        assert run.steps() == []


class TestEnd:
    def test_a_run_that_was_never_started_has_not_ended(self, run: Run) -> None:
        assert run.end() is None
        assert not run.finished

    def test_a_killed_run_has_not_ended(self, run: Run) -> None:
        attempt(run, 0, 3)
        assert run.end() is None
        assert not run.finished

    @pytest.mark.parametrize(
        ("outcome", "finished"), [("finished", True), ("interrupted", False), ("failed", False)]
    )
    def test_the_outcome_is_the_latest_attempts(
        self, run: Run, outcome: str, finished: bool
    ) -> None:
        for number, how in enumerate(("failed", outcome), 1):
            attempt(run, 0, 3)
            note(run, number, "end", outcome=how, reason=None)
        end = run.end()
        assert end is not None and end["outcome"] == outcome
        assert run.finished == finished

    def test_what_goes_on_has_not_ended(self, run: Run) -> None:
        attempt(run, 0, 3)
        note(run, 1, "end", outcome="interrupted", reason="SIGTERM")
        attempt(run, 3, 5)
        assert run.end() is None


class TestRecord:
    def test_it_is_what_the_run_was_created_with(self, run: Run) -> None:
        assert not run.exists
        mine = record(recipe="mine", classes=["é", "b"])
        run.create(mine, "epochs = 3\n")
        assert run.exists
        assert Run(run.path).record == mine
        assert (run.path / "recipe.toml").read_text() == "epochs = 3\n"

    def test_creating_again_changes_nothing(self, run: Run) -> None:
        run.create(record(recipe="mine"), "epochs = 3\n")
        run.create(record(recipe="other"), "epochs = 4\n")
        assert run.record == record(recipe="mine")
        assert (run.path / "recipe.toml").read_text() == "epochs = 3\n"

    @pytest.mark.parametrize("name", ["nowhere", "empty", "file.txt"])
    def test_what_is_no_run_is_refused_by_name(self, tmp_path: Path, name: str) -> None:
        (tmp_path / "empty").mkdir()
        (tmp_path / "file.txt").touch()
        with pytest.raises(BadRequest, match=f"{name} is not a run"):
            Run(tmp_path / name).record  # noqa: B018

    def test_attempts_are_numbered_from_one(self, run: Run) -> None:
        assert run.attempts() == []
        assert [run.new_attempt(), run.new_attempt()] == [1, 2]
        assert run.attempts() == [1, 2]

    def test_files_of_strangers_are_no_attempts(self, run: Run) -> None:
        attempt(run, 0, 3)
        (run.path / "attempts" / ".DS_Store").touch()
        assert run.attempts() == [1]
        assert run.new_attempt() == 2


def test_unlocking_twice_does_no_harm(run: Run) -> None:
    run.lock(patience_s=0)
    run.unlock()
    run.unlock()
    run.lock(patience_s=0)
    run.unlock()
