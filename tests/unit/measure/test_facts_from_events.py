"""The facts of a run are what its events say: means of the steps that count, rank by rank."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from stoker.measure.facts import Facts
from stoker.measure.facts_from_events import WARM_UP, facts_of_run
from stoker.measure.spans import ONCE
from stoker.measure.verdict import verdict_of
from stoker.run.directory import Run
from stoker.run.events import Events

BATCH = 32
WORK = {"read": 0.01, "decode": 0.04, "cpu": 0.045}
PARTS_OF_A_STEP = {"decode": 0.1, "forward": 0.3, "backward": 0.5, "other": 0.1}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "run")


class Rank:
    """Writes the events of one rank of one attempt, as a run does."""

    def __init__(self, run: Run, rank: int = 0, resumed: int = 0, **more: Any) -> None:
        self.path = run.events_path(1, rank)
        self.events = Events(self.path)
        self.step = resumed
        start = {"world": 1, "local_world": 1, "loading_threads": 2, "environment": {"cores": 4}}
        self.events.write("attempt", step=resumed, position=resumed * BATCH, **{**start, **more})

    def train(self, laps: Iterable[dict[str, float]], **more: Any) -> Rank:
        for parts in laps:
            facts = {"batch": BATCH, "work": WORK, "on_cpu": parts, **more}
            position = self.step * BATCH
            self.events.write("step", step=self.step, position=position, parts=parts, **facts)
            self.step += 1
        return self

    def warm_up(self) -> Rank:
        """The steps that do not count, far slower than the rest."""
        return self.train([{"forward": 100.0}] * WARM_UP)

    def write(self, kind: str, **facts: Any) -> Rank:
        place = {"step": self.step, "position": self.step * BATCH}
        self.events.write(kind, **{**place, **facts})
        return self

    def probe(self, **readings: Any) -> Rank:
        return self.write("probe", **{"seconds": 10.0, **readings})

    def end(self, parts: dict[str, float]) -> Rank:
        return self.write("end", outcome="finished", parts=parts)

    def close(self) -> None:
        self.events.close()


def facts_of(run: Run, first: int = 0, last: int = 1 << 30) -> Facts:
    facts = facts_of_run(run, 1, lambda step: first <= step < last)
    assert facts is not None
    return facts


class TestSteps:
    def test_are_told_by_their_mean_not_by_a_typical_one(self, run: Run) -> None:
        laps = [{"decode": 0.0, "forward": 1.0}] * 9 + [{"decode": 10.0, "forward": 1.0}]
        Rank(run).warm_up().train(laps).close()
        facts = facts_of(run)
        assert facts.part("decode") == pytest.approx(1.0)
        assert facts.step_s == pytest.approx(2.0)
        assert facts.steps == 10

    def test_a_part_that_some_steps_have_not_counts_as_nothing_there(self, run: Run) -> None:
        Rank(run).warm_up().train([{"evaluation": 4.0}, {}, {}, {}]).close()
        assert facts_of(run).part("evaluation") == pytest.approx(1.0)

    def test_that_warm_up_an_attempt_are_left_out(self, run: Run) -> None:
        Rank(run).warm_up().train([PARTS_OF_A_STEP] * 5).close()
        facts = facts_of(run)
        assert facts.steps == 5
        assert facts.step_s == pytest.approx(1.0)

    def test_warm_up_a_resumed_attempt_too(self, run: Run) -> None:
        Rank(run, resumed=1000).warm_up().train([PARTS_OF_A_STEP] * 5).close()
        assert facts_of(run).step_s == pytest.approx(1.0)
        assert facts_of(run, first=1001).steps == 5

    def test_too_few_to_warm_up_tell_nothing(self, run: Run) -> None:
        Rank(run).warm_up().close()
        assert facts_of_run(run, 1) is None
        assert verdict_of(facts_of_run(run, 1)) is None

    def test_are_those_of_the_window(self, run: Run) -> None:
        Rank(run).warm_up().train([{"forward": float(n)} for n in range(WARM_UP, 20)]).close()
        facts = facts_of(run, first=10, last=15)
        assert facts.steps == 5
        assert facts.part("forward") == pytest.approx(statistics.fmean(range(10, 15)))
        assert facts_of(run, first=10).steps == 10
        assert facts_of(run, last=10).steps == 10 - WARM_UP
        assert facts_of_run(run, 1, lambda step: step >= 20) is None

    def test_bring_their_images_threads_and_cores_along(self, run: Run) -> None:
        Rank(run, capacity=1e9).warm_up().train([PARTS_OF_A_STEP] * 4).close()
        facts = facts_of(run)
        assert (facts.images, facts.threads, facts.cores) == (BATCH, 2, 4)
        assert (facts.capacity, facts.local_world) == (1e9, 1)
        assert facts.cpu_floor_s() == pytest.approx((1.0 + 0.045) / 4)
        assert facts.cpu_floor_s("read") == pytest.approx((1.0 + 0.045 - 0.01) / 4)
        assert facts.work("read", "decode") == pytest.approx(0.025)
        assert facts.ranks[0].on_cpu == pytest.approx(PARTS_OF_A_STEP)

    def test_of_another_attempt_are_not_read(self, run: Run) -> None:
        Rank(run).warm_up().train([PARTS_OF_A_STEP] * 4).close()
        assert facts_of_run(run, 2) is None


class TestOnce:
    @pytest.mark.parametrize("part", ONCE)
    def test_is_no_part_of_a_step(self, run: Run, part: str) -> None:
        laps = [{**PARTS_OF_A_STEP, part: 50.0}, *[PARTS_OF_A_STEP] * 3]
        Rank(run).warm_up().train(laps).end({part: 9.0}).close()
        facts = facts_of(run)
        assert facts.step_s == pytest.approx(1.0)
        assert part not in facts.ranks[0].parts
        assert part not in facts.ranks[0].on_cpu

    def test_does_not_make_a_rank_slow(self, run: Run) -> None:
        Rank(run, 0).warm_up().train([{"forward": 1.0}] * 10).close()
        Rank(run, 1).warm_up().train([{"forward": 1.0, "measuring": 3.0}] * 10).close()
        assert [rank.slow_share for rank in facts_of(run).ranks] == [0.0, 0.0]


class TestRest:
    def test_is_spread_over_the_steps(self, run: Run) -> None:
        rank = Rank(run).warm_up().train([{"forward": 1.0}] * 4)
        rank.write("skipped", parts={"decode": 2.0})
        rank.end({"checkpoint": 4.0, "forward": 2.0}).close()
        facts = facts_of(run)
        assert facts.ranks[0].parts == pytest.approx(
            {"forward": 1.5, "decode": 0.5, "checkpoint": 1.0}
        )
        assert facts.steps == 4

    def test_belongs_to_the_end_and_to_no_window_before_it(self, run: Run) -> None:
        Rank(run).train([{"forward": 1.0}] * 9).end({"checkpoint": 9.0}).close()
        assert facts_of(run, last=8).part("checkpoint") == 0

    def test_before_the_window_or_in_the_warm_up_counts_for_nothing(self, run: Run) -> None:
        rank = Rank(run).write("skipped", parts={"decode": 90.0}).warm_up()
        rank.train([{"forward": 1.0}] * 3).write("skipped", parts={"decode": 3.0})
        rank.train([{"forward": 1.0}] * 3).close()
        assert facts_of(run).part("decode") == pytest.approx(0.5)
        assert facts_of(run, first=8).part("decode") == 0
        assert facts_of(run, last=6).part("decode") == 0

    def test_is_shared_by_the_steps_of_a_window_at_the_end(self, run: Run) -> None:
        Rank(run).train([{"forward": 1.0}] * 9).end({"checkpoint": 9.0}).close()
        assert facts_of(run, first=6).part("checkpoint") == pytest.approx(3.0)

    def test_is_each_rank_s_own(self, run: Run) -> None:
        for number in range(2):
            rank = Rank(run, number).warm_up().train([{"forward": 1.0}] * 4)
            rank.end({"checkpoint": 4.0 * number}).close()
        assert [r.parts["checkpoint"] for r in facts_of(run).ranks] == [0.0, pytest.approx(1.0)]


class TestSeveralRanks:
    def test_have_facts_of_their_own(self, run: Run) -> None:
        for number in (0, 1, 2):
            start = {"world": 3, "local_world": 3, "environment": {"host": f"box{number}"}}
            sent = {"sent": {"bytes": 1000, "seconds": 0.01}}
            rank = Rank(run, number, **start).warm_up()
            rank.train([{"forward": 1.0 + number, "exchange": 2.0 - number}] * 5, **sent).close()
        facts = facts_of(run)
        assert [rank.rank for rank in facts.ranks] == [0, 1, 2]
        assert [rank.host for rank in facts.ranks] == ["box0", "box1", "box2"]
        assert [rank.own_s for rank in facts.ranks] == pytest.approx([1, 2, 3])
        assert [rank.sent_bytes for rank in facts.ranks] == [1000] * 3
        assert [rank.sent_s for rank in facts.ranks] == pytest.approx([0.01] * 3)
        assert facts.step_s == pytest.approx(3.0)
        assert facts.transfer_s == pytest.approx(0.0)
        assert facts.local_world == 3

    def test_ten_are_in_the_order_of_their_numbers(self, run: Run) -> None:
        for number in range(12):
            Rank(run, number).warm_up().train([{"forward": float(number)}] * 3).close()
        assert [rank.parts["forward"] for rank in facts_of(run).ranks] == list(range(12))

    @pytest.mark.parametrize("share", [0.0, 0.2, 0.8, 1.0])
    def test_are_slow_in_a_share_of_the_steps(self, run: Run, share: float) -> None:
        slow = [{"forward": 1.5 if n < 100 * share else 1.0, "exchange": 0.1} for n in range(100)]
        quick = [{"forward": 1.0, "exchange": 0.6} for _ in range(100)]
        for number in range(3):
            Rank(run, number).warm_up().train(slow if number == 1 else quick).close()
        assert [rank.slow_share for rank in facts_of(run).ranks] == [0.0, share, 0.0]
        verdict = verdict_of(facts_of(run))
        assert verdict is not None
        assert (verdict.limit == "straggler") == (share >= 0.8)

    def test_waiting_for_each_other_or_saving_makes_nobody_slow(self, run: Run) -> None:
        Rank(run, 0).warm_up().train([{"forward": 1.0, "checkpoint": 9.0}] * 5).close()
        Rank(run, 1).warm_up().train([{"forward": 1.0, "exchange": 9.0}] * 5).close()
        assert [rank.slow_share for rank in facts_of(run).ranks] == [0.0, 0.0]

    def test_one_that_wrote_less_does_not_hide_the_others(self, run: Run) -> None:
        Rank(run, 0).warm_up().train([{"forward": 1.0}] * 10).close()
        Rank(run, 1).warm_up().train([{"forward": 2.0}] * 7).close()
        facts = facts_of(run)
        assert facts.steps == 7
        assert [rank.slow_share for rank in facts.ranks] == [0.0, 1.0]

    def test_one_without_events_is_left_out(self, run: Run) -> None:
        Rank(run, 0).warm_up().train([{"forward": 1.0}] * 5).close()
        run.events_path(1, 1).write_bytes(b"")
        Rank(run, 2).close()
        assert [rank.rank for rank in facts_of(run).ranks] == [0]

    def test_are_compared_step_by_step_where_one_lost_a_line(self, run: Run) -> None:
        # Slow in the same steps: neither is slower than the other in any of them.
        laps = [{"forward": 2.0 if n % 2 else 1.0} for n in range(40)]
        for number in range(2):
            Rank(run, number).warm_up().train(laps).close()
        path = run.events_path(1, 1)
        lines = path.read_bytes().splitlines(keepends=True)
        del lines[1 + WARM_UP]
        path.write_bytes(b"".join(lines))
        assert [rank.slow_share for rank in facts_of(run).ranks] == [0.0, 0.0]


class TestProbes:
    def test_say_how_often_the_lock_was_late_and_how_long_a_core_was_wanted(self, run: Run) -> None:
        rank = Rank(run).warm_up().train([PARTS_OF_A_STEP] * 4)
        rank.probe(lock={"late_share": 0.2}, main={"delay": 0.3})
        rank.probe(lock={"late_share": 0.6}, main={"delay": 0.1}).probe(lock={}).probe().close()
        facts = facts_of(run)
        assert facts.late_share == pytest.approx(0.4)
        assert facts.delay_s == pytest.approx(0.2)

    def test_of_the_warm_up_and_outside_of_the_window_say_nothing(self, run: Run) -> None:
        rank = Rank(run).probe(lock={"late_share": 1.0}).warm_up().train([PARTS_OF_A_STEP] * 9)
        rank.probe(lock={"late_share": 0.5}).close()
        assert facts_of(run).late_share == 0.5
        assert facts_of(run, last=9).late_share == 0.0

    @pytest.mark.parametrize(
        ("probe", "slowdowns"),
        [
            ({"cpu": {"throttled_s": 2.0}}, {"throttled_share": 0.2}),
            ({"cpu": {"steal": 0.3}}, {"stolen_share": 0.3}),
            (
                {"gpus": [{"throttles": {"heat": 0.5, "power": 0.2, "idle": 0.01}}]},
                {"gpu_throttles": "heat, power"},
            ),
            (
                {"cpu": {"throttled_s": 5.0, "steal": 0.5}},
                {"throttled_share": 0.5, "stolen_share": 0.5},
            ),
            ({"cpu": {"throttled_s": 0.1, "steal": 0.01}}, {}),
            ({"gpus": [{"throttles": {}}, {}]}, {}),
            ({}, {}),
        ],
    )
    def test_name_what_slows_a_machine_down(
        self, run: Run, probe: dict[str, Any], slowdowns: dict[str, Any]
    ) -> None:
        Rank(run, 0).warm_up().train([PARTS_OF_A_STEP] * 4).probe().close()
        Rank(run, 1).warm_up().train([PARTS_OF_A_STEP] * 4).probe(**probe).close()
        assert [rank.slowdowns for rank in facts_of(run).ranks] == [{}, slowdowns]

    def test_without_a_second_to_divide_by_do_no_harm(self, run: Run) -> None:
        rank = Rank(run).warm_up().train([PARTS_OF_A_STEP] * 4)
        rank.probe(seconds=0.0, cpu={"throttled_s": 0.0}, failed="OSError: no").close()
        assert facts_of(run).ranks[0].slowdowns == {}

    @pytest.mark.parametrize("name", ["MainThread", "stoker-decode_0", "stoker-probes"])
    def test_never_call_a_thread_of_ours_a_hog(self, run: Run, name: str) -> None:
        ours = {"name": name, "python": True, "cores": 0.99, "count": 1}
        Rank(run).warm_up().train([PARTS_OF_A_STEP] * 4).probe(threads=[ours]).close()
        assert facts_of(run).hog == ""

    def test_name_the_python_thread_that_hogs_a_core(self, run: Run) -> None:
        def thread(name: str, python: bool, cores: float) -> dict[str, Any]:
            return {"name": name, "python": python, "cores": cores, "count": 1}

        threads = [
            thread("MainThread", True, 0.95),
            thread("pt_autograd_0", False, 0.9),
            thread("metrics", True, 0.8),
            thread("small", True, 0.2),
        ]
        Rank(run).warm_up().train([PARTS_OF_A_STEP] * 4).probe(threads=threads).close()
        assert (facts_of(run).hog, facts_of(run).hog_cores) == ("metrics", 0.8)
        assert "utilization" not in str(facts_of(run))

    def test_of_a_thread_that_uses_little_name_nobody(self, run: Run) -> None:
        idle = {"name": "metrics", "python": True, "cores": 0.2, "count": 1}
        Rank(run).warm_up().train([PARTS_OF_A_STEP] * 4).probe(threads=[idle]).close()
        assert facts_of(run).hog == ""


class TestOldAndTorn:
    def test_events_without_the_newer_fields_are_enough(self, run: Run) -> None:
        events = Events(run.events_path(1, 0))
        events.write("attempt", step=0, position=0, world=1, environment={"device": "Slow CPU"})
        for step in range(8):
            facts = {"batch": BATCH, "parts": {"data": 0.5, "forward": 0.5}}
            events.write("step", step=step, position=step * BATCH, **facts)
        events.write("end", outcome="finished", step=8, parts={})
        events.close()
        facts = facts_of(run)
        assert facts.step_s == pytest.approx(1.0)
        assert (facts.threads, facts.cores, facts.in_larger) == (1, 0, None)
        assert facts.cpu_floor_s() == 0
        verdict = verdict_of(facts)
        assert verdict is not None and verdict.limit == "data"

    @pytest.mark.parametrize(("larger_s", "share"), [(0.08, 1 / 3), (0.24, 1.0), (0.4, 1.0)])
    def test_a_larger_batch_spares_what_was_measured(
        self, run: Run, larger_s: float, share: float
    ) -> None:
        rank = Rank(run).warm_up().train([PARTS_OF_A_STEP] * 4)
        rank.write("larger_batch", seconds=0.03, larger_s=larger_s).close()
        assert facts_of(run).in_larger == pytest.approx(share)

    def test_an_end_that_says_nothing_but_why_is_no_error(self, run: Run) -> None:
        rank = Rank(run).warm_up().train([PARTS_OF_A_STEP] * 4)
        rank.events.write("end", outcome="failed", reason="no", parts={"other": 4.0})
        rank.close()
        assert facts_of(run).steps == 4

    def test_torn_and_foreign_lines_are_passed_over(self, run: Run) -> None:
        rank = Rank(run).warm_up().train([PARTS_OF_A_STEP] * 4)
        rank.write("note", words="hello").write("stall", words="x").close()
        with rank.path.open("ab") as file:
            file.write(b'5\n[]\n{}\nnull\n{"kind": 3}\n{"kind": "step", "step": 7, "parts": {"forw')
        assert facts_of(run).steps == 4

    def test_a_line_torn_at_any_place_is_no_error(self, run: Run) -> None:
        rank = Rank(run).warm_up().train([PARTS_OF_A_STEP] * 4).probe(lock={"late_share": 0.1})
        rank.end({"checkpoint": 1.0}).close()
        whole = rank.path.read_bytes()
        for length in range(0, len(whole), 7):
            rank.path.write_bytes(whole[:length])
            facts = facts_of_run(run, 1)
            assert facts is None or 1 <= facts.steps <= 4

    def test_a_run_without_a_directory_has_no_facts(self, run: Run) -> None:
        assert facts_of_run(run, 1) is None
