"""Training logs of other programs: the means are those of the run that was logged."""

from __future__ import annotations

import io
import itertools
import re
import time
import tracemalloc
from pathlib import Path
from statistics import fmean

import pytest

from golden import check_golden
from stoker.errors import BadRequest
from stoker.measure.logs.line import FORMATS, LogLine, Validation, batch_by_accuracy, parse
from stoker.measure.logs.runs import MOST_RUNS, Log, LoggedRun, read, read_log
from stoker.measure.logs.verdict import verdict_of_log
from stoker.measure.verdict import Verdict
from training_logs import (
    BATCH,
    WRITERS,
    Step,
    examples_new,
    examples_old,
    examples_wide,
    simulate,
    timm,
    torchvision,
)

SEED = Path(__file__).parents[5] / "shared" / "seeds" / "000_5f093dd4267f1eab.txt"
ALL = pytest.mark.parametrize("writer", WRITERS)


def log_of(text: str | bytes) -> Log:
    return read(io.BytesIO(text.encode() if isinstance(text, str) else text))


def only(text: str | bytes) -> LoggedRun:
    (run,) = log_of(text).runs
    return run


def verdict_of(run: LoggedRun) -> Verdict:
    verdict = verdict_of_log(run)
    assert verdict is not None
    return verdict


def holds(run: LoggedRun, steps: list[Step], tolerance: float = 0.02) -> None:
    """The run's means are those of the steps, but for rounding."""
    step_s, wait_s = (fmean(step[part] for step in steps) for part in (0, 1))
    assert run.counted.step_s == pytest.approx(step_s, rel=tolerance)
    assert run.counted.wait_s == pytest.approx(wait_s, abs=tolerance * step_s)


class TestMeans:
    @ALL
    @pytest.mark.parametrize(
        ("kind", "limit", "cause"),
        [
            ("compute", "compute", "compute.log"),
            ("steady", "data", "data.log"),
            ("bursts", "data", "data.log_bursts"),
        ],
    )
    def test_they_are_the_truth_and_decide(
        self, writer: str, kind: str, limit: str, cause: str
    ) -> None:
        name, write = WRITERS[writer]
        steps = simulate(kind, 401)
        run = only(write(0, steps))
        first = 11 if writer == "examples_old" else 1
        assert (run.format, run.ranks, run.epochs) == (name, 1, 1)
        assert run.steps == 401
        assert run.warmup_steps == first
        holds(run, steps[first:])
        verdict = verdict_of(run)
        assert verdict.limit == limit
        # The mean of twenty steps hides bursts that are shorter: they look steady there.
        if writer != "torchvision":
            assert verdict.claim.cause == cause

    @ALL
    def test_what_would_be_without_the_wait(self, writer: str) -> None:
        verdict = verdict_of(only(WRITERS[writer][1](0, simulate("steady", 301))))
        assert verdict.step_s == pytest.approx(0.25, rel=0.03)
        assert verdict.without_s == pytest.approx(0.15, rel=0.03)

    @ALL
    def test_rare_stalls_count_though_hardly_a_line_shows_one(self, writer: str) -> None:
        steps = simulate("stalls", 1001)
        run = only(WRITERS[writer][1](0, steps))
        holds(run, steps[11:] if writer == "examples_old" else steps[1:], 0.03)
        assert run.typical_wait_s <= 0.001
        verdict = verdict_of(run)
        assert (verdict.limit, verdict.claim.cause) == ("data", "data.log_bursts")

    @ALL
    @pytest.mark.parametrize("kind", ["compute", "steady"])
    def test_epochs_weigh_by_their_steps(self, writer: str, kind: str) -> None:
        epochs = [simulate(kind, 201, seed=1), simulate("compute", 401, seed=2, work_s=0.3)]
        text = "".join(WRITERS[writer][1](epoch, steps) for epoch, steps in enumerate(epochs))
        run = only(text)
        first = 11 if writer == "examples_old" else 1
        assert (run.epochs, run.steps) == (2, 602)
        holds(run, epochs[0][first:] + epochs[1])

    def test_the_oldest_timm_has_no_mean_of_the_time(self) -> None:
        steps = simulate("steady", 601)
        run = only(timm(0, steps, with_mean=False))
        assert run.counted.step_s == pytest.approx(0.25, rel=0.05)
        assert verdict_of(run).limit == "data"

    @pytest.mark.parametrize(("every", "coverage"), [(1, 1), (5, 1), (10, 1), (20, 1), (100, 0.2)])
    def test_windows_are_counted_once(self, every: int, coverage: float) -> None:
        steps = simulate("steady", 2001)
        run = only(torchvision(0, steps, every))
        holds(run, steps[1:], 0.03)
        assert run.coverage == pytest.approx(coverage, abs=0.01)

    @pytest.mark.parametrize("write", [examples_wide, examples_new, timm])
    @pytest.mark.parametrize("every", [1, 3, 10, 50])
    def test_a_line_number_is_an_index_or_a_count(self, write: object, every: int) -> None:
        """Taken for the wrong one, the first step's seconds would be counted twice."""
        steps = simulate("compute", 301)
        assert callable(write)
        run = only(write(0, steps, every))
        assert run.warmup_steps == 1
        holds(run, steps[1 : (300 // every) * every + 1])

    def test_waits_of_each_epochs_start_are_told_from_others(self) -> None:
        def epoch(seed: int) -> list[Step]:
            return [(6.0, 5.8), *simulate("compute", 101, seed)[1:]]

        text = "".join(examples_wide(number, epoch(number)) for number in range(5))
        verdict = verdict_of(only(text))
        assert verdict.limit == "data"
        assert verdict.claim.cause == "data.log_epoch_starts"

    def test_a_long_epoch_is_not_lost_to_rounding(self) -> None:
        steps = simulate("bursts", 20_001)
        run = only(examples_old(0, steps, every=500))
        holds(run, steps[501:])
        assert all(abs(s.wait_s - 0.0625) < 0.03 for s in run.stretches)


class TestTooShort:
    @pytest.mark.parametrize(
        "text",
        [
            "Epoch: [0][10/5005] Time 0.310 (1.204) Data 0.002 (0.415) Loss 1 (1)\n",
            "Epoch: [0][0/500] Time 9.142 (9.142) Data 5.001 (5.001)\n",
            "Train: 0 [   0/1251 (  0%)]  Time: 7.9s, 32.1/s  (7.9s, 32.1/s)  Data: 5.1 (5.1)\n",
            "Epoch: [0]  [   0/5005]  eta: 5:00:00  time: 7.91  data: 5.21  max mem: 3000\n",
            "".join(
                f"Epoch: [{e}][0/50] Time 9.142 (9.142) Data 5.001 (5.001)\n" for e in range(9)
            ),
        ],
    )
    def test_a_warmup_is_not_a_run(self, text: str) -> None:
        assert verdict_of_log(only(text)) is None

    def test_one_late_line_covers_enough(self) -> None:
        line = "Epoch: [0][2100/5005] Time 0.410 (0.402) Data 0.000 (0.004) Loss 1 (1)\n"
        run = only(line)
        assert (run.warmup_steps, run.steps) == (0, 2101)
        assert verdict_of(run).limit == "compute"

    def test_two_lines_are_enough(self) -> None:
        assert verdict_of(only(examples_old(0, simulate("compute", 21)))).limit == "compute"


class TestRuns:
    def test_a_start_over_is_another_run(self) -> None:
        text = examples_old(0, simulate("compute", 201)) + examples_old(0, simulate("steady", 301))
        assert [verdict_of(run).limit for run in log_of(text).runs] == ["compute", "data"]

    def test_titles_come_from_above(self) -> None:
        log = examples_old(0, simulate("compute", 101))
        text = (
            f"# All runs\nSome words about them.\n\n*On one card*\n```sh\n{log}```\n"
            f"Half precision\n```\n$ python main.py\n{log}```\n{log}\n## Another machine:\n{log}"
        )
        assert [run.title for run in log_of(text).runs] == [
            "On one card",
            "On one card, Half precision",
            "On one card",
            "Another machine",
        ]

    def test_a_title_cannot_steer_a_terminal(self) -> None:
        (run,) = log_of(
            "# A\x1b]0;owned\x07 run\x9b2J\n" + examples_old(0, simulate("compute", 101))
        ).runs
        assert run.title.isprintable()

    @pytest.mark.parametrize("mark", ["", "[rank{}]:", "[default{}]:", "{}: ", "[1,{}]<stdout>:"])
    def test_ranks_side_by_side_are_one_run(self, mark: str) -> None:
        runs = [simulate("steady", 201, seed, work_s=0.1 + 0.05 * seed) for seed in range(4)]
        logs = [examples_wide(0, steps).splitlines() for steps in runs]
        together = itertools.chain.from_iterable(zip(*logs, strict=True))
        text = "\n".join(mark.format(n % 4) + line for n, line in enumerate(together))
        run = only(text)
        assert (run.ranks, run.steps, run.lines) == (4, 201, 84)
        holds(run, [step for steps in runs for step in steps[1:]])
        assert verdict_of(run).claim.cause == "data.log"

    def test_ranks_that_write_by_the_bufferful_are_one_run(self) -> None:
        runs = [simulate("steady", 1001, seed) for seed in range(2)]
        one, two = (examples_wide(0, steps).splitlines() for steps in runs)
        text = "\n".join([*one[:40], *two[:40], *one[40:], *two[40:]])
        run = only(text)
        assert (run.ranks, run.steps) == (2, 1001)
        holds(run, runs[0][1:] + runs[1][1:])

    def test_validation_is_kept_apart(self) -> None:
        steps = simulate("compute", 201)
        tests = [
            "".join(f"Test: [{i:3d}/98]\tTime 9.1 (9.9)\tLoss 1 (1)\n" for i in range(0, 98, 10)),
            "".join(f"Test (EMA): [{i:>4d}/97]  Time: 9.1 (9.9)  Loss: 1 (1)\n" for i in (0, 97)),
            "".join(f"Test:   [{i}/98]  eta: 0:01  time: 9.1  data: 8.8\n" for i in (0, 10)),
            "Test: EMA  [ 0/98]  eta: 0:01  time: 9.1  data: 8.8\n",
        ]
        for test in tests:
            run = only(examples_wide(0, steps) + test + examples_wide(1, steps) + test)
            assert (run.validations, run.validation_lines) == (2, 2 * test.count("\n"))
            holds(run, steps[1:] + steps)

    def test_no_file_makes_endless_runs(self) -> None:
        line = "Epoch: [0][0/500] Time 9.142 (9.142) Data 5.001 (5.001)\nprose\n"
        log = log_of(line * 500)
        assert log.cut
        assert len(log.runs) == MOST_RUNS


class TestText:
    STEPS = simulate("steady", 201)

    @ALL
    @pytest.mark.parametrize(
        "spoil",
        [
            lambda text: text.replace("\n", "\r\n").encode(),
            lambda text: text.replace("\n", "\r").encode(),
            lambda text: text.encode("utf-16"),
            lambda text: b"\xef\xbb\xbf" + text.encode(),
            lambda text: b"\xff\xfe\x00caf\xe9\n"[2:] + text.encode("latin-1"),
            lambda text: re.sub(r"(\d+\.\d+)", "\x1b[1;32m\\1\x1b[0m", text).encode(),
            lambda text: re.sub("(?m)^", "2024-05-01 10:11:12,345 INFO train: ", text).encode(),
            lambda text: re.sub("(?m)^", "I0501 10:11:12.345 7 main.py:88] ", text).encode(),
            lambda text: re.sub("\n", "\nUserWarning: Time (0.1) is short\n", text).encode(),
            lambda text: bytes(range(256)) * 200 + b"\n" + text.encode(),
            lambda text: b"x" * 300_000 + b"\n" + text.encode(),
            lambda text: text.encode()[:-60],
        ],
        ids=[
            "carriage returns and newlines",
            "carriage returns",
            "utf-16",
            "byte order mark",
            "latin-1",
            "colours",
            "times before each line",
            "places before each line",
            "warnings between",
            "binary before",
            "a long line before",
            "cut short",
        ],
    )
    def test_what_happens_to_logs_does_not_matter(self, writer: str, spoil: object) -> None:
        assert callable(spoil)
        run = only(spoil(WRITERS[writer][1](0, self.STEPS)))
        assert run.steps >= 180
        verdict = verdict_of(run)
        assert verdict.limit == "data"
        assert verdict.step_s == pytest.approx(0.25, rel=0.03)

    @pytest.mark.parametrize(
        "line",
        [
            "Epoch: [" * 500,
            "Epoch: [0][1/2]" * 270 + "Time " * 5,
            "Epoch: [0][1/2] " + "Time 1" * 600,
            "Epoch: [0][1/2] Time " + "1" * 4000,
            "Epoch:" + " " * 4000,
            "Train: 0 [" + " " * 4000 + "time",
            "Test: " + "a" * 4000 + "time",
            "time: " * 700,
            "#" * 4000,
            "*" * 4000,
            "# " * 2000,
            "a " * 2000,
        ],
        ids=lambda line: line[:20],
    )
    def test_no_line_takes_long(self, line: str) -> None:
        begin = time.process_time()
        assert not log_of((line + "\n") * 20).runs
        assert time.process_time() - begin < 2

    def test_memory_does_not_grow_with_the_log(self) -> None:
        class Endless(io.RawIOBase):
            """Epochs without end, made as they are read."""

            def __init__(self, size: int) -> None:
                self.left, self.epoch, self.kept = size, 0, b""
                self.text = examples_wide(7, simulate("bursts", 501))

            def read(self, size: int = -1) -> bytes:
                if self.left <= 0:
                    return b""
                while len(self.kept) < size:
                    self.kept += self.text.replace("[7]", f"[{self.epoch}]").encode()
                    self.epoch += 1
                out, self.kept = self.kept[:size], self.kept[size:]
                self.left -= len(out)
                return out

        peaks = []
        for size in (400_000, 4_000_000):
            file = Endless(size)
            tracemalloc.start()
            (run,) = read(file).runs  # type: ignore[arg-type]
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
            assert run.epochs >= file.epoch - 1
        assert peaks[1] < 1.5 * peaks[0] + 500_000, peaks


class TestRefusal:
    @pytest.mark.parametrize("content", [b"", b"neither run nor log\n", bytes(range(256)) * 99])
    def test_no_log_names_the_formats(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "file.txt"
        path.write_bytes(content)
        with pytest.raises(BadRequest) as caught:
            read_log(path)
        assert all(form.name in str(caught.value) for form in FORMATS)

    def test_examples_in_the_refusal_are_understood(self) -> None:
        for form in FORMATS:
            line = parse(form.example)
            assert isinstance(line, LogLine)
            assert line.format is form

    def test_every_sentence_golden(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        Path("notes.txt").write_text("neither run nor log\n")
        refusals = []
        for name in ("notes.txt", "gone.log", "/dev/zero"):
            with pytest.raises(BadRequest) as caught:
                read_log(Path(name))
            refusals.append(str(caught.value))
        check_golden("logs_refusals", refusals)

    def test_a_file_that_cannot_be_read_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(BadRequest, match=r"gone\.log"):
            read_log(tmp_path / "gone.log")


class TestBatch:
    @pytest.mark.parametrize("batch", [32, 96, 128, 250, 256])
    @pytest.mark.parametrize("digits", [3, 4])
    def test_it_follows_from_accuracies(self, batch: int, digits: int) -> None:
        hits = range(1, batch, 7)
        assert batch_by_accuracy({f"{100 * n / batch:.{digits}f}" for n in hits}) == batch

    @pytest.mark.parametrize(
        "values", [set(), {"0.00"}, {"0.39"}, {"0.39", "0.78", "1.17", "0.00", "1.56", "1.95"}]
    )
    def test_it_is_unknown_with_few_or_small_accuracies(self, values: set[str]) -> None:
        assert batch_by_accuracy(values) is None

    @ALL
    def test_it_is_found_in_every_format(self, writer: str) -> None:
        run = only(WRITERS[writer][1](0, simulate("compute", 401)))
        assert run.images == pytest.approx(BATCH, rel=0.005)


def test_validation_is_no_training() -> None:
    assert parse("Test: [10/98]  Time 0.1 (0.1)") == Validation(10)


@pytest.mark.skipif(not SEED.exists(), reason=f"needs the notes with real logs, {SEED.name}")
def test_real_logs_are_judged_by_their_means() -> None:
    k80, v100, p6000, p6000_half = read_log(SEED).runs
    verdicts = [verdict_of(run) for run in (k80, v100, p6000, p6000_half)]
    assert [verdict.limit for verdict in verdicts] == ["compute", "data", "compute", "compute"]
    assert verdicts[1].claim.cause == "data.log_bursts"
    for run, step_s, wait_s in ((k80, 0.833, 0.003), (v100, 0.185, 0.050), (p6000, 0.257, 0.009)):
        assert run.whole.step_s == pytest.approx(step_s)
        assert run.whole.wait_s == pytest.approx(wait_s)
    assert v100.typical_wait_s == 0.001
    assert v100.counted.share == pytest.approx(0.26, abs=0.01)
    assert {run.images for run in (k80, v100, p6000, p6000_half)} == {128}
    assert "K80" in k80.title
    assert "Volta 100" in v100.title
    assert p6000.title != p6000_half.title
