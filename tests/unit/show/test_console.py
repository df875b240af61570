"""What a run says in a pipe and on a terminal, from the events that it writes."""

from __future__ import annotations

import contextlib
import io
import re
from typing import Any

import pytest

from golden import check_golden
from stoker.fleet.launcher import ELASTIC
from stoker.run.events import Event
from stoker.show.console import FREE_LINES, LiveConsole, PlainConsole, console_for

SAMPLES, BATCH, EPOCHS = 1000, 100, 4
PROGRESS = re.compile(
    r"epoch \d+\.\d\d/4  step \d+/40  time [\d.]+ \([\d.]+\)  data [\d.]+ \([\d.]+\)  "
    r"loss [\d.]+ \([\d.]+\)  top1 [\d.]+% \([\d.]+%\)  top5 [\d.]+% \([\d.]+%\)  "
    r"[\d,]+ img/s  eta .+"
)


class Clock:
    """Stands still until told to move."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def pass_by(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


def attempt(**changes: Any) -> Event:
    return {
        "kind": "attempt",
        "position": 0,
        "step": 0,
        "world": 1,
        "torn": [],
        "steps": EPOCHS * SAMPLES // BATCH,
        "samples": SAMPLES,
        "epochs": EPOCHS,
        "unseen": 0,
        "derived": "global batch 100 = 1 rank x 100 images",
        "warnings": [],
        "startup_s": 2.0,
        **changes,
    }


def step(number: int, **changes: Any) -> Event:
    position = number * BATCH
    return {
        "kind": "step",
        "step": number,
        "position": position,
        "epoch": round(position / SAMPLES, 4),
        "batch": BATCH,
        "images": BATCH,
        "lr": 0.1,
        "parts": {"data": 0.1, "forward": 0.2, "backward": 0.2},
        "sums": [200.0, 50.0, 80.0],
        **changes,
    }


def evaluation(number: int, top1: int = 600, **changes: Any) -> Event:
    return {
        "kind": "evaluation",
        "step": number * 10,
        "position": number * SAMPLES,
        "epoch": float(number),
        "images": 1000,
        "top1": top1,
        "top5": 900,
        "loss": 1.25,
        "seconds": 2.5,
        **changes,
    }


def end(outcome: str, **changes: Any) -> Event:
    facts = {"position": 4000, "step": 40, "best": 0.75, "reason": None, "parts": {}}
    return {"kind": "end", "outcome": outcome, **facts, **changes}


class TestBeginning:
    def said(self, event: Event, stream: io.StringIO) -> list[str]:
        PlainConsole("runs/one", stream=stream)(event)
        return stream.getvalue().splitlines()

    def test_the_derived_line_comes_first_and_alone(self, stream: io.StringIO) -> None:
        assert self.said(attempt(), stream) == ["global batch 100 = 1 rank x 100 images"]

    def test_warnings_are_notes(self, stream: io.StringIO) -> None:
        lines = self.said(attempt(warnings=["--lr 9 is 90 times off", "another"]), stream)
        assert lines[1:] == ["note: --lr 9 is 90 times off", "note: another"]

    def test_it_says_where_it_goes_on_and_which_checkpoints_were_torn(
        self, stream: io.StringIO
    ) -> None:
        torn = ["000000030", "000000020"]
        lines = self.said(attempt(position=1000, step=10, torn=torn), stream)
        assert lines[1].startswith("note: checkpoint 000000030 is torn")
        assert "000000020" in lines[2]
        assert lines[3] == "resumed at step 10 of 40"


class TestProgress:
    def test_the_line_has_everything_now_and_in_the_mean(
        self, clock: Clock, stream: io.StringIO
    ) -> None:
        console = PlainConsole("runs/one", interval_s=30, stream=stream, clock=clock)
        console(attempt(derived=""))
        console(step(0, parts={"data": 0.1, "forward": 0.3}, sums=[400.0, 10.0, 50.0]))
        clock.pass_by(31)
        # A second step that had to wait for an evaluation and a save: shown apart.
        parts = {"data": 0.3, "forward": 0.5, "evaluation": 9.0, "checkpoint": 1.0}
        console(step(1, parts=parts, sums=[200.0, 30.0, 90.0]))
        assert stream.getvalue().split("\n")[1] == (
            "epoch 0.10/4  step 2/40  time 0.800 (0.600)  data 0.300 (0.200)"
            "  loss 2.000 (3.000)  top1 30.0% (20.0%)  top5 90.0% (70.0%)"
            "  167 img/s  eta 23 s"
        )

    def test_means_begin_anew_with_each_epoch(self, clock: Clock, stream: io.StringIO) -> None:
        console = PlainConsole("runs/one", interval_s=0, stream=stream, clock=clock)
        console(attempt())
        for number in range(10):
            console(step(number, sums=[900.0, 0.0, 0.0]))
        console(step(10, sums=[100.0, 70.0, 100.0]))
        last = stream.getvalue().splitlines()[-1]
        assert "epoch 1.00/4" in last
        assert "loss 1.000 (1.000)  top1 70.0% (70.0%)  top5 100.0% (100.0%)" in last

    def test_the_rate_counts_all_ranks(self, clock: Clock, stream: io.StringIO) -> None:
        console = PlainConsole("runs/one", interval_s=0, stream=stream, clock=clock)
        console(attempt(world=4))
        console(step(0, images=BATCH // 4, parts={"forward": 0.5}, sums=[50.0, 20.0, 25.0]))
        line = stream.getvalue().splitlines()[-1]
        assert "  200 img/s" in line
        assert "loss 2.000" in line and "top1 80.0%" in line

    def test_the_remaining_time_shrinks_to_nothing(self, clock: Clock, stream: io.StringIO) -> None:
        console = PlainConsole("runs/one", interval_s=0, stream=stream, clock=clock)
        console(attempt())
        for number in range(40):
            console(step(number, parts={"forward": 2.0}))
        etas = [line.split("eta ")[1] for line in stream.getvalue().splitlines()[1:]]
        assert (etas[0], etas[10], etas[-1]) == ("1:20", "1:00", "2 s")

    @pytest.mark.parametrize(("interval_s", "lines"), [(30, 3), (10, 10), (1000, 0), (0.1, 100)])
    def test_at_most_a_line_an_interval(
        self, clock: Clock, stream: io.StringIO, interval_s: float, lines: int
    ) -> None:
        console = PlainConsole("runs/one", interval_s=interval_s, stream=stream, clock=clock)
        console(attempt())
        for number in range(100):
            clock.pass_by(1)
            console(step(number % 40))
        said = stream.getvalue().splitlines()[1:]
        assert len(said) == lines
        assert all(PROGRESS.fullmatch(line) for line in said)

    def test_no_control_characters(self, clock: Clock, stream: io.StringIO) -> None:
        console = PlainConsole("runs/one", interval_s=1, stream=stream, clock=clock)
        console(attempt(position=1000, step=10, torn=["000000030"], warnings=["careful"]))
        for number in range(10, 40):
            clock.pass_by(1)
            console(step(number))
            console({"kind": "evaluating", "step": number, "position": number * BATCH})
            console(evaluation(number))
            console({"kind": "checkpoint", "name": "000000040", "bytes": 1, "seconds": 1.0})
        console(end("finished"))
        text = stream.getvalue()
        assert len(text.splitlines()) > 30
        assert not [letter for letter in text if ord(letter) < 32 and letter != "\n"]

    def test_steps_before_an_attempt_are_not_a_reason_to_fail(self, stream: io.StringIO) -> None:
        PlainConsole("runs/one", interval_s=0, stream=stream)(step(0))
        assert stream.getvalue() == ""


class TestEvaluations:
    def test_the_line_has_both_accuracies_loss_and_time(self, stream: io.StringIO) -> None:
        PlainConsole("runs/one", stream=stream)(evaluation(2))
        assert stream.getvalue() == (
            "evaluated at epoch 2.00: top-1 60.00%, top-5 90.00%, loss 1.250 "
            "(1,000 images in 2.5 s), best so far\n"
        )

    def test_only_a_better_one_is_the_best(self, stream: io.StringIO) -> None:
        console = PlainConsole("runs/one", stream=stream)
        for number, top1 in enumerate([500, 400, 600, 600, 601], 1):
            console(evaluation(number, top1))
        best = ["best so far" in line for line in stream.getvalue().splitlines()]
        assert best == [True, False, True, False, True]

    def test_the_first_are_shown_at_once_the_others_are_rationed(
        self, clock: Clock, stream: io.StringIO
    ) -> None:
        console = PlainConsole("runs/one", interval_s=30, stream=stream, clock=clock)
        for number in range(FREE_LINES):
            console(evaluation(number))
        assert len(stream.getvalue().splitlines()) == FREE_LINES == 20
        for number in range(300):
            clock.pass_by(1)
            console(evaluation(FREE_LINES + number))
        assert len(stream.getvalue().splitlines()) == FREE_LINES + 10


def test_the_log_of_a_day_is_under_a_megabyte(clock: Clock, stream: io.StringIO) -> None:
    day_s, step_s, steps_an_epoch = 24 * 3600, 0.3, 1000
    steps = int(day_s / step_s)
    console = PlainConsole("runs/one", stream=stream, clock=clock)
    console(attempt(samples=steps_an_epoch * BATCH, steps=steps, epochs=steps // steps_an_epoch))
    event = step(0)
    for number in range(steps):
        clock.pass_by(step_s)
        event["step"], event["position"] = number, number * BATCH
        event["epoch"] = round(number / steps_an_epoch, 4)
        console(event)
        if number % steps_an_epoch == 0:
            console(evaluation(number // steps_an_epoch))
    console(end("finished"))
    text = stream.getvalue()
    assert 2000 < len(text.splitlines()) <= day_s / 30 + FREE_LINES + 2
    assert len(text.encode()) < 1_000_000


def test_each_alarm_is_raised_once_until_a_save_is_made(stream: io.StringIO) -> None:
    console = PlainConsole("runs/one", stream=stream)

    def fail(*reasons: str) -> list[str]:
        stream.truncate(0)
        stream.seek(0)
        for reason in reasons:
            console({"kind": "save_failed", "reason": reason})
        return [line.split(";")[0] for line in stream.getvalue().splitlines()]

    assert fail("no room", "no events", "no room", "no events") == [
        "alarm: no room",
        "alarm: no events",
    ]
    console({"kind": "checkpoint", "step": 3})
    assert fail("no room", "no room") == ["alarm: no room"]


class TestEnd:
    @pytest.mark.parametrize(
        ("event", "line"),
        [
            (end("finished"), "finished: best top-1 75.00%; for details: stoker explain runs/one"),
            (end("finished", best=-1.0), "finished; for details: stoker explain runs/one"),
            (
                end("interrupted", reason="SIGTERM", step=1234),
                "stopped at step 1,234 (SIGTERM), everything saved: "
                "the same command goes on from here",
            ),
            (
                end("failed", reason="StokerError: no disk"),
                "failed at step 40; for details: stoker explain runs/one",
            ),
            (
                {"kind": "end", "outcome": "failed", "reason": "BadRequest: no", "parts": {}},
                "failed; for details: stoker explain runs/one",
            ),
        ],
    )
    def test_how_it_ended(self, stream: io.StringIO, event: Event, line: str) -> None:
        PlainConsole("runs/one", stream=stream)(event)
        assert stream.getvalue() == line + "\n"

    def test_trouble_is_told_once(self, stream: io.StringIO) -> None:
        """The alarm names it, the next attempt its remedy, and the command why the run ended."""
        console, trouble = PlainConsole("runs/one", stream=stream), "not finite at step 2: the loss"
        console(attempt())
        for remedy in ("rolled back; this batch is skipped", "rolled back; a lower rate"):
            console(end("rolled back", reason=trouble))
            console(attempt(warnings=["careful", f"{trouble}: {remedy}"]))
        console(end("failed", reason=f"{trouble}, after 2 roll-backs"))
        assert stream.getvalue().splitlines()[1:] == [
            f"alarm: {trouble}",
            "note: careful",
            "note: rolled back; this batch is skipped",
            f"alarm: {trouble}",
            "note: rolled back; a lower rate",
            "failed at step 40; for details: stoker explain runs/one",
        ]

    def test_a_rank_says_why_since_its_launcher_may_go_on(
        self, stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(ELASTIC, "1")
        PlainConsole("runs/one", stream=stream)(end("failed", reason="lost rank 1 on here"))
        assert stream.getvalue() == "failed: lost rank 1 on here\n"

    def test_a_refusal_is_told_by_the_verb(self, stream: io.StringIO) -> None:
        PlainConsole("runs/one", stream=stream)(end("refused", reason="the network is too slow"))
        assert stream.getvalue() == ""


class Terminal(io.StringIO):
    """Where somebody watches."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    made = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    return made


def plain(text: str) -> str:
    """What a terminal was sent, without what moves its cursor."""
    return re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", text).replace("\r", "\n")


class TestLive:
    def watch(self, terminal: Terminal, *events: Event) -> str:
        with contextlib.redirect_stdout(terminal):
            console = console_for("runs/one", 30)
            assert isinstance(console, LiveConsole)
            try:
                for event in events:
                    console(event)
            finally:
                console.stop()
        return plain(terminal.getvalue())

    def test_a_bar_with_the_numbers_of_the_step(self, terminal: Terminal) -> None:
        text = self.watch(terminal, attempt(), step(0), step(1), end("finished"))
        assert (
            "epoch 0.1/4  step 2/40  loss 2.000  top1 50.0%  200 img/s  data wait 20%  eta 20 s"
            in text
        )
        assert "━" in text

    def test_lines_stand_above_the_bar(self, terminal: Terminal) -> None:
        text = self.watch(
            terminal, attempt(warnings=["a [b] note"]), step(9), evaluation(1), end("finished")
        )
        assert "global batch 100 = 1 rank" in text
        assert "note: a [b] note" in text
        assert "evaluated at epoch 1.00: top-1 60.00%" in text
        assert "finished: best top-1 75.00%; for details: stoker explain runs/one" in text

    def test_every_evaluation_is_shown_to_somebody_who_watches(self, terminal: Terminal) -> None:
        epochs = range(1, FREE_LINES + 11)
        text = self.watch(terminal, attempt(), *map(evaluation, epochs), end("finished"))
        assert [f"evaluated at epoch {number}.00" in text for number in epochs] == [True] * 30

    def test_the_cursor_is_given_back(self, terminal: Terminal) -> None:
        self.watch(terminal, attempt(), step(0), end("failed", reason="no disk"))
        shown, hidden = (terminal.getvalue().rfind(code) for code in ("\x1b[?25h", "\x1b[?25l"))
        assert shown > hidden >= 0

    def test_nobody_watches_a_pipe(self, stream: io.StringIO) -> None:
        with contextlib.redirect_stdout(stream):
            console = console_for("runs/one", 30)
            console(attempt())
        assert not isinstance(console, LiveConsole)
        assert stream.getvalue() == "global batch 100 = 1 rank x 100 images\n"


BIG = {"epochs": 300, "steps": 1_234_567, "samples": 526_748_800 // 300}


class TestWidth:
    """The live line of a long run on a narrow and on a wide terminal."""

    @pytest.fixture
    def line(self, terminal: Terminal, monkeypatch: pytest.MonkeyPatch, columns: int) -> str:
        monkeypatch.setenv("COLUMNS", str(columns))
        with contextlib.redirect_stdout(terminal):
            console = LiveConsole("runs/one")
            console(attempt(**BIG))
            console(step(123_455, epoch=12.3, position=123_455 * BATCH))
            line = console.short_line()
            console.stop()
        return line

    @pytest.mark.parametrize("columns", [80])
    def test_at_80_columns_the_remaining_time_stays(self, line: str) -> None:
        assert len(line) <= 80 - 8 - 1
        assert "epoch 12.3/300" in line
        assert "loss 2.000" in line
        assert "eta 29 d 18:26" in line
        assert "step" not in line

    @pytest.mark.parametrize("columns", [160])
    def test_at_160_columns_everything_is_shown(self, line: str) -> None:
        assert len(line) <= 160 - 20 - 1
        assert "step 123,456/1,234,567" in line
        for part in ("epoch 12.3/300", "loss 2.000", "top1 50.0%", "200 img/s", "data wait 20%"):
            assert part in line
        assert "eta 29 d 18:26" in line

    def test_a_long_line_is_broken_between_words(
        self, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "80")
        note = "a note of many words that is longer than one line of this terminal, " * 3
        with contextlib.redirect_stdout(terminal):
            console = LiveConsole("runs/one")
            console({"kind": "note", "words": note.strip()})
        lines = plain(terminal.getvalue()).rstrip("\n").split("\n")
        assert len(lines) == 3
        assert max(map(len, lines)) <= 80
        assert " ".join(line.strip() for line in lines) == f"note: {note.strip()}"


def test_lines_golden(stream: io.StringIO, clock: Clock) -> None:
    """Every line that a run prints, with the events that it comes from."""
    console = PlainConsole("runs/one", interval_s=30, stream=stream, clock=clock)
    console(
        attempt(
            position=1000,
            step=10,
            torn=["000000030"],
            warnings=["careful"],
            weights="weights: 2 of 2 tensors",
        )
    )
    clock.pass_by(31)
    console(step(10))
    console(evaluation(1))
    console({"kind": "save_failed", "reason": "cannot save a checkpoint in runs/one"})
    console({"kind": "interval", "first": True, "words": "saves every 94.0 s"})
    console({"kind": "stall", "words": "no step for 61 s"})
    console({"kind": "verdict", "step": 11, "words": "data", "lines": ["bound by data"]})
    console({"kind": "skipped", "step": 1234})
    for event in (
        end("finished"),
        end("finished", best=-1.0),
        end("finished", reason="no better result in 3 evaluations, --patience 3"),
        end("interrupted", reason="SIGTERM", step=1234),
        end("interrupted", reason="rank 1 is lost", step=1234, saved=False),
        end("rolled back", reason="not finite at step 12: the gradient"),
        end("failed", reason="StokerError: no disk\nmore"),
        end("refused", reason="the link is too slow"),
    ):
        console(event)
    check_golden("show_console", stream.getvalue().splitlines())
