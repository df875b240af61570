"""Every step is in the file, in order, with the numbers that the device had."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from stoker.measure.spans import Spans
from stoker.run.events import Events
from stoker.train.device import LateNumbers
from stoker.train.records.step_log import SECONDS_BETWEEN_READS, StepLog


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "attempts" / "0001" / "rank0.jsonl"


@pytest.fixture
def events(path: Path) -> Iterator[Events]:
    made = Events(path)
    yield made
    made.close()


def written(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def sums_of(step: int) -> list[float]:
    """Numbers that no short decimal says exactly."""
    return [(step + 1) / 3 + 1e-13, float(step), 2.0**-40 * step]


def note(log: StepLog, step: int) -> None:
    numbers = torch.tensor([*sums_of(step), 0.5], dtype=torch.float64)
    log.step(LateNumbers(numbers), Spans().lap(), step=step, position=8 * step, images=8)


def test_flush_puts_every_step_into_the_file_in_order(path: Path, events: Events) -> None:
    log = StepLog(events)
    for step in range(100):
        note(log, step)
    log.flush()
    assert [(e["kind"], e["step"], e["position"]) for e in written(path)] == [
        ("step", step, 8 * step) for step in range(100)
    ]


def test_sums_are_read_exactly(path: Path, events: Events) -> None:
    log = StepLog(events)
    for step in range(50):
        note(log, step)
    log.flush()
    assert [event["sums"] for event in written(path)] == [sums_of(step) for step in range(50)]


def test_a_step_is_written_once(path: Path, events: Events) -> None:
    log = StepLog(events)
    note(log, 0)
    log.flush()
    log.flush()
    note(log, 1)
    log.flush()
    assert [event["step"] for event in written(path)] == [0, 1]


def test_flush_takes_other_events_along(path: Path, events: Events) -> None:
    log = StepLog(events)
    events.write("evaluating", step=0)
    log.flush()
    assert [event["kind"] for event in written(path)] == ["evaluating"]


def test_listeners_see_what_the_file_says(path: Path) -> None:
    heard: list[dict[str, Any]] = []
    events = Events(path, (heard.append,))
    log = StepLog(events)
    for step in range(3):
        note(log, step)
    log.flush()
    events.close()
    assert heard == written(path)


def test_steps_are_read_about_once_a_second_without_being_asked(path: Path, events: Events) -> None:
    now = 100.0
    log = StepLog(events, clock=lambda: now)
    now += SECONDS_BETWEEN_READS - 0.1
    note(log, 0)
    assert written(path) == []
    now += 0.2
    note(log, 1)
    assert [event["step"] for event in written(path)] == [0, 1]
