"""Other people's logs: the means found are the means of the run that was logged."""

from __future__ import annotations

import io
import itertools
import re
import time
import tracemalloc
from pathlib import Path
from statistics import fmean

import pytest

from stoker.errors import BadRequest
from stoker.measure.logs.line import FORMATS, LogLine, Validation, batch_by_accuracy, parse
from stoker.measure.logs.runs import MOST_RUNS, Block, Log, read, read_log
from stoker.measure.logs.verdict import Verdict, judge
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


def only(text: str | bytes) -> Block:
    (block,) = log_of(text).blocks
    return block


def verdict_of(block: Block) -> Verdict:
    found = judge(block)
    assert found is not None
    return found


def holds(block: Block, steps: list[Step], tolerance: float = 0.02) -> None:
    """The block's means are those of the steps, to what rounding leaves."""
    step_s, wait_s = (fmean(step[part] for step in steps) for part in (0, 1))
    assert block.judged.step_s == pytest.approx(step_s, rel=tolerance)
    assert block.judged.wait_s == pytest.approx(wait_s, abs=tolerance * step_s)


class TestMeans:
    @ALL
    @pytest.mark.parametrize(
        ("kind", "limit", "words"),
        [
            ("compute", "compute", "the network itself"),
            ("steady", "data", "waited for its batches$"),
            ("bursts", "data", "in bursts$"),
        ],
    )
    def test_they_are_the_truth_and_bind(
        self, writer: str, kind: str, limit: str, words: str
    ) -> None:
        name, write = WRITERS[writer]
        steps = simulate(kind, 401)
        block = only(write(0, steps))
        first = 11 if writer == "examples_old" else 1
        assert (block.format, block.ranks, block.epochs) == (name, 1, 1)
        assert block.steps == 401
        assert block.warmup_steps == first
        holds(block, steps[first:])
        found = verdict_of(block)
        assert found.limit == limit
        # The mean of twenty steps hides bursts that are shorter: they look steady there.
        if writer != "torchvision":
            assert re.search(words, found.words)

    @ALL
    def test_what_would_be_without_the_wait(self, writer: str) -> None:
        found = verdict_of(only(WRITERS[writer][1](0, simulate("steady", 301))))
        assert found.step_s == pytest.approx(0.25, rel=0.03)
        assert found.without_s == pytest.approx(0.15, rel=0.03)

    @ALL
    def test_rare_stalls_count_though_hardly_a_line_shows_one(self, writer: str) -> None:
        steps = simulate("stalls", 1001)
        block = only(WRITERS[writer][1](0, steps))
        holds(block, steps[11:] if writer == "examples_old" else steps[1:], 0.03)
        assert block.typical_wait_s <= 0.001
        found = verdict_of(block)
        assert (found.limit, found.words[-10:]) == ("data", " in bursts")

    @ALL
    @pytest.mark.parametrize("kind", ["compute", "steady"])
    def test_epochs_weigh_by_their_steps(self, writer: str, kind: str) -> None:
        epochs = [simulate(kind, 201, seed=1), simulate("compute", 401, seed=2, work_s=0.3)]
        text = "".join(WRITERS[writer][1](epoch, steps) for epoch, steps in enumerate(epochs))
        block = only(text)
        first = 11 if writer == "examples_old" else 1
        assert (block.epochs, block.steps) == (2, 602)
        holds(block, epochs[0][first:] + epochs[1])

    def test_the_oldest_timm_has_no_mean_of_the_time(self) -> None:
        steps = simulate("steady", 601)
        block = only(timm(0, steps, with_mean=False))
        assert block.judged.step_s == pytest.approx(0.25, rel=0.05)
        assert verdict_of(block).limit == "data"

    @pytest.mark.parametrize(("every", "coverage"), [(1, 1), (5, 1), (10, 1), (20, 1), (100, 0.2)])
    def test_windows_are_counted_once(self, every: int, coverage: float) -> None:
        steps = simulate("steady", 2001)
        block = only(torchvision(0, steps, every))
        holds(block, steps[1:], 0.03)
        assert block.coverage == pytest.approx(coverage, abs=0.01)

    @pytest.mark.parametrize("write", [examples_wide, examples_new, timm])
    @pytest.mark.parametrize("every", [1, 3, 10, 50])
    def test_a_line_number_is_an_index_or_a_count(self, write: object, every: int) -> None:
        """Taken for the wrong one, the first step's seconds would be counted twice."""
        steps = simulate("compute", 301)
        assert callable(write)
        block = only(write(0, steps, every))
        assert block.warmup_steps == 1
        holds(block, steps[1 : (300 // every) * every + 1])

    def test_waits_of_each_epochs_start_are_told_from_others(self) -> None:
        def epoch(seed: int) -> list[Step]:
            return [(6.0, 5.8), *simulate("compute", 101, seed)[1:]]

        text = "".join(examples_wide(number, epoch(number)) for number in range(5))
        found = verdict_of(only(text))
        assert found.limit == "data"
        assert "each epoch's start" in found.words
        assert "persistent_workers" in found.action

    def test_a_long_epoch_is_not_lost_to_rounding(self) -> None:
        steps = simulate("bursts", 20_001)
        block = only(examples_old(0, steps, every=500))
        holds(block, steps[501:])
        assert all(abs(s.wait_s - 0.0625) < 0.03 for s in block.stretches)


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
        assert judge(only(text)) is None

    def test_one_late_line_covers_enough(self) -> None:
        line = "Epoch: [0][2100/5005] Time 0.410 (0.402) Data 0.000 (0.004) Loss 1 (1)\n"
        block = only(line)
        assert (block.warmup_steps, block.steps) == (0, 2101)
        assert verdict_of(block).limit == "compute"

    def test_two_lines_are_enough(self) -> None:
        assert verdict_of(only(examples_old(0, simulate("compute", 21)))).limit == "compute"


class TestBlocks:
    def test_a_start_over_is_another_run(self) -> None:
        text = examples_old(0, simulate("compute", 201)) + examples_old(0, simulate("steady", 301))
        assert [verdict_of(block).limit for block in log_of(text).blocks] == ["compute", "data"]

    def test_titles_come_from_above(self) -> None:
        log = examples_old(0, simulate("compute", 101))
        text = (
            f"# All runs\nSome words about them.\n\n*On one card*\n```sh\n{log}```\n"
            f"Half precision\n```\n$ python main.py\n{log}```\n{log}\n## Another machine:\n{log}"
        )
        assert [block.title for block in log_of(text).blocks] == [
            "On one card",
            "On one card, Half precision",
            "On one card",
            "Another machine",
        ]

    def test_a_title_cannot_steer_a_terminal(self) -> None:
        (block,) = log_of(
            "# A\x1b]0;owned\x07 run\x9b2J\n" + examples_old(0, simulate("compute", 101))
        ).blocks
        assert block.title.isprintable()

    @pytest.mark.parametrize("mark", ["", "[rank{}]:", "[default{}]:", "{}: ", "[1,{}]<stdout>:"])
    def test_ranks_side_by_side_are_one_run(self, mark: str) -> None:
        runs = [simulate("steady", 201, seed, work_s=0.1 + 0.05 * seed) for seed in range(4)]
        logs = [examples_wide(0, steps).splitlines() for steps in runs]
        together = itertools.chain.from_iterable(zip(*logs, strict=True))
        text = "\n".join(mark.format(n % 4) + line for n, line in enumerate(together))
        block = only(text)
        assert (block.ranks, block.steps, block.lines) == (4, 201, 84)
        holds(block, [step for steps in runs for step in steps[1:]])
        assert verdict_of(block).words == "data: the network waited for its batches"

    def test_ranks_that_write_by_the_bufferful_are_one_run(self) -> None:
        runs = [simulate("steady", 1001, seed) for seed in range(2)]
        one, two = (examples_wide(0, steps).splitlines() for steps in runs)
        text = "\n".join([*one[:40], *two[:40], *one[40:], *two[40:]])
        block = only(text)
        assert (block.ranks, block.steps) == (2, 1001)
        holds(block, runs[0][1:] + runs[1][1:])

    def test_validation_is_kept_apart(self) -> None:
        steps = simulate("compute", 201)
        tests = [
            "".join(f"Test: [{i:3d}/98]\tTime 9.1 (9.9)\tLoss 1 (1)\n" for i in range(0, 98, 10)),
            "".join(f"Test (EMA): [{i:>4d}/97]  Time: 9.1 (9.9)  Loss: 1 (1)\n" for i in (0, 97)),
            "".join(f"Test:   [{i}/98]  eta: 0:01  time: 9.1  data: 8.8\n" for i in (0, 10)),
            "Test: EMA  [ 0/98]  eta: 0:01  time: 9.1  data: 8.8\n",
        ]
        for test in tests:
            block = only(examples_wide(0, steps) + test + examples_wide(1, steps) + test)
            assert (block.validations, block.validation_lines) == (2, 2 * test.count("\n"))
            holds(block, steps[1:] + steps)

    def test_no_file_makes_endless_runs(self) -> None:
        line = "Epoch: [0][0/500] Time 9.142 (9.142) Data 5.001 (5.001)\nprose\n"
        log = log_of(line * 500)
        assert log.cut
        assert len(log.blocks) == MOST_RUNS


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
        block = only(spoil(WRITERS[writer][1](0, self.STEPS)))
        assert block.steps >= 180
        found = verdict_of(block)
        assert found.limit == "data"
        assert found.step_s == pytest.approx(0.25, rel=0.03)

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
        assert not log_of((line + "\n") * 20).blocks
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
            (block,) = read(file).blocks  # type: ignore[arg-type]
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
            assert block.epochs >= file.epoch - 1
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

    def test_a_file_that_cannot_be_read_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(BadRequest, match=r"gone\.log"):
            read_log(tmp_path / "gone.log")


class TestBatch:
    @pytest.mark.parametrize("batch", [32, 96, 128, 250, 256])
    @pytest.mark.parametrize("digits", [3, 4])
    def test_accuracies_betray_it(self, batch: int, digits: int) -> None:
        hits = range(1, batch, 7)
        assert batch_by_accuracy({f"{100 * n / batch:.{digits}f}" for n in hits}) == batch

    @pytest.mark.parametrize(
        "values", [set(), {"0.00"}, {"0.39"}, {"0.39", "0.78", "1.17", "0.00", "1.56", "1.95"}]
    )
    def test_too_few_or_too_small_betray_nothing(self, values: set[str]) -> None:
        assert batch_by_accuracy(values) is None

    @ALL
    def test_logs_betray_it(self, writer: str) -> None:
        block = only(WRITERS[writer][1](0, simulate("compute", 401)))
        assert block.images == pytest.approx(BATCH, rel=0.005)


def test_validation_is_no_training() -> None:
    assert parse("Test: [10/98]  Time 0.1 (0.1)") == Validation(10)


@pytest.mark.skipif(not SEED.exists(), reason=f"needs the notes with real logs, {SEED.name}")
def test_real_logs_are_judged_by_their_means() -> None:
    k80, v100, p6000, p6000_half = read_log(SEED).blocks
    found = [verdict_of(block) for block in (k80, v100, p6000, p6000_half)]
    assert [verdict.limit for verdict in found] == ["compute", "data", "compute", "compute"]
    assert found[1].words.endswith("in bursts")
    for block, step_s, wait_s in ((k80, 0.833, 0.003), (v100, 0.185, 0.050), (p6000, 0.257, 0.009)):
        assert block.whole.step_s == pytest.approx(step_s)
        assert block.whole.wait_s == pytest.approx(wait_s)
    assert v100.typical_wait_s == 0.001
    assert v100.judged.share == pytest.approx(0.26, abs=0.01)
    assert {block.images for block in (k80, v100, p6000, p6000_half)} == {128}
    assert "K80" in k80.title
    assert "Volta 100" in v100.title
    assert p6000.title != p6000_half.title
