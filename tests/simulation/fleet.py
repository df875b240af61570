"""Schedules of nodes of an elastic run: the product's own launcher, rendezvous and signed store, on
torch's own rendezvous, with simulated machines, links, clocks and ranks.

Must hold: what ranks.py says; in a round, each node has a number of its own, and all have the same
number of nodes. A launcher that ends leaves no rank behind, with 0 only if the run is finished,
with 75 only if it was told to stop or a fault came before, with 1 only if its ranks failed twice.
Nothing is repeated where nodes only join and leave. Once the faults are over, and nodes that ended
are started again, the run finishes in time.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from functools import partial
from typing import Any

from simulation import patches
from simulation.disk import Disk, DiskPath
from simulation.faults import KINDS, Faults, Member
from simulation.links import Links, Node, SimulatedPrefixStore
from simulation.ranks import Ranks, TrainingRun
from simulation.world import Process, Violation, World, current
from stoker.errors import FAILED, FINISHED, INTERRUPTED, StokerError
from stoker.fleet.addresses import JOIN_S, Endpoint, Nodes
from stoker.fleet.elastic import Launch
from stoker.fleet.rendezvous import ForeignContent
from stoker.train.attempt.launch import launch_elastic

FAULTS_S = 60.0
"""Faults begin within this time."""
SETTLE_S = 3 * JOIN_S + 300.0
"""How long nodes may take, once faults are over, until they train together: they may wait for the
host and for each other, save, and notice once more that one has left."""
ORDERLY = {"stop"}
"""Faults that cost no step."""
COUNTS = (10, 35, 25, 12, 6, 4, 4, 4)
"""How often there are one, two, and up to eight nodes."""


class FleetSchedule:
    """One schedule: nodes, their run, and faults, all drawn from the seed."""

    def __init__(self, seed: int, *, tracing: bool = False) -> None:
        self.world = world = World(seed, tracing=tracing)
        rng = world.rng
        self.links = Links(world, rng.choice((0.0, 0.02, 0.3)))
        self.disk = Disk(world, 0.3)
        self.disk.make_folder("run")
        count = rng.choices(range(1, 9), COUNTS)[0]
        self.members = [self._draw_member(number) for number in range(count)]
        self.training = TrainingRun(world, rng.randint(5, 25))
        self.local_ranks = rng.choice((1, 1, 2))
        least = rng.choice((1, 1, (count + 1) // 2, count))
        self.nodes = Nodes(least, count if least == count else rng.choice((count, count - 1)))
        self.poll_s = rng.choice((0.5, 1.0, 1.0))
        self.ranks = Ranks(
            world,
            self.training,
            step_s=rng.choice((0.3, 1.0, 2.0)),
            save_s=rng.choice((0.1, 1.0, 1.0, 5.0, 30.0)),
            save_every=rng.randint(1, 10),
        )
        self.faults = Faults(world, self.links, self.disk, self.ranks, self.members)
        self.kinds: list[str] = []
        self.orderly = rng.random() < 0.15
        over_at = max([0.0, *(self._draw_fault() for _ in range(rng.choice((0, 1, 1, 2, 3))))])
        self.rounds: dict[tuple[Any, str], dict[int, int]] = {}
        slowest = min(member.node.rate for member in self.members)
        work = self.training.steps * self.ranks.step_s + 5 * self.ranks.save_s
        self.until = over_at + 30 + (SETTLE_S + work) / slowest
        self._draw_calendar()
        self.ranks.impatient = not {"slow", "stall", "hang", "calendar"} & set(self.kinds)

    def _draw_member(self, number: int) -> Member:
        rng = self.world.rng
        node = Node(self.world, f"node{number}", address=f"10.0.0.{number + 1}", links=self.links)
        if rng.random() < 0.2:
            node.rate = 2 ** rng.uniform(-1, 1)
        if rng.random() < 0.3:
            node.skew = rng.uniform(-1.5, 1.5)
        joins_by = 60.0 if rng.random() < 0.25 else 5.0
        self.world.at(rng.random() * joins_by, self._start, member := Member(node, number))
        return member

    def _draw_fault(self) -> float:
        """Draw one fault; returns when it is over."""
        rng = self.world.rng
        begin, lasts = rng.random() * FAULTS_S, rng.uniform(*rng.choice(((1, 15), (15, 60))))
        (kind,) = ["stop"] if self.orderly else rng.choices(list(KINDS), list(KINDS.values()))
        self.kinds.append(kind)
        self.world.at(begin, getattr(self.faults, kind), rng.choice(self.members), lasts)
        return begin + lasts

    def _draw_calendar(self) -> None:
        """Now and then one calendar is so wrong that torch takes its node for lost: the run need
        not finish, and must still be whole."""
        rng = self.world.rng
        self.must_finish = rng.random() > 0.03
        if not self.must_finish:
            rng.choice(self.members).node.skew = rng.choice((-30.0, 30.0))
            self.kinds.append("calendar")
            self.until = 200.0

    def _start(self, member: Member) -> None:
        if not member.node.has_power:
            self.world.after(5.0, self._start, member)
            return
        member.stopped = False
        member.process = process = Process(member.node, f"launcher{member.number}")
        self.world.note(process, "starts")
        process.on_end = partial(self._ended, member)
        if self.world.rng.random() < 0.03:
            process.dies_at = self.world.rng.randint(1, 15)
            self.kinds.append("kill_at")
        process.run(partial(self._main, member))

    def _main(self, member: Member) -> int:
        process = current()
        if self.training.finished:
            return FINISHED
        path: Any = DiskPath(self.disk, "run")
        run: Any = RunView(path, self.training)
        plan = Launch(
            self.local_ranks,
            [],
            path,
            {},
            stop=lambda: member.stopped,
            progress=lambda: self.training.most_steps,
            report=partial(self._report, member),
        )
        try:
            return launch_elastic(plan, run, Endpoint("10.0.0.1", 29400), self.nodes)
        except ForeignContent as error:
            self.world.violated(f"{process}: {error}")
            return error.exit_code
        except StokerError as error:
            self.world.note(process, str(error))
            return error.exit_code

    def _report(self, member: Member, log: Any, offset: int, code: int) -> None:
        self.world.note(member.process, f"its round ended with {code}")

    def _ended(self, member: Member, process: Process) -> None:
        code, left = process.code, self.ranks.of(process)
        self.links.changed.wake()
        if code == -signal.SIGKILL:
            for rank in left:
                rank.send_signal(signal.SIGTERM)  # as the kernel does
        elif left:
            self.world.violated(f"{process} ended with {code} and left {left[0]} behind")
        if code == FINISHED and not self.training.finished:
            self.world.violated(f"{process} ended with 0 before the run was finished")
        if code == INTERRUPTED and not (member.stopped or self.kinds):
            self.world.violated(f"{process} ended with 75 without a reason")
        if code not in (FINISHED, INTERRUPTED, FAILED, -signal.SIGKILL):
            self.world.violated(f"{process} ended with {code}")
        if code == FAILED and self.ranks.failures[process] < 2:
            self.world.violated(f"{process} ended with 1, and its ranks did not fail twice")
        if code != FINISHED:
            self.world.after(self.world.rng.uniform(1, 20), self._start, member)

    def round_began(self, store: SimulatedPrefixStore, node: int, nodes: int) -> None:
        """Check the number of a node in a round."""
        world, process = self.world, current()
        world.note(process, f"is node {node} of {nodes} in {store.prefix}")
        numbers = self.rounds.setdefault(store.identity, {})
        if node in numbers:
            world.violated(f"two nodes {node} in {store.prefix}")
        if any(size != nodes for size in numbers.values()):
            world.violated(
                f"{process} is in {store.prefix} of {nodes} nodes, others of another size"
            )
        numbers[node] = nodes
        self.ranks.numbers[process] = store.identity[0], int(store.prefix.rpartition(".")[2])

    def is_over(self) -> bool:
        return self.training.finished and all(
            member.process is not None and member.process.code == FINISHED
            for member in self.members
        )

    def run(self) -> None:
        """Raises Violation for what must not happen."""
        with patches.polls(self.poll_s, self):
            self.world.run(self.is_over, self.until, must_end=self.must_finish)
        if not self.must_finish:
            return
        if self.training.history != list(range(self.training.steps)):
            raise Violation(f"the steps that count are {self.training.history}")
        if self.training.repeated and set(self.kinds) <= ORDERLY:
            raise Violation(f"{self.training.repeated} steps were repeated without a loss")


@dataclass(frozen=True)
class RunView:
    """The part of `Run` that a launcher uses."""

    path: Any
    run: TrainingRun

    def hold(self) -> None: ...

    def end(self) -> None:
        """No budget ends a simulated attempt."""
        current()

    @property
    def finished(self) -> bool:
        current()
        return self.run.finished
