"""Virtual time, and the processes and threads that live in it.

Invariants: one seed gives one schedule, event by event, on any machine. A process runs until it
waits; all waiting goes through here. Events at the same moment happen in an order that the seed
draws. A process that is killed has no further effect: whatever its code does while its stack is
unwound raises Killed again. Time of a machine is virtual time at that machine's own rate.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet


class Killed(GreenletExit):
    """Unwinds the stack of a process that was killed. Product code catches no such exception."""


class Violation(AssertionError):
    """Something happened that must never happen."""


class World:
    """One schedule: a clock, a queue of events, and a source of chance."""

    def __init__(self, seed: int, *, tracing: bool = False) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.now = 0.0
        self.tracing = tracing
        self.trace: list[str] = []
        self.failure: str | None = None
        self.faults = 0
        self._queue: list[tuple[float, float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self.hub = getcurrent()
        self.processes: list[Process] = []
        self.states: list[Any] = []
        """The states of the rendezvous that were stored."""

    def at(self, time: float, action: Callable[..., None], *arguments: Any) -> None:
        """Do something at a moment."""
        self._count += 1
        heappush(self._queue, (time, self.rng.random(), self._count, action, arguments))

    def after(self, seconds: float, action: Callable[..., None], *arguments: Any) -> None:
        self.at(self.now + seconds, action, *arguments)

    def run(self, is_over: Callable[[], bool], until: float, *, must_end: bool = True) -> None:
        """Let events happen until it is over. Raises Violation for what must not happen, and, where
        it must end, if it is not over at the last moment or nothing is left to happen."""
        try:
            while not is_over():
                if not self._queue:
                    raise Violation("nothing is left to happen, and a process still waits")
                time, _, _, action, arguments = heappop(self._queue)
                if time > until and not must_end:
                    return
                if time > until:
                    raise Violation(f"a process still waits at {until:.0f} s")
                self.now = time
                action(*arguments)
                if self.failure:
                    raise Violation(self.failure)
        finally:
            for process in self.processes:
                process.end_tasks()

    def violated(self, message: str) -> None:
        """Note a violation; code of the product cannot swallow it."""
        self.failure = self.failure or f"{self.now:.3f} s: {message}"

    def note(self, who: object, words: str) -> None:
        if self.tracing:
            self.trace.append(f"{self.now:9.3f}  {who}: {words}")


@dataclass(eq=False)
class Machine:
    """A computer: its clock, and whether it runs."""

    world: World
    name: str
    rate: float = 1.0
    """How fast its monotonic clock, and all that it does, runs."""
    skew: float = 0.0
    """By how many seconds its calendar is wrong."""
    paused: bool = False
    hampered_at: float = 0.0
    """When it stood still last."""
    disk_out: str = ""
    """How its connection to the shared disk fails: "" (it does not), "error", "stall"."""
    processes: dict[int, Process] = field(default_factory=dict)
    _next_pid: int = 100

    def clock(self) -> float:
        return self.world.now * self.rate

    def pid(self) -> int:
        self._next_pid += 1
        return self._next_pid

    def __str__(self) -> str:
        return self.name


class Task(greenlet):
    """A thread of a process."""

    process: Process
    token: int = 0
    """Counts its waits: a wake-up for an earlier one is ignored."""


class Process:
    """A process on a machine; its threads wait and run by themselves."""

    def __init__(self, machine: Machine, name: str) -> None:
        self.machine, self.world, self.name = machine, machine.world, name
        self.number = machine.pid()
        self.dead = self.paused = False
        self.code: int | None = None
        self.operations = 0
        self.dies_at = -1
        """The number of the operation at which it is killed."""
        self.hampered_at = 0.0
        self.stopped_at: float | None = None
        """When it was told to stop."""
        self.on_end: Callable[[Process], None] = lambda process: None
        self._tasks: list[Task] = []
        self._late: list[tuple[Task, int]] = []
        self.world.processes.append(self)
        machine.processes[self.number] = self

    def __str__(self) -> str:
        return f"{self.name}#{self.number}"

    def run(self, main: Callable[[], int]) -> None:
        """Start the main thread; its result is the exit code."""

        def body() -> None:
            code = main()
            self.finish(code)

        self.spawn(body)

    def spawn(self, body: Callable[[], object]) -> Task:
        """Start a thread."""
        task = Task(self._guarded(body), parent=self.world.hub)
        task.process = self
        self._tasks.append(task)
        self.world.at(self.world.now, self.resume, task, 0)
        return task

    def _guarded(self, body: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            try:
                body()
            except Killed:
                pass
            except Exception as error:
                if not self.dead:
                    self.world.violated(f"{self}: {type(error).__name__}: {error}")

        return run

    def resume(self, task: Task, token: int) -> None:
        """Let a thread go on from the wait with this number, unless it has already."""
        if self.dead or task.token != token or task.dead:
            return
        if self.paused or self.machine.paused:
            self._late.append((task, token))
            return
        task.switch()

    def runs_since(self, time: float) -> float:
        """Since when, from a moment on, it runs and is not hampered; never, where it is not."""
        if self.dead or self.paused or self.machine.paused:
            return float("inf")
        return max(time, self.hampered_at, self.machine.hampered_at)

    def go_on(self) -> None:
        """Let threads go on whose time has come while the process or machine was paused."""
        late, self._late = self._late, []
        for task, token in late:
            self.world.after(self.world.rng.random() * 0.01, self.resume, task, token)

    def kill(self) -> None:
        """SIGKILL."""
        if not self.dead:
            self.world.note(self, "killed")
            self.finish(-9)

    def operate(self) -> None:
        """Begin an operation on something shared; this may be the one at which it is killed."""
        self.operations += 1
        if self.operations == self.dies_at:
            self.kill()
            raise Killed

    def finish(self, code: int) -> None:
        if self.dead:
            return
        self.dead, self.code = True, code
        del self.machine.processes[self.number]
        self.world.note(self, f"ended with {code}")
        self.world.at(self.world.now, self.end_tasks)
        self.on_end(self)

    def end_tasks(self) -> None:
        """Unwind the stacks of all threads. Nothing that they do on the way has an effect."""
        self.dead = True
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            if not task.dead:
                task.throw(Killed)


def current() -> Process:
    """The process whose code runs now. Raises Killed for one that has ended."""
    try:
        process: Process = getcurrent().process
    except AttributeError:  # no process runs
        raise Killed from None
    if process.dead:
        raise Killed
    return process


def wait() -> None:
    """Wait until something resumes this thread."""
    task = getcurrent()
    current().world.hub.switch()
    task.token += 1


def sleep(seconds: float) -> None:
    """Wait for some seconds of this machine's clock."""
    process, task = current(), getcurrent()
    process.world.after(max(seconds, 0.0) / process.machine.rate, process.resume, task, task.token)
    process.world.hub.switch()
    task.token += 1


class Waiters:
    """Threads that wait for the same thing."""

    def __init__(self) -> None:
        self._tasks: list[tuple[Task, int]] = []

    def wait(self, timeout: float | None = None) -> None:
        """Wait for `wake`, or some seconds."""
        process, task = current(), getcurrent()
        self._tasks.append((task, task.token))
        if timeout is None:
            process.world.hub.switch()
            task.token += 1
        else:
            sleep(timeout)

    def wake(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task, token in tasks:
            process = task.process
            process.world.at(process.world.now, process.resume, task, token)
