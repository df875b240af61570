from __future__ import annotations

import json
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from stoker.host import sampler as probes
from stoker.host.counters import Machine, Reading
from stoker.host.sampler import Sampler
from waiting import until

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads what Linux writes")


def names() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


@pytest.fixture(autouse=True)
def no_other_sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    """The samplers of earlier tests have ended, and a slow machine gets more time."""
    monkeypatch.setattr(probes, "PATIENCE_S", 60)
    until(lambda: "stoker-probes" not in names())


def test_a_summary_is_plain_data() -> None:
    sampler = Sampler(every_s=0.05)
    sampler.begin()
    sampler.begin()
    assert names().count("stoker-probes") == 1
    until(lambda: len(sampler._late_s) > 3)
    figures = json.loads(json.dumps(sampler.take()))
    sampler.close()
    sampler.close()
    assert figures["seconds"] > 0
    assert figures["cpu"]["own_cores"] >= 0
    assert figures["lock"]["wakes"] > 3
    assert "failed" not in figures
    assert "stoker-probes" not in names()


def test_each_take_begins_where_the_last_one_ended() -> None:
    sampler = Sampler(every_s=0.02)
    began = time.monotonic()
    sampler.begin()
    takes = []
    for _ in range(5):
        until(lambda: len(sampler._readings) > 2)
        takes.append(sampler.take()["seconds"])
    sampler.close()
    assert all(takes)
    takes.append(sampler.take()["seconds"])
    assert sum(takes) <= time.monotonic() - began + 0.01
    assert sampler.take() == {"seconds": 0.0}


def test_closing_takes_a_last_reading() -> None:
    sampler = Sampler(every_s=3600.0)
    sampler.begin()
    until(lambda: sampler._base)
    assert sampler.take() == {"seconds": 0.0}
    sampler.close()
    assert sampler.take()["seconds"] > 0


def test_a_sampler_that_never_began_has_no_figures() -> None:
    sampler = Sampler()
    assert sampler.take() == {"seconds": 0.0}
    sampler.close()
    sampler.begin()
    assert sampler.take() == {"seconds": 0.0}


@linux
def test_a_thread_that_spins_is_named() -> None:
    stop = threading.Event()
    spun_s = 0.0

    def spin() -> None:
        nonlocal spun_s
        while not stop.is_set():
            sum(range(1000))
            spun_s = time.thread_time()

    thread = threading.Thread(target=spin, name="spin")
    thread.start()
    sampler = Sampler(every_s=0.05)
    sampler.begin()
    try:
        until(lambda: sampler._scans)
        before_s = spun_s
        until(lambda: spun_s > before_s + 0.5)
    finally:
        sampler.close()
        stop.set()
        thread.join()
    (spinning,) = [one for one in sampler.take()["threads"] if one["name"] == "spin"]
    assert spinning["python"]
    assert spinning["cores"] > 0


class Failing:
    """A machine that can be read twice."""

    def __init__(self) -> None:
        self.left = 2

    def read(self) -> Reading:
        self.left -= 1
        if self.left < 0:
            raise ValueError("no more")
        return Reading(time.monotonic(), {"own_user_s": 1.0})

    def close(self) -> None:
        pass


def test_a_failure_inside_leaves_a_note_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(probes, "Machine", Failing)
    sampler = Sampler(every_s=0.02)
    sampler.begin()
    until(lambda: sampler._failed)
    figures = sampler.take()
    assert figures["failed"] == "ValueError: no more"
    assert figures["seconds"] > 0
    assert sampler.take() == {"seconds": 0.0, "failed": "ValueError: no more"}
    sampler.close()
    assert capfd.readouterr() == ("", "")


def test_a_process_that_may_have_no_more_threads_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    sampler = Sampler()
    sampler.begin()
    sampler.close()
    assert sampler.take() == {"seconds": 0.0, "failed": "can't start new thread"}


def test_a_machine_without_kernel_files_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    none = str(tmp_path / "none")
    monkeypatch.setattr(probes, "Machine", partial(Machine, none, none, none))
    sampler = Sampler(every_s=0.02)
    sampler.begin()
    until(lambda: len(sampler._readings) > 1)
    sampler.close()
    figures = sampler.take()
    assert {"seconds", "cpu", "lock"} <= set(figures)
    assert not {"memory", "network", "disk", "pressure", "main", "failed"} & set(figures)


def test_what_is_not_taken_stays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "MOST_READINGS", 3)
    sampler = Sampler(every_s=0.01)
    began = time.monotonic()
    sampler.begin()
    until(lambda: len(sampler._readings) == 3)
    first = sampler._readings[0]
    until(lambda: sampler._readings[0].at_s > first.at_s + 0.1)
    sampler.close()
    assert len(sampler._readings) == 3
    assert 0.1 < sampler.take()["seconds"] <= time.monotonic() - began + 0.01
    assert len(sampler._scans) <= 2


def test_any_thread_may_take() -> None:
    sampler = Sampler(every_s=0.01)
    began = time.monotonic()
    sampler.begin()
    seconds: list[float] = []

    def take_often() -> None:
        for _ in range(50):
            seconds.append(sampler.take()["seconds"])
            time.sleep(0.005)

    takers = [threading.Thread(target=take_often) for _ in range(4)]
    for taker in takers:
        taker.start()
    for taker in takers:
        taker.join()
    sampler.close()
    seconds.append(sampler.take()["seconds"])
    assert 0 < sum(seconds) <= time.monotonic() - began + 0.01
