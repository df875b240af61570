"""The story of a run from its directory: true of killed, stopped and living runs alike."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from evaluations import data
from golden import check_golden
from run_records import record
from stoker.errors import BadRequest
from stoker.history.history import history_of
from stoker.measure.spans import PARTS
from stoker.run.directory import Run
from stoker.run.events import Events
from stoker.show.explain import explain

BATCH, STEPS = 10, 40
WORK = {"data": 0.1, "forward": 0.4, "backward": 0.4, "optimiser": 0.05, "other": 0.05}
"""The parts of a step of one second."""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    made = Run(tmp_path / "run")
    made.create(record(), "")
    return made


class Attempt:
    """Writes the events of one attempt."""

    def __init__(self, run: Run, resumed: int = 0, **changes: Any) -> None:
        self.events = Events(run.events_path(run.new_attempt(), 0))
        self.events.write(
            "attempt",
            **{
                "position": resumed * BATCH,
                "step": resumed,
                "world": 1,
                "torn": [],
                "steps": STEPS,
                "samples": 100,
                "epochs": 4,
                "unseen": 0,
                "derived": "global 10 = 1 rank x 10 x 1 accum",
                "warnings": [],
                "startup_s": 5.0,
                "environment": {"device": "Slow CPU", "threads": 2},
                **changes,
            },
        )
        self.step = resumed

    def train(self, steps: int, parts: dict[str, float] = WORK) -> Attempt:
        for number in range(self.step, self.step + steps):
            position, sums = number * BATCH, [20.0, 5.0, 8.0]
            facts = {"epoch": position / 100, "batch": BATCH, "images": BATCH, "sums": sums}
            self.events.write("step", step=number, position=position, parts=parts, **facts)
        self.step += steps
        return self

    def evaluate(self, top1: int) -> Attempt:
        position = self.step * BATCH
        facts = {"images": 50, "top1": top1, "top5": 45, "loss": 1.0, "seconds": 2.0}
        self.events.write(
            "evaluation", step=self.step, position=position, epoch=position / 100, **facts
        )
        return self

    def end(self, outcome: str, reason: str | None = None, **parts: float) -> None:
        self.events.write("end", outcome=outcome, reason=reason, parts=parts, step=self.step)
        self.events.close()

    def killed(self) -> None:
        self.events.close()


def story(run: Run) -> str:
    """What is printed; never more than fits on a screen."""
    text = "\n".join(explain(run))
    assert len(text.splitlines()) <= 25
    return text


def shares(text: str) -> dict[str, float]:
    """The table of where the time went."""
    rows = re.findall(r"^  (\S.*?) {2,}\S.*? +([\d.]+)%", text, re.M)
    return {name: float(share) for name, share in rows}


def test_of_equal_best_evaluations_the_first_is_named(run: Run) -> None:
    """As by `stoker report`, `stoker watch` and the lines of `stoker train`."""
    attempt = Attempt(run)
    for hits in (25, 50, 50, 50):
        attempt.train(10).evaluate(hits)
    attempt.end("finished", checkpoint=5.0)
    assert "top-1 100.00%" in story(run)
    assert "at epoch 4.00; best 100.00% at epoch 2.00" in story(run)
    best = history_of(run).best
    assert best is not None
    assert best["epoch"] == 2.0


def test_a_finished_run(run: Run) -> None:
    Attempt(run).train(20).evaluate(30).train(20).evaluate(25).end("finished", checkpoint=5.0)
    text = story(run)
    assert text.startswith("resnet9_w16 on photos (100 images, 6 classes), recipe quick\n")
    assert "finished: step 40 of 40, 1 attempt, 1 rank on Slow CPU, 2 threads" in text
    assert "global 10 = 1 rank x 10 x 1 accum" in text
    assert "top-1 50.00%, top-5 90.00% on 50 images at epoch 4.00" in text
    assert "best 60.00% at epoch 2.00" in text
    assert "█▁  50% to 60%" in text
    assert "50 s in all:" in text
    assert "400 images: 10 a second in training, 8 over all" in text
    assert "repeated" not in text and "not used" not in text
    assert shares(text) == {
        "starting up": 10,
        "waiting for data": 8,
        "forward": 32,
        "backward": 32,
        "optimiser": 4,
        "saving": 10,
        "other": 4,
    }


def test_steps_repeated_after_kills_are_counted_apart(run: Run) -> None:
    Attempt(run).train(20).killed()
    Attempt(run, resumed=15).train(10).killed()
    Attempt(run, resumed=20).train(20).evaluate(30).end("finished")
    text = story(run)
    assert "step 40 of 40, 3 attempts" in text
    assert "10 steps repeated after interruptions (10 s)" in text
    assert "1:05 in all" in text
    assert shares(text)["repeated after kills"] == pytest.approx(100 * 10 / 65, abs=0.1)
    assert shares(text)["starting up"] == pytest.approx(100 * 15 / 65, abs=0.1)
    assert "400 images: 10 a second in training, 6 over all" in text


def test_a_killed_run_that_was_not_taken_up_again(run: Run) -> None:
    Attempt(run).train(7).killed()
    text = story(run)
    assert "killed (the same command goes on): step 7 of 40, 1 attempt" in text
    assert "repeated" not in text


def test_a_run_that_is_being_trained(run: Run) -> None:
    run.lock(patience_s=0)
    Attempt(run).train(7).killed()
    assert "running: step 7 of 40" in story(run)
    run.unlock()
    assert "killed (the same command goes on): step 7 of 40" in story(run)


def test_a_run_killed_sooner_the_second_time(run: Run) -> None:
    Attempt(run).train(20).killed()
    Attempt(run, resumed=10).train(3).killed()
    assert "step 13 of 40, 2 attempts" in story(run)


def test_an_interrupted_run_says_by_whom(run: Run) -> None:
    Attempt(run).train(7).end("interrupted", "SIGTERM")
    assert "interrupted (SIGTERM): step 7 of 40" in story(run)


def test_a_failed_run_says_why(run: Run) -> None:
    Attempt(run).train(7).end("failed", "StokerError: cannot save a checkpoint")
    assert "failed (StokerError: cannot save a checkpoint): step 7 of 40" in story(run)


def test_a_run_that_went_on_is_no_longer_interrupted(run: Run) -> None:
    Attempt(run).train(7).end("interrupted", "SIGTERM")
    Attempt(run, resumed=7).train(1)
    assert "interrupted" not in story(run)


@pytest.mark.parametrize(
    ("parts", "verdict", "advice"),
    [
        ({"data": 3.0, "forward": 1.0}, "slowed by data", "--threads"),
        ({"read": 3.0, "forward": 1.0}, "slowed by reading", "faster disk"),
        ({"decode": 3.0, "forward": 1.0}, "slowed by decoding", "--max-side"),
        ({"data": 0.01, "forward": 1.0}, "slowed by compute", "--amp"),
        ({"evaluation": 2.0, "forward": 1.0}, "slowed by evaluation", "--eval-every"),
        ({"checkpoint": 2.0, "forward": 1.0}, "slowed by saving", "--checkpoint-interval"),
    ],
)
def test_what_bound_it_and_what_to_do(
    run: Run, parts: dict[str, float], verdict: str, advice: str
) -> None:
    Attempt(run).train(5, parts).end("finished")
    *lines, following = story(run).splitlines()
    assert any(line.startswith(verdict) for line in lines)
    assert following.startswith("next: ") and advice in following


def test_a_data_bound_run_says_what_there_is_to_gain(run: Run) -> None:
    Attempt(run).train(5, {"data": 3.0, "forward": 1.0}).end("finished")
    text = story(run)
    assert "75% of the time" in text
    assert "without it: 1.00 s a step instead of 4.00 s (75% less)" in text


def test_never_evaluated(run: Run) -> None:
    Attempt(run).train(5).end("finished")
    assert "not evaluated yet" in story(run)


def test_started_but_not_a_step_done(run: Run) -> None:
    Attempt(run).killed()
    text = story(run)
    assert "step 0 of 40" in text
    assert shares(text) == {"starting up": 100}


def test_injected_faults_are_named(run: Run) -> None:
    attempt = Attempt(run).train(5)
    assert not any(line.startswith("note") for line in explain(run))
    attempt.events.write("faults", words="kill at forward")
    attempt.events.flush()
    assert explain(run)[-1] == "note: faults were injected on purpose in attempt 1"


def test_nothing_trained(run: Run) -> None:
    assert story(run) == f"{run.path}: nothing has been trained yet"


def test_a_run_that_failed_before_its_first_step_says_why(run: Run) -> None:
    events = Events(run.events_path(run.new_attempt(), 0))
    events.write("end", outcome="failed", reason="BadRequest: batch_size 1 is too small", parts={})
    events.close()
    assert "batch_size 1 is too small" in story(run)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="is not a run"):
        explain(Run(tmp_path))


def worst_case(run: Run, reason: str) -> None:
    """Everything there is to say, said."""
    everything = dict.fromkeys(PARTS, 1.0)
    facts = {"unseen": 7, "world": 8, "torn": ["000000003"], "warnings": ["a", "b", "c"]}
    for resumed in (0, 2, 1):
        attempt = Attempt(run, resumed, **facts)
        for _ in range(5):
            attempt.train(1, everything).evaluate(resumed)
        attempt.end("failed", reason)


def test_the_worst_case_fits_on_a_screen(run: Run) -> None:
    worst_case(run, "RuntimeError: no")
    text = story(run)
    assert "7 samples of the last epoch not used" in text
    assert len(text.splitlines()) == 25
    assert "other" in shares(text)


def test_an_error_of_many_lines_does_not_push_the_rest_off_the_screen(run: Run) -> None:
    lines = [f"frame #{number}: c10::Error::Error" for number in range(30)]
    worst_case(run, "RuntimeError: CUDA error\n" + "\n".join(lines))
    assert "RuntimeError: CUDA error" in story(run)


def test_shares_add_up_to_a_hundred(run: Run) -> None:
    worst_case(run, "RuntimeError: no")
    assert sum(shares(story(run)).values()) == pytest.approx(100, abs=1)


def test_every_second_that_was_written_down_is_in_the_ledger(run: Run) -> None:
    Attempt(run).train(20).killed()
    Attempt(run, resumed=15).train(10).end("interrupted", "SIGTERM", checkpoint=2.0, other=1.0)
    ledger = history_of(run).ledger
    assert ledger.total_s == pytest.approx(2 * 5 + 20 + 10 + 3)
    assert (ledger.redone_steps, ledger.redone_s) == (5, pytest.approx(5))


def test_every_sentence_golden(run: Run, tmp_path: Path) -> None:
    """A run with everything that can be shown, and one of which nothing was trained."""
    worst_case(run, "RuntimeError: no")
    events = Events(run.events_path(run.new_attempt(), 0))
    events.write("stall", words="no step for 60 s", step=5)
    events.close()
    empty = Run(tmp_path / "empty")
    empty.create(record(), "")
    nothing = explain(empty)[0].replace(str(empty.path), "RUN")
    lines = [line.replace(str(run.path), "RUN") for line in explain(run)]
    check_golden("explain_run", [*lines, nothing])


class TestLastEvaluation:
    """The line about classes, from evaluation.json."""

    @pytest.fixture
    def evaluated(self, run: Run) -> Run:
        attempt = Attempt(run).train(20)
        counts = {"images": 30, "top1": 19, "top5": 28}
        attempt.events.write("evaluation", step=20, position=200, epoch=2.0, **counts)
        attempt.events.close()
        return run

    def lines(self, run: Run, **changes: Any) -> list[str]:
        (run.path / "evaluation.json").write_text(json.dumps(data(**changes)))
        return explain(run)

    def test_it_names_the_worst_confusion(self, evaluated: Run) -> None:
        before = explain(evaluated)
        lines = self.lines(evaluated, position=200)
        assert [line for line in lines if line not in before] == [
            "macro accuracy 81.67%; most often confused: dog taken for cat (6 of 10)"
        ]
        assert len(lines) <= 25

    def test_a_model_without_errors_confuses_nothing(self, evaluated: Run) -> None:
        assert "macro accuracy 81.67%" in self.lines(evaluated, position=200, confusions=[])

    def test_one_of_another_position_is_not_shown(self, evaluated: Run) -> None:
        assert not [line for line in self.lines(evaluated, position=100) if "macro" in line]

    def test_a_damaged_one_is_a_note(self, evaluated: Run) -> None:
        notes = [line for line in self.lines(evaluated, images="x") if "evaluation.json" in line]
        assert len(notes) == 1
        assert notes[0].startswith("note: ")
