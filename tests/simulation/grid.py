"""Schedules of workers that share a grid: the product's own `Worker`, `Leases` and `DiskFiles`.

Must hold: a result is created once, never replaced, and never by a worker that began to commit
after a later lease existed. A cell is recorded as finished at most once. Two commands of a cell
never run at once, unless their worker was paused, or its clock or disk was worse than leases allow
for. A worker ends with 0 only where no cell can run, and with 75 only where it was told to stop.
Once the faults are over, every cell is done in time, except those whose command fails by itself.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from simulation.disk import Disk, DiskPath
from simulation.world import Machine, Process, Violation, World, current, sleep
from stoker.errors import FAILED, FINISHED, INTERRUPTED
from stoker.fleet.grid import worker as worker_module
from stoker.fleet.grid.cell import Cell, Plan
from stoker.fleet.grid.directory import MOST_FAILURES, MOST_LOST, Grid
from stoker.fleet.grid.worker import CELL, Worker
from stoker.locks.lease import EXPIRES_S, YIELDS_S, Holder, Lease, Leases

FAULTS_S = 100.0
"""Faults begin within this time."""
SPREAD = EXPIRES_S / YIELDS_S / 1.2
"""Clocks whose rates differ by less cannot let two commands of a cell run at once."""


class MachineClock:
    """GridClock: the clock of the current process's machine."""

    @staticmethod
    def now() -> float:
        return current().machine.clock()

    sleep = staticmethod(sleep)


@dataclass(eq=False)
class SimulatedJob:
    """A cell's command. It ends after its time, unless something ends it before."""

    schedule: GridSchedule
    worker: Process
    cell: str
    seconds: float
    outcome: int | None
    """Its exit code; None: it ends with 0 and writes no result."""
    code: int | None = None

    def begin(self) -> None:
        world, machine = self.schedule.world, self.worker.machine
        world.note(self, f"began for {self.worker}")
        world.after(self.seconds / machine.rate, self._end)

    def __str__(self) -> str:
        return f"command of {self.cell[:4]}"

    def _end(self) -> None:
        world, machine = self.schedule.world, self.worker.machine
        if self.code is not None:
            return
        if machine.paused or machine.disk_out:
            world.after(1.0, self._end)
            return
        if self.outcome == FINISHED:
            draft = f"grid/cells/{self.cell}/draft.json"
            self.schedule.disk.put(draft, json.dumps({"cell": self.cell}).encode())
        self.finish(FINISHED if self.outcome is None else self.outcome)

    def finish(self, code: int) -> None:
        if self.code is None:
            self.code = code
            self.schedule.world.note(self, f"ended with {code}")
            self.schedule.running[self.cell].remove(self)

    def poll(self) -> int | None:
        return self.code

    def stop(self, number: signal.Signals) -> None:
        rng = self.schedule.world.rng
        self.schedule.world.after(rng.random() * 3, self.finish, INTERRUPTED)

    def kill(self) -> None:
        self.finish(-signal.SIGKILL)


@dataclass
class GridWorker:
    """A place in which a worker runs, and is started again."""

    machine: Machine
    process: Process | None = None
    stop: signal.Signals | None = None
    hampered: bool = False
    """Whether this worker was paused, or its disk stalled."""
    starts: int = 0


@dataclass
class GridSchedule:
    """One schedule: a plan, machines, workers and faults, all drawn from the seed."""

    seed: int
    tracing: bool = False
    running: dict[str, list[SimulatedJob]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.world = world = World(self.seed, tracing=self.tracing)
        rng = world.rng
        self.disk = Disk(world, rng.choice((0.0, 0.1, 0.5, 1.0)))
        self.disk.on_create, self.disk.on_remove = self._created, self._removed
        self.disk.loses_answers = lambda: world.now < self.over_at
        self.poll_s, self.wait_s = rng.choice((0.5, 1.0, 2.5)), rng.choice((2.0, 5.0, 9.0))
        even = rng.random() < 0.5
        self.machines = [
            Machine(world, f"machine{n}", 1.0 if even else 2 ** rng.uniform(-1, 1))
            for n in range(rng.randint(1, 3))
        ]
        self.workers = [GridWorker(rng.choice(self.machines)) for _ in range(rng.randint(1, 4))]
        self.plan = self._draw_plan()
        self.commits: dict[Process, tuple[str, int]] = {}
        self.leases: dict[str, int] = {}
        self.results: dict[str, int] = {}
        self.over_at = FAULTS_S + max([0.0, *map(self._draw_fault, range(rng.randint(0, 5)))])
        rates = [machine.rate for machine in self.machines]
        self.even = max(rates) / min(rates) < SPREAD
        work = sum(sum(times) for times in self.seconds.values())
        self.until = self.over_at + (4 * EXPIRES_S + 4 * work + 60 * self.wait_s) / min(rates)

    def _draw_plan(self) -> Plan:
        rng, plan = self.world.rng, Plan()
        self.seconds: dict[str, list[float]] = {}
        self.codes: dict[str, list[int | None]] = {}
        self.failing: dict[str, int] = {}
        for number in range(rng.randint(1, 5)):
            known = list(plan.cells)
            parents = tuple(name for name in known if rng.random() < 0.3)
            name = plan.add(Cell(f"cell {number}", ("run",), {"number": number}, parents))
            tries = rng.choice((0, 0, 0, 1, 2, 3))
            self.codes[name] = [rng.choice((FAILED, None, -11, INTERRUPTED)) for _ in range(tries)]
            self.failing[name] = sum(code in (FAILED, None) for code in self.codes[name])
            self.seconds[name] = [rng.choice((0.5, 4.0, 20.0, 40.0)) for _ in range(4)]
            self.running[name] = []
        return plan

    def _draw_fault(self, number: int) -> float:
        """Draw one fault; returns how long after FAULTS_S it may last."""
        rng, world = self.world.rng, self.world
        slot, begin = rng.choice(self.workers), rng.random() * FAULTS_S
        lasts = rng.choice((rng.uniform(1, 20), rng.uniform(YIELDS_S, 2 * EXPIRES_S)))
        kind = rng.choice(
            ("kill", "kill at", "pause", "freeze", "error", "stall", "stop", "job", "power")
        )
        if kind == "kill at":
            world.at(begin, self._kill_at, slot, rng.randint(1, 40))
        elif kind in ("pause", "freeze", "error", "stall"):
            world.at(begin, getattr(self, f"_{kind}"), slot, lasts)
        else:
            world.at(begin, getattr(self, f"_{kind}"), slot)
        return lasts

    # Faults.

    def _kill(self, slot: GridWorker) -> None:
        if slot.process:
            slot.process.kill()

    def _kill_at(self, slot: GridWorker, operation: int) -> None:
        if slot.process:
            slot.process.dies_at = slot.process.operations + operation

    def _power(self, slot: GridWorker) -> None:
        for other in self.workers:
            if other.machine is slot.machine:
                self._kill(other)

    def _pause(self, slot: GridWorker, seconds: float) -> None:
        """SIGSTOP for the worker alone: its command goes on."""
        process = slot.process
        if process and not process.dead:
            self.world.note(process, f"paused for {seconds:.1f} s")
            process.paused = slot.hampered = True
            self.world.after(seconds, self._continue, process)

    def _continue(self, process: Process) -> None:
        self.world.note(process, "continues")
        process.paused = False
        process.go_on()

    def _freeze(self, slot: GridWorker, seconds: float) -> None:
        """The whole machine stands still."""
        self.world.note(slot.machine, f"stands still for {seconds:.1f} s")
        self._hamper(slot.machine)
        slot.machine.paused = True
        self.world.after(seconds, self._thaw, slot.machine)

    def _thaw(self, machine: Machine) -> None:
        machine.paused = False
        self.world.note(machine, "goes on")
        for process in list(machine.processes.values()):
            process.go_on()

    def _error(self, slot: GridWorker, seconds: float, kind: str = "error") -> None:
        self.world.note(slot.machine, f"disk out ({kind}) for {seconds:.1f} s")
        slot.machine.disk_out = kind
        self.world.after(seconds, self.disk.reconnect, slot.machine)

    def _stall(self, slot: GridWorker, seconds: float) -> None:
        self._hamper(slot.machine)
        self._error(slot, seconds, "stall")

    def _hamper(self, machine: Machine) -> None:
        for slot in self.workers:
            slot.hampered = slot.hampered or slot.machine is machine

    def _stop(self, slot: GridWorker) -> None:
        self.world.note(slot.process, "told to stop")
        slot.stop = signal.SIGTERM

    def _job(self, slot: GridWorker) -> None:
        for jobs in self.running.values():
            for job in jobs[:1]:
                if job.worker is slot.process:
                    job.kill()

    # Processes.

    def start_worker(self, slot: GridWorker) -> None:
        slot.stop, slot.starts = None, slot.starts + 1
        slot.process = process = Process(slot.machine, f"worker{self.workers.index(slot)}")
        self.world.note(process, f"starts on {slot.machine}")
        process.on_end = partial(self._worker_ended, slot)
        process.run(partial(self._main, slot))

    def _main(self, slot: GridWorker) -> int:
        process = current()
        grid = Grid(DiskPath(self.disk, "grid"))  # type: ignore[arg-type]
        host = slot.machine.name
        holder = Holder(process.name, host, host, "space", process.number, "began")
        leases = FollowedLeases(grid.files, MachineClock(), holder)
        leases.schedule = self
        worker = Worker(grid, self.plan, leases, lambda: slot.stop, start=self._start_job)
        worker.say = lambda line: self.world.note(process, line)
        try:
            return worker.run()
        except OSError as error:
            self.world.note(process, f"OSError: {error}")
            if error.errno is None or not self.world.now < self.over_at + 10:
                self.world.violated(f"{process} ended with {error!r} while the disk answered")
            return FAILED

    def _start_job(self, words: list[str], variables: Mapping[str, str], log: Any) -> SimulatedJob:
        process, name = current(), variables[CELL].rpartition("/")[2]
        codes, times = self.codes[name], self.seconds[name]
        outcome = codes.pop(0) if codes else FINISHED
        job = SimulatedJob(self, process, name, self.world.rng.choice(times), outcome)
        for other in self.running[name]:
            slot = next(slot for slot in self.workers if slot.process is other.worker)
            if self.even and not slot.hampered:
                self.world.violated(f"{job} began for {process} while {other.worker} runs it")
        self.running[name].append(job)
        self.disk.put(log.text, self.disk.files.get(log.text, b"") + b"some output")
        job.begin()
        return job

    def _worker_ended(self, slot: GridWorker, process: Process) -> None:
        for jobs in self.running.values():
            for job in list(jobs):
                if job.worker is process:
                    job.kill()
        self.commits.pop(process, None)
        if process.code == FINISHED and (open_cells := self._open_cells()):
            self.world.violated(f"{process} ended with 0, and {open_cells} can run")
        if process.code == INTERRUPTED and not slot.stop:
            self.world.violated(f"{process} ended with 75, and was not told to stop")
        if process.code != FINISHED:
            self.world.after(self.world.rng.random() * 20, self.start_worker, slot)

    # What must hold.

    def _created(self, process: Process, name: str) -> None:
        parts = name.split("/")
        if parts[-1] == "result.json":
            cell = parts[2]
            self.results[cell] = self.results.get(cell, 0) + 1
            if self.results[cell] > 1:
                self.world.violated(f"a second result of cell {cell} by {process}")
            number, newest = self.commits.get(process, ("", 0))[1], self.leases[cell]
            self.world.note(process, f"result of {cell[:4]} with lease {number} of {newest}")
        elif len(parts) == 5 and parts[-1].isdecimal():
            self.leases[parts[2]] = int(parts[-1])

    def _removed(self, process: Process, name: str) -> None:
        if name.endswith("result.json"):
            self.world.violated(f"{process} removed or replaced {name}")

    def _ends(self, cell: str) -> list[str]:
        """How the leases of a cell ended, in order, read from the files."""
        start = f"grid/cells/{cell}/leases/"
        outcomes = []
        for number in range(1, self.leases.get(cell, 0) + 1):
            end = self.disk.files.get(f"{start}{number:06d}.end")
            outcomes.append(json.loads(end)["outcome"] if end else "lost")
        return outcomes

    def _open_cells(self) -> list[str]:
        """The cells that can still run, by what is on the disk."""
        closed: set[str] = set()
        open_cells = []
        for name, cell in self.plan.cells.items():
            ends = self._ends(name)
            failed = ends.count("failed") >= MOST_FAILURES or ends.count("lost") >= MOST_LOST
            if name in self.results:
                continue
            if failed or closed & set(cell.parents):
                closed.add(name)
            else:
                open_cells.append(cell.label)
        return open_cells

    def is_over(self) -> bool:
        return all(slot.process and slot.process.code == FINISHED for slot in self.workers)

    def run(self) -> None:
        """Raises Violation for what must not happen."""
        for slot in self.workers:
            self.world.after(self.world.rng.random() * 5, self.start_worker, slot)
        polls = {"POLL_S": self.poll_s, "WAIT_S": self.wait_s}
        before = {name: getattr(worker_module, name) for name in polls}
        for name, value in polls.items():
            setattr(worker_module, name, value)
        try:
            self.world.run(self.is_over, self.until)
        finally:
            for name, value in before.items():
                setattr(worker_module, name, value)
        self.check_end()

    def check_end(self) -> None:
        """What must hold when all workers have ended."""
        for name, cell in self.plan.cells.items():
            ends = self._ends(name)
            if ends.count("finished") > 1:
                raise Violation(f"{cell.label} is recorded as finished twice: {ends}")
            if ends.count("failed") > self.failing[name]:
                raise Violation(f"{cell.label} failed {self.failing[name]} times: {ends}")


class FollowedLeases(Leases):
    """Leases that tell when a commit begins."""

    schedule: GridSchedule

    def commit(self, lease: Lease, result: bytes) -> bool:
        schedule, process = self.schedule, current()
        schedule.commits[process] = lease.cell, lease.number
        began_late = schedule.leases[lease.cell] > lease.number
        committed = super().commit(lease, result)
        if committed and began_late:
            schedule.world.violated(f"{process} committed {lease.cell} after a later lease")
        return committed
