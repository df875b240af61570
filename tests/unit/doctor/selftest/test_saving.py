"""The ticking thread notices a held lock."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from stoker.doctor.selftest.rows import QUICK, Setup
from stoker.doctor.selftest.saving import Ticker, measure_saving
from stoker.train.process_group import Ranks
from tiny_runs import one_thread_alone  # noqa: F401


def test_a_held_lock_is_a_long_pause() -> None:
    ticker = Ticker()
    with ticker.running():
        ctypes.PyDLL(None).usleep(100_000)  # a call that keeps the lock
    assert ticker.longest_s > 0.08


def test_saves_are_measured_and_removed(tmp_path: Path) -> None:
    setup = Setup(Ranks.join(), tmp_path, QUICK, 1e18, quick=True)
    measured = measure_saving(setup)
    assert measured.figures["blocked_ms"] > 0 and measured.figures["hold_ms"] > 0
    assert not list(tmp_path.iterdir())


def test_a_save_that_fails_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stoker.errors import StokerError
    from stoker.survive import checkpoints

    def full(folder: Path, snapshot: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(checkpoints, "write_checkpoint", full)
    setup = Setup(Ranks.join(), tmp_path, QUICK, 1e18, quick=True)
    with pytest.raises(StokerError, match="cannot save a checkpoint"):
        measure_saving(setup)
