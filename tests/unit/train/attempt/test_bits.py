"""A resume that computes other bits says so; one that computes the same bits does not."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.recipe.changes import Change
from stoker.run.events import Event
from stoker.train.attempt.bits import bits_note

HERE = {"threads": 4, "torch": "2.9", "numpy": "2", "device": "EPYC", "isa": "AVX2", "opencv": "4"}
pytestmark = pytest.mark.exact


def start(attempt: int, position: int, **changes: Any) -> Event:
    world = changes.pop("world", 2)
    environment = {**HERE, **changes}
    return {"attempt": attempt, "position": position, "world": world, "environment": environment}


@pytest.mark.parametrize(
    ("changes", "phrases"),
    [
        ({}, None),
        ({"threads": 2}, ("2 compute threads", "4 compute threads")),
        ({"torch": "3.0"}, ("torch 3.0", "torch 2.9")),
        ({"device": "Xeon"}, ("Xeon", "EPYC")),
        ({"isa": "AVX512"}, ("AVX512", "AVX2")),
        ({"opencv": "5"}, ("opencv 5", "opencv 4")),
        ({"world": 1}, ("1 rank", "2 ranks")),
        ({"device": "\x1b[2J"}, (r"\\x1b[2J", "EPYC")),
        ({"host": "another", "process": 9, "cores": 64}, None),
    ],
)
def test_what_changes_bits_is_named(
    changes: dict[str, Any], phrases: tuple[str, str] | None
) -> None:
    note = bits_note([start(1, 0)], start(2, 64, **changes), 64)
    if phrases is None:
        assert note == []
        return
    (line,) = note
    assert line.startswith(
        f"resumed with {phrases[0].replace(chr(92) * 2, chr(92))}; attempt 1 had"
    )
    assert phrases[1] in line


def test_on_a_gpu_the_processor_threads_do_not_count() -> None:
    here = {"isa": None, "device": "H100"}
    assert bits_note([start(1, 0, **here)], start(2, 64, **here, threads=1), 64) == []


GPU = {"isa": None, "device": "H100", "cudnn": "9.1.0", "driver": "550.54"}
CPU = {"isa": "AVX2", "device": "EPYC"}


@pytest.mark.parametrize(
    ("place", "deterministic", "position", "warned"),
    [
        (GPU, False, 64, True),
        (GPU, True, 64, False),
        (GPU, False, 0, False),  # nothing of an earlier attempt is left
        (CPU, False, 64, False),
        (CPU, True, 64, False),
    ],
)
def test_a_gpu_without_deterministic_kernels_promises_the_images_and_not_the_bits(
    place: dict[str, Any], deterministic: bool, position: int, warned: bool
) -> None:
    starts, now = [start(1, 0, **place)], start(2, position, **place)
    note = bits_note(starts, now, position, deterministic=deterministic)
    assert [line.startswith("resumed on a GPU without --deterministic") for line in note] == (
        [True] if warned else []
    )


@pytest.mark.parametrize(
    "changes", [{"cudnn": "9.2.0"}, {"driver": "560.35"}, {"device": "A100"}, {"world": 4}]
)
def test_on_a_gpu_its_driver_and_cudnn_count(changes: dict[str, Any]) -> None:
    now = start(2, 64, **{**GPU, **changes})
    (line,) = bits_note([start(1, 0, **GPU)], now, 64, deterministic=True)
    assert line.startswith("resumed with") and "no longer bit-equal" in line


def test_what_an_older_version_did_not_record_is_not_compared() -> None:
    old = start(1, 0)
    del old["environment"]["isa"], old["environment"]["opencv"]
    assert bits_note([old], start(2, 64), 64) == []
    assert bits_note([{"attempt": 1, "position": 0}], start(2, 64), 64) == []


@pytest.mark.parametrize(
    ("attempts", "position", "named"),
    [
        ([(0, 2)], 0, None),  # nothing of it is left
        ([(0, 4), (64, 2)], 64, None),  # the second saved nothing
        ([(0, 4), (64, 2)], 128, 2),
        ([(0, 2), (64, 4)], 128, 1),
        ([(0, 4), (64, 2), (64, 4)], 128, None),  # the third replaced the second
        ([(0, 2), (0, 4)], 128, None),
    ],
)
def test_only_attempts_that_made_steps_of_this_run_count(
    attempts: list[tuple[int, int]], position: int, named: int | None
) -> None:
    starts = [start(n, at, threads=threads) for n, (at, threads) in enumerate(attempts, 1)]
    note = bits_note(starts, start(9, position), position)
    assert [f"attempt {named} had" in line for line in note] == ([True] if named else [])


def test_another_micro_batch_is_another_order_of_sums() -> None:
    (line,) = bits_note([start(1, 0)], start(2, 64), 64, [Change("micro_batch", 0, 16)])
    assert "resumed with micro_batch 16; attempt 1 had micro_batch 0" in line
