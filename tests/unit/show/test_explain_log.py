"""`explain` of logs of other programs: plain, short, and with what such logs cannot show."""

from __future__ import annotations

import io
import re

import pytest

from golden import check_golden
from stoker.measure.logs.runs import MOST_RUNS, read
from stoker.show.explain_log import CANNOT_TELL, TOO_SHORT, explain_log
from training_logs import WRITERS, examples_old, examples_wide, simulate, timm, torchvision


def explained(text: str) -> list[str]:
    return explain_log(read(io.BytesIO(text.encode())))


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("kind", ["compute", "steady", "bursts", "stalls"])
def test_a_run_takes_eight_lines_at_most(writer: str, kind: str) -> None:
    lines = explained("# A title\n" + WRITERS[writer][1](0, simulate(kind, 401)))
    assert len(lines) <= 8 + 1
    assert lines[0].startswith(f"A title: a log of {WRITERS[writer][0]}, ")
    assert lines[-1] == CANNOT_TELL
    assert all(line.isprintable() for line in lines)
    assert max(map(len, lines)) < 160
    assert [line for line in lines if "slowed by" in line]
    assert [line for line in lines if "next: " in line]


def test_bursts_are_told_with_what_a_line_shows() -> None:
    steps = simulate("bursts", 401)
    lines = explained(examples_old(0, steps))
    assert lines[0] == "a log of pytorch/examples, 40 lines, 401 steps"
    assert "without the first 11 steps (warm-up; " in lines[1]
    assert "images/s (batch 128)" in lines[1]
    assert "a typical line shows 0.000 s of waiting and misleads: 36 of 40 lines" in lines[3]
    assert lines[4].startswith("   slowed by data: ")
    share = re.search(r"in bursts: (\d+)% of a step is waiting by the mean", lines[4])
    assert share
    # Three printed digits leave a quarter of a point open, and the figure is a whole one.
    truth = sum(wait_s for _, wait_s in steps[11:]) / sum(step_s for step_s, _ in steps[11:])
    assert int(share[1]) / 100 == pytest.approx(truth, abs=0.0075)
    assert re.fullmatch(
        r"   without it: 1\d\d ms a step instead of 2\d\d ms \(\d+% less\)", lines[5]
    )


def test_a_steady_wait_misleads_nobody() -> None:
    text = "\n".join(explained(examples_old(0, simulate("steady", 401))))
    assert "slowed by data" in text
    assert "misleads" not in text
    assert "bursts" not in text


def test_compute_promises_nothing() -> None:
    text = "\n".join(explained(examples_wide(0, simulate("compute", 401))))
    assert "slowed by compute" in text
    assert "without it" not in text


def test_stretches_are_told_where_lines_show_nothing() -> None:
    text = "\n".join(explained(examples_wide(0, simulate("stalls", 1001))))
    assert "no line shows the waits; 10 of 41 stretches between lines wait" in text


def test_a_sample_of_the_steps_is_called_one() -> None:
    text = "\n".join(explained(torchvision(0, simulate("steady", 2001), every=100)))
    assert "from the 20% of steps that the lines average over" in text


def test_a_warmup_alone_is_not_judged() -> None:
    text = "\n".join(explained("Epoch: [0][10/99] Time 0.310 (1.204) Data 0.002 (0.415)\n"))
    assert TOO_SHORT in text
    assert "including the warm-up" in text
    assert "slowed by" not in text


def test_runs_are_numbered_and_compared() -> None:
    slow, quick = (examples_old(0, simulate("compute", 201, work_s=s)) for s in (0.4, 0.1))
    lines = explained(f"# Slow\n{slow}\n# Quick\n{quick}")
    assert lines[0].startswith("1. Slow: ")
    assert [line for line in lines if line.startswith("2. Quick: ")]
    assert lines[-2] == "run 2 is 4 times as fast as run 1, at the same batch size"


def test_epochs_ranks_and_validations_are_counted() -> None:
    steps = simulate("compute", 101)
    both = [line for text in (examples_wide(0, steps),) for line in text.splitlines() for _ in "12"]
    text = "\n".join([*both, "Test: [0/9] Time 1.0 (1.0)", examples_wide(1, steps)])
    assert explained(text)[0].endswith("2 epochs, 2 ranks, 1 validation not counted")


def test_every_sentence_golden() -> None:
    """Logs of every kind: short, of several ranks, with waits that lines hide, and cut."""
    steady, compute = simulate("steady", 401), simulate("compute", 201)
    logs = {
        "compute": examples_wide(0, compute),
        "steady, sampled": torchvision(0, simulate("steady", 2001), every=100),
        "bursts": examples_old(0, simulate("bursts", 401)),
        "stalls": examples_wide(0, simulate("stalls", 1001)),
        "epoch starts": "".join(
            examples_wide(epoch, [(6.0, 5.8), *compute[1:101]]) for epoch in range(5)
        ),
        "too short": "Epoch: [0][10/99] Time 0.310 (1.204) Data 0.002 (0.415)\n",
        "two runs": f"# Slow\n{timm(0, steady)}\n# Fast\n{timm(0, compute)}",
        "two runs, unknown batch": "".join(
            f"# {number}\nEpoch: [0][2100/5005] Time 0.4 (0.{number}) Data 0.0 (0.0)\n"
            for number in (2, 4)
        ),
        "validation": examples_wide(0, compute) + "Test: [0/9] Time 1.0 (1.0)\n",
    }
    check_golden(
        "explain_log",
        [line for name, text in logs.items() for line in (f"[{name}]", *explained(text))],
    )


def test_runs_that_were_left_out_are_mentioned() -> None:
    line = "Epoch: [0][0/500] Time 9.142 (9.142) Data 5.001 (5.001)\nprose\n"
    assert f"more than {MOST_RUNS} runs" in explained(line * 100)[-2]
