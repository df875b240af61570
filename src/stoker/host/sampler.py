"""What the machine did while a run trained: a thread that looks every second.

Invariants: a sampler never hurts a run. It reads only, waits for nobody, and where something goes
wrong inside it ends in silence and leaves a note under `failed`. `take` waits for no file and no
device: it tells what the thread has seen since the last `take`, up to its latest look.

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
from stoker.host.counters import Machine, Reading, between
from stoker.host.threads import OwnDelay, ThreadSeconds, late_wake

NAP_S = 0.1
"""Between two wakes that measure the wait for the interpreter lock."""
KEPT = 600
"""Looks that means and peaks are made of where nobody takes for long; totals are of all time."""
SLOW_EVERY = 5
"""Looks between two at what is dear to read: every thread, and what a GPU must watch first."""
SLOW_CPU_SHARE, SLOW_TIME_SHARE = 1 / 2000, 1 / 10
"""The most that this may cost, of a core and of the sampler's time, however many threads."""
PATIENCE_S = 2.0

Scan = tuple[float, dict[int, ThreadSeconds]]


class Sampler:
    """A daemon thread that looks at the machine while somebody else works."""

    def __init__(self, every_s: float = 1.0) -> None:
        self._every_s = every_s
        self._ending = threading.Lock()
        self._ending.acquire()
        self._closed = False
        self._thread: threading.Thread | None = None
        self._guard = threading.Lock()  # over everything below
        self._failed = ""
        self._base: Reading | None = None
        self._looks: deque[Reading] = deque(maxlen=KEPT)
        self._late_s: deque[float] = deque(maxlen=round(KEPT / NAP_S))
        self._gpus: deque[list[dict[str, Any]]] = deque(maxlen=KEPT)
        self._scans: list[Scan] = []

    def begin(self) -> None:
        """Start to look; does nothing the second time."""
        if self._thread is not None or self._closed:
            return
        self._thread = threading.Thread(target=self._run, name="stoker-probes", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # no more threads for this process
            self._thread, self._failed = None, str(error)

    def close(self) -> None:
        """Look a last time and end. A device that does not answer is not waited for."""
        with self._guard:
            closed, self._closed = self._closed, True
        if not closed:
            self._ending.release()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(PATIENCE_S)

    def take(self) -> dict[str, Any]:
        """What was seen since the last take. Without a look since then, nothing but that."""
        with self._guard:
            base, looks, late_s = self._base, list(self._looks), list(self._late_s)
            gpus, scans, failed = list(self._gpus), list(self._scans), self._failed
            if looks:
                self._base, self._scans = looks[-1], scans[-1:]
                for kept in (self._looks, self._late_s, self._gpus):
                    kept.clear()
        told: dict[str, Any] = {"seconds": 0.0}
        if base is not None and looks:
            told = between([base, *looks])
            told["lock"] = threads.lateness(late_s, sys.getswitchinterval())
            if len(scans) > 1 and scans[-1][0] > scans[0][0]:
                seconds = scans[-1][0] - scans[0][0]
                told["threads"] = threads.busiest(scans[0][1], scans[-1][1], seconds)
            if gpus:
                told["gpus"] = gpu.over_time(gpus)
        if failed:
            told["failed"] = failed
        return told

    def _run(self) -> None:
        try:
            self._look_until_closed()
        except Exception as error:
            with self._guard:
                self._failed = f"{type(error).__name__}: {error}"

    def _look_until_closed(self) -> None:
        machine, delay, gpus = Machine(), OwnDelay(), gpu.Gpus()
        try:
            nap_s = min(NAP_S, self._every_s)
            next_look_s, next_slow_s, ended = time.monotonic(), 0.0, False
            while not ended:
                now = time.monotonic()
                if now >= next_look_s:
                    slow, cpu_s = now >= next_slow_s, time.thread_time()
                    self._look(machine, gpus, slow)
                    next_look_s = max(next_look_s, now - self._every_s / 2) + self._every_s
                    if slow:
                        next_slow_s = now + max(
                            SLOW_EVERY * self._every_s,
                            (time.thread_time() - cpu_s) / SLOW_CPU_SHARE,
                            (time.monotonic() - now) / SLOW_TIME_SHARE,
                        )
                ended, late_s = late_wake(self._ending, nap_s, delay)
                if not ended:
                    with self._guard:
                        self._late_s.append(late_s)
            self._look(machine, gpus, slow=True)
        finally:
            for held in (machine, delay, gpus):
                held.close()

    def _look(self, machine: Machine, gpus: gpu.Gpus, slow: bool) -> None:
        reading, told = machine.read(), gpus.read(slow)
        scan = (time.monotonic(), threads.scan()) if slow else None
        with self._guard:
            if self._base is None:
                self._base = reading
            else:
                self._looks.append(reading)
            if told:
                self._gpus.append(told)
            if scan is not None and scan[1]:
                # What lies between the first and the latest scan adds nothing to their difference.
                self._scans = [*islice(self._scans, 1), scan]
