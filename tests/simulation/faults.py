"""Faults of a schedule of nodes: the seed draws when each begins, and how long most last."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass

from simulation.disk import Disk
from simulation.links import Links, Node
from simulation.ranks import RankProcess, Ranks
from simulation.world import Process, World

KINDS = {
    "power": 2,
    "kill": 2,
    "kill_at": 2,
    "rank": 1,
    "fail": 1,
    "hang": 1,
    "stop": 3,
    "pause": 4,
    "freeze": 3,
    "cut": 3,
    "cut_in": 1,
    "cut_out": 1,
    "slow": 1,
    "stall": 1,
}
"""Each kind, and how often it is drawn beside the others."""
STOP_S = 150.0
"""A launcher that is told to stop ends before this, at a clock's rate of one: its ranks may take
SAVE_S to save, and it may leave for 10 s."""


@dataclass(eq=False)
class Member:
    """A node that takes part, and is started again."""

    node: Node
    number: int
    process: Process | None = None
    stopped: bool = False

    def __str__(self) -> str:
        return self.node.name


@dataclass(eq=False)
class Faults:
    """What can happen to the members of a fleet. The name of a method is that of its kind."""

    world: World
    links: Links
    disk: Disk
    ranks: Ranks
    members: list[Member]

    def power(self, member: Member, seconds: float) -> None:
        """The machine goes off, and comes back."""
        self._begin(member, "has no power", seconds, lambda: self._boot(member.node))
        member.node.has_power = False
        for rank in self._ranks_on(member):
            rank.end(-signal.SIGKILL)
        self.kill(member, seconds)

    def _boot(self, node: Node) -> None:
        node.has_power = True

    def kill(self, member: Member, seconds: float) -> None:
        """The launcher gets SIGKILL."""
        if member.process:
            member.process.kill()

    def kill_at(self, member: Member, seconds: float) -> None:
        """The launcher gets SIGKILL at one of its next operations on the store or the disk."""
        if member.process:
            member.process.dies_at = member.process.operations + self.world.rng.randint(1, 60)

    def rank(self, member: Member, seconds: float) -> None:
        """A rank crashes."""
        for rank in self._ranks_on(member)[:1]:
            rank.end(-signal.SIGSEGV)

    def fail(self, member: Member, seconds: float) -> None:
        """A rank fails at a step, once or a few times."""
        rng, first = self.world.rng, len(self.ranks.run.history)
        step = rng.randint(first, max(first, self.ranks.run.steps - 1))
        self.ranks.fails_at += [step] * rng.choice((1, 1, 2, 3))

    def hang(self, member: Member, seconds: float) -> None:
        """A rank makes no step any more; the launcher may get a stop signal then."""
        for rank in self._ranks_on(member)[:1]:
            self.world.note(rank, "hangs")
            rank.hangs = True
            if self.world.rng.random() < 0.5:
                self.world.after(self.world.rng.random() * 10, self.stop, member, 0.0)

    def stop(self, member: Member, seconds: float) -> None:
        """The launcher gets a stop signal."""
        if member.process and not member.process.dead:
            self.world.note(member, "is told to leave")
            member.stopped = True
            member.process.stopped_at = member.process.stopped_at or self.world.now
            self.world.after(STOP_S / member.node.rate, self._check_stop, member.process, 0)

    def _check_stop(self, process: Process, late: int) -> None:
        if process.dead:
            return
        if process.paused or process.machine.paused or process.machine.disk_out or late < 2:
            self.world.after(30.0, self._check_stop, process, late + 1)
        else:
            self.world.violated(f"{process} was told to stop {STOP_S:.0f} s ago")

    def pause(self, member: Member, seconds: float) -> None:
        """The launcher alone gets SIGSTOP."""
        process = member.process
        if process and not process.dead:
            self._begin(process, "is paused", seconds, lambda: self._continue(process))
            process.paused = True

    def _continue(self, process: Process) -> None:
        process.paused, process.hampered_at = False, self.world.now
        process.go_on()

    def freeze(self, member: Member, seconds: float) -> None:
        """The machine stands still."""
        self._begin(member, "stands still", seconds, lambda: self._thaw(member.node))
        member.node.paused = True

    def _thaw(self, node: Node) -> None:
        node.paused, node.hampered_at = False, self.world.now
        for process in list(node.processes.values()):
            process.go_on()

    def cut(self, member: Member, seconds: float, ways: tuple[str, ...] = ("in", "out")) -> None:
        """No packet passes between a machine and the others."""
        own = member.node.address
        others = [other.node.address for other in self.members if other is not member]
        pairs = {(own, other) for other in others if "out" in ways}
        pairs |= {(other, own) for other in others if "in" in ways}
        self._begin(member, f"is cut off {ways}", seconds, lambda: self._connect(pairs))
        self.links.cut |= pairs

    def cut_in(self, member: Member, seconds: float) -> None:
        """No packet reaches a machine; those that it sends arrive."""
        self.cut(member, seconds, ("in",))

    def cut_out(self, member: Member, seconds: float) -> None:
        self.cut(member, seconds, ("out",))

    def _connect(self, pairs: set[tuple[str, str]]) -> None:
        self.links.cut -= pairs

    def slow(self, member: Member, seconds: float) -> None:
        """Packets of a machine take a second or so."""
        address = member.node.address
        self._begin(member, "has a slow link", seconds, lambda: self._speed_up(address))
        self.links.slow_s[address] = self.world.rng.uniform(0.1, 1.5)

    def _speed_up(self, address: str) -> None:
        self.links.slow_s.pop(address, None)

    def stall(self, member: Member, seconds: float) -> None:
        """The disk does not answer a machine."""
        self._begin(member, "has no disk", seconds, lambda: self.disk.reconnect(member.node))
        member.node.disk_out = "stall"

    def _begin(self, who: object, words: str, seconds: float, end: Callable[[], None]) -> None:
        self.world.note(who, f"{words} for {seconds:.1f} s")
        self.links.troubles += 1
        self.world.after(seconds, self._end, who, words, end)

    def _end(self, who: object, words: str, end: Callable[[], None]) -> None:
        self.world.note(who, f"no longer {words}")
        self.links.troubles -= 1
        end()
        self.links.changed.wake()

    def _ranks_on(self, member: Member) -> list[RankProcess]:
        return [rank for rank in self.ranks.alive if rank.node is member.node]
