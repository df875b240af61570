"""What the machine did while a run trained: a thread that reads the kernel's counters every second.

Invariants: a sampler never harms a run. It only reads, and never waits for other threads. If it
fails, it ends silently and leaves a note under `failed`. `take` waits for no file and no device: it
summarises what the thread has read since the last `take`.

    sampler = Sampler()
    sampler.begin()
    ...
    sampler.take()  # {"seconds": 10.0, "cpu": {"own_cores": 1.9, "busy": 0.97, ...}, ...}
    sampler.close()
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from itertools import islice
from typing import Any

from stoker.host import gpu, threads
from stoker.host.counters import Machine, Reading, summary
from stoker.host.threads import OwnDelay, ThreadSeconds, late_wake

NAP_S = 0.1
"""Between two wakes that measure the wait for the interpreter lock."""
MOST_READINGS = 600
"""Readings that are kept between two takes, for means and peaks; totals cover all of the time."""
SLOW_EVERY = 5
"""Every nth reading includes what is slow to read: all threads, and the GPU's costly counters."""
SLOW_CPU_SHARE, SLOW_TIME_SHARE = 1 / 2000, 1 / 10
"""The most that slow readings may cost, of a core and of the sampler's time, with any threads."""
PATIENCE_S = 2.0
"""How long `close` waits for the thread."""

Scan = tuple[float, dict[int, ThreadSeconds]]


class Sampler:
    """A daemon thread that reads the machine's counters while other threads work."""

    def __init__(self, every_s: float = 1.0) -> None:
        self._every_s = every_s
        self._stop_lock = threading.Lock()  # released to end the thread
        self._stop_lock.acquire()
        self._closed = False
        self._thread: threading.Thread | None = None
        self._guard = threading.Lock()  # protects everything below
        self._failed = ""
        self._base: Reading | None = None
        self._readings: deque[Reading] = deque(maxlen=MOST_READINGS)
        self._late_s: deque[float] = deque(maxlen=round(MOST_READINGS / NAP_S))
        self._gpus: deque[list[dict[str, Any]]] = deque(maxlen=MOST_READINGS)
        self._scans: list[Scan] = []

    def begin(self) -> None:
        """Start the thread; does nothing the second time."""
        if self._thread is not None or self._closed:
            return
        self._thread = threading.Thread(target=self._run, name="stoker-probes", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # this process may have no more threads
            self._thread, self._failed = None, str(error)

    def close(self) -> None:
        """Take a last reading and end the thread; waits at most PATIENCE_S for it."""
        with self._guard:
            closed, self._closed = self._closed, True
        if not closed:
            self._stop_lock.release()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(PATIENCE_S)

    def take(self) -> dict[str, Any]:
        """A summary of the readings since the last take; {"seconds": 0.0} if there are none."""
        with self._guard:
            base, readings, late_s = self._base, list(self._readings), list(self._late_s)
            gpus, scans, failed = list(self._gpus), list(self._scans), self._failed
            if readings:
                self._base, self._scans = readings[-1], scans[-1:]
                for kept in (self._readings, self._late_s, self._gpus):
                    kept.clear()
        figures: dict[str, Any] = {"seconds": 0.0}
        if base is not None and readings:
            figures = summary([base, *readings])
            figures["lock"] = threads.lateness(late_s, sys.getswitchinterval())
            if len(scans) > 1 and scans[-1][0] > scans[0][0]:
                seconds = scans[-1][0] - scans[0][0]
                figures["threads"] = threads.busiest(scans[0][1], scans[-1][1], seconds)
            if gpus:
                figures["gpus"] = gpu.over_time(gpus)
        if failed:
            figures["failed"] = failed
        return figures

    def _run(self) -> None:
        try:
            self._read_until_closed()
        except Exception as error:
            with self._guard:
                self._failed = f"{type(error).__name__}: {error}"

    def _read_until_closed(self) -> None:
        machine, delay, gpus = Machine(), OwnDelay(), gpu.Gpus()
        try:
            nap_s = min(NAP_S, self._every_s)
            next_s, next_slow_s, ended = time.monotonic(), 0.0, False
            while not ended:
                now = time.monotonic()
                if now >= next_s:
                    slow, cpu_s = now >= next_slow_s, time.thread_time()
                    self._read(machine, gpus, slow)
                    next_s = max(next_s, now - self._every_s / 2) + self._every_s
                    if slow:
                        next_slow_s = now + max(
                            SLOW_EVERY * self._every_s,
                            (time.thread_time() - cpu_s) / SLOW_CPU_SHARE,
                            (time.monotonic() - now) / SLOW_TIME_SHARE,
                        )
                ended, late_s = late_wake(self._stop_lock, nap_s, delay)
                if not ended:
                    with self._guard:
                        self._late_s.append(late_s)
            self._read(machine, gpus, slow=True)
        finally:
            for source in (machine, delay, gpus):
                source.close()

    def _read(self, machine: Machine, gpus: gpu.Gpus, slow: bool) -> None:
        reading, gpu_readings = machine.read(), gpus.read(slow)
        scan = (time.monotonic(), threads.scan()) if slow else None
        with self._guard:
            if self._base is None:
                self._base = reading
            else:
                self._readings.append(reading)
            if gpu_readings:
                self._gpus.append(gpu_readings)
            if scan is not None and scan[1]:
                # Scans between the first and the latest add nothing to their difference.
                self._scans = [*islice(self._scans, 1), scan]
