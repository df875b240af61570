"""Each sentence of a verdict is kept once, with numbers as they are shown."""

from __future__ import annotations

import pytest

from golden import check_golden
from stoker.measure.verdict import Claim, Verdict
from stoker.measure.verdict_text import ACTIONS, EVIDENCE, MORE_EVIDENCE, NAMES, formatted, lines

EVERYTHING: dict[str, float | str] = {
    "store": "s3://bucket/set",
    "image_mbit": 93.6,
    "read_s": 0.114,
    "decode_s": 0.00585,
    "threads": 1,
    "late_share": 0.65,
    "images": 2,
    "larger": 8,
    "without_s": 0.00951,
    "sent_mb": 26,
    "rank": 1,
    "host": "box1",
    "rank_s": 0.155,
    "others_s": 0.0745,
    "part": "forward",
    "part_s": 0.106,
    "others_part_s": 0.0274,
    "compute_share": 0.87,
    "wait_share": 0.014,
    "model_s": 0.169,
    "loading_s": 0.1,
    "wait_s": 0.003,
    "core_wait_share": 0.73,
    "own_cores": 0.47,
    "cores": 2,
}
OPTIONAL: dict[str, float | str] = {
    "thread": "hog",
    "thread_cores": 0.94,
    "rate_mbit": 832,
    "capacity_mbit": 964,
    "throttled_share": 0.31,
    "stolen_share": 0.08,
    "gpu_throttles": "heat, power",
}


def test_every_sentence_golden() -> None:
    texts = []
    for cause in EVIDENCE:
        numbers = EVERYTHING | (OPTIONAL if cause.startswith("cores.") else {})
        claim = Claim(cause, 0.0524, 0.0715, numbers)
        texts += [f"[{cause}]", *Verdict(0.124, claim).lines()]
        if cause in MORE_EVIDENCE:
            claim = Claim(cause, 0.0524, None, EVERYTHING | OPTIONAL)
            texts += [f"[{cause}, with all numbers]", Verdict(0.124, claim).lines()[0]]
    limit = Claim("evaluation", 0.1)
    for cause in NAMES:
        verdict = Verdict(0.124, limit, Claim(cause, 0.0524, None, EVERYTHING))
        texts += [f"[{cause}, next]", verdict.lines()[1]]
    check_golden("measure_verdicts", texts)


def test_each_cause_has_evidence_and_an_action() -> None:
    assert EVIDENCE.keys() == ACTIONS.keys() == NAMES.keys() - {"loading"}
    assert MORE_EVIDENCE.keys() <= EVIDENCE.keys()


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("lost_share", 0.1, "10%"),
        ("lost_share", 0.0996, "10.0%"),
        ("wait_share", 0.014, "1.4%"),
        ("step_s", 1.66, "1.66 s"),
        ("step_s", 0.0312, "31.2 ms"),
        ("thread_cores", 0.944, "0.94"),
        ("threads", 1, "1 thread"),
        ("threads", 4, "4 threads"),
        ("sent_mb", 1234.5, "1,234"),
        ("host", "{box}", "{box}"),
    ],
)
def test_a_number_is_written_by_its_unit(name: str, value: float | str, text: str) -> None:
    assert formatted({name: value}) == {name: text}


@pytest.mark.parametrize(
    ("without_s", "shown"), [(None, False), (0.995, False), (0.98, True), (1.0, False)]
)
def test_a_gain_is_shown_from_one_percent(without_s: float | None, shown: bool) -> None:
    fields = {"words": "w", "evidence": "e", "action": "a", "step_s": 1.0, "runner_up": ""}
    assert (len(lines({**fields, "without_s": without_s})) == 3) == shown


def test_events_of_older_runs_are_shown_as_they_were_written() -> None:
    event = {
        "limit": "compute",
        "words": "compute",
        "evidence": "90% of the time",
        "action": "wait",
        "step_s": 2.0,
        "without_s": 1.0,
        "runner_up": "loading",
    }
    assert lines(event) == [
        "slowed by compute: 90% of the time",
        "without it: 1.00 s a step instead of 2.00 s (50% less)",
        "second limit: loading",
        "next: wait",
    ]
