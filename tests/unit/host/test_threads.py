from __future__ import annotations

import ctypes
import hashlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import pytest

from measured import held, measured
from stoker.host.threads import (
    SPINS,
    CoreUse,
    LockMeter,
    OwnDelay,
    ThreadSeconds,
    busiest,
    late_wake,
    lateness,
    limit_spinning,
    scan,
)

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads what Linux writes")


def test_threads_of_one_name_count_together() -> None:
    first = {
        1: ThreadSeconds("MainThread", True, 10.0),
        2: ThreadSeconds("spin", True, 1.0),
        3: ThreadSeconds("python", False, 5.0),
        4: ThreadSeconds("ended", False, 5.0),
        5: ThreadSeconds("old", False, 5.0),
    }
    last = {
        1: ThreadSeconds("MainThread", True, 10.0),
        2: ThreadSeconds("spin", True, 10.7),
        3: ThreadSeconds("python", False, 8.0),
        5: ThreadSeconds("same number", False, 2.0),
        6: ThreadSeconds("python", False, 4.0),
    }
    assert busiest(first, last, 10.0) == [
        {"name": "spin", "python": True, "cores": 0.97, "count": 1},
        {"name": "python", "python": False, "cores": 0.7, "count": 2},
        {"name": "same number", "python": False, "cores": 0.2, "count": 1},
    ]


def test_lateness_is_compared_with_the_switch_interval() -> None:
    figures = lateness([0.0, 0.001, 0.005, 0.006], 0.005)
    assert figures["wakes"] == 4
    assert figures["late_median_s"] == 0.003
    assert figures["late_mean_s"] == 0.003
    assert figures["late_share"] == 0.5
    assert lateness([], 0.005) == {}


@linux
def test_a_thread_is_known_by_the_name_python_gave_it() -> None:
    done = threading.Event()
    other = threading.Thread(target=done.wait, name="a name (with brackets)")
    other.start()
    try:
        seconds = scan()
        assert seconds[other.native_id or 0].name == "a name (with brackets)"
        assert seconds[threading.main_thread().native_id or 0].cpu_s > 0
    finally:
        done.set()
        other.join()


def test_no_threads_are_found_where_the_kernel_lists_none(tmp_path: Path) -> None:
    assert scan(str(tmp_path / "none")) == {}
    (tmp_path / "12").mkdir()  # one that ended after it was listed
    assert scan(str(tmp_path)) == {}


@pytest.mark.parametrize("text", [None, "", "odd\n", "1 x 3\n"])
def test_an_own_delay_that_cannot_be_read_is_none(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "schedstat").write_text(text)
    delay = OwnDelay(str(tmp_path / "schedstat"))
    assert delay.seconds() is None
    assert delay.seconds() is None
    delay.close()


@linux
def test_an_own_delay_never_shrinks() -> None:
    delay = OwnDelay()
    first, last = delay.seconds(), delay.seconds()
    delay.close()
    if first is None or last is None:
        pytest.skip("this kernel does not count delays")
    assert 0 <= first <= last


@pytest.fixture
def slow_switches() -> Iterator[float]:
    """A long switch interval, so that the lock shows above whatever else the machine does."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.03)
    yield 0.03
    sys.setswitchinterval(before)


def lateness_beside(work: Callable[[], object], threads: int) -> float:
    stop, never = threading.Event(), threading.Lock()

    def repeat() -> None:
        while not stop.is_set():
            work()

    never.acquire()
    workers = [threading.Thread(target=repeat) for _ in range(threads)]
    for worker in workers:
        worker.start()
    delay = OwnDelay()
    try:
        return median(late_wake(never, 0.02, delay)[1] for _ in range(15))
    finally:
        delay.close()
        stop.set()
        for worker in workers:
            worker.join()


def python_alone() -> None:
    for _ in range(10_000):
        pass


def lock_released() -> None:
    hashlib.pbkdf2_hmac("sha256", b"word", b"salt", 20_000)


@linux
def test_a_hog_of_the_lock_differs_from_work_that_releases_it(slow_switches: float) -> None:
    # The best of some: on a busy machine the thread that holds the lock may wait for a core.
    assert any(lateness_beside(python_alone, 1) > slow_switches / 2 for _ in range(5))
    assert any(lateness_beside(lock_released, 4) < slow_switches / 2 for _ in range(5))


def test_a_sleep_ends_when_its_lock_is_free(tmp_path: Path) -> None:
    free = threading.Lock()
    ended, late_s = late_wake(free, 60.0, OwnDelay(str(tmp_path / "none")))
    assert ended
    assert late_s == 0.0


@linux
def test_core_use_is_what_was_used_since_the_last_call() -> None:
    use = CoreUse()
    began = time.process_time()
    while time.process_time() - began < 0.05:
        pass
    first, second = use.since_last(), use.since_last()
    assert first["cpu"] >= 0.05 and first["wait"] >= 0
    assert second["cpu"] < first["cpu"]


def test_core_use_without_a_kernel_that_counts_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OwnDelay, "seconds", lambda self: None)
    assert set(CoreUse().since_last()) == {"cpu"}


@pytest.mark.parametrize(
    ("own", "after"),
    [
        ({}, {"GOMP_SPINCOUNT": SPINS}),
        ({"GOMP_SPINCOUNT": "7"}, {"GOMP_SPINCOUNT": "7"}),
        ({"OMP_WAIT_POLICY": "active"}, {"OMP_WAIT_POLICY": "active"}),
    ],
)
def test_waiting_threads_sleep_soon_unless_the_user_chose(
    own: dict[str, str], after: dict[str, str]
) -> None:
    environment = dict(own)
    limit_spinning(environment)
    assert environment == after


@linux
@pytest.mark.alone
@measured()
def test_a_call_that_keeps_the_lock_is_measured_and_a_sleep_is_not() -> None:
    keep_lock = ctypes.PyDLL(None).usleep
    with LockMeter() as meter:
        time.sleep(0.02)
        keep_lock(30_000)
        time.sleep(0.02)
    assert meter.longest_s > 0.025
    held(meter.longest_s < 0.035, meter.longest_s)
    with LockMeter() as meter:
        time.sleep(0.1)
    held(meter.longest_s < 0.004, meter.longest_s)


@pytest.mark.parametrize(("work_s", "printed"), [(0.5, "said\ndone\n"), (300.0, "said\n")])
def test_a_process_waits_for_its_threads_but_not_for_ever(work_s: float, printed: str) -> None:
    script = f"""
import threading, time
from stoker.host import threads
threads.MOST_ENDING_S = 5.0
threading.Thread(target=lambda: (time.sleep({work_s}), print("done"))).start()
print("said")
threads.end_process(75)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=100
    )
    assert (done.returncode, done.stdout, done.stderr) == (75, printed, "")
