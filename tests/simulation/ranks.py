"""Simulated ranks: a model of what `stoker train` does in a rank of an elastic run.

Ranks are not the product's code. They follow it in what a launcher can see: they start for some
seconds, in which signals stay pending; they meet; rank 0 locks the run; they make steps together,
save now and then, and vote to save and stop when one was told to. A rank whose peer is lost ends
with 76, if it can notice; its watchdog ends it if nothing moves. SIGTERM means 76, SIGUSR1 75.

Must hold: one group of ranks trains at a time. Each step of the run is made once, counted from the
checkpoint that an attempt begins with.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from simulation.links import Node, reaches_both_ways
from simulation.world import Process, Waiters, World, current
from stoker.errors import FAILED, FINISHED, INTERRUPTED, STEPPED_ASIDE
from stoker.fleet.launcher import ROUND_KEY

MEETING_S, LOCK_S, STALL_S, FIRST_STALL_S = 300.0, 45.0, 60.0, 120.0
"""As in train/process_group.py, train/attempt/session.py, the recipe and survive/watchdog.py; a
first step may take 600 s there."""
TELL_S = 1.0
"""How long a rank that lost a peer waits for the others' records (lost_peers.WAIT_S)."""
LOST_NODE_S, MEETS_S, STOPS_S, NEWER_S = 50.0, 160.0, 15.0, 8.0
"""At a clock's rate of one, launchers end a group that waits for a lost node (13 polls, and the
time to notice), or that does not meet (a node that waits lets them save, for SAVE_S), and ranks
of a node that was told to stop, or of an older round, make no more steps, before this."""
POLL_S = 1.0


@dataclass(eq=False)
class TrainingRun:
    """The run directory."""

    world: World
    steps: int
    checkpoints: list[int] = field(default_factory=lambda: [0])
    history: list[int] = field(default_factory=list)
    """The steps that count, in order."""
    repeated: int = 0
    """Steps that were made again."""
    finished: bool = False
    holder: RankProcess | None = None
    """Who has the lock."""
    attempts: int = 0
    most_steps: int = 0

    def begin_attempt(self) -> int:
        """The step that an attempt begins with."""
        first = self.checkpoints[-1]
        if first > len(self.history):
            self.world.violated(f"the checkpoint has step {first}, and {len(self.history)} count")
        self.repeated += len(self.history) - first
        del self.history[first:]
        self.attempts += 1
        return first

    def add_step(self, step: int) -> None:
        if step != len(self.history):
            self.world.violated(f"step {step} follows {len(self.history)} steps")
        self.history.append(step)
        self.most_steps = max(self.most_steps, step + 1)


@dataclass(eq=False)
class RankProcess:
    """One rank, as its launcher sees it: the part of `Popen` that is used."""

    fleet: Ranks
    node: Node
    launcher: Process
    rank: int
    world_size: int
    round_key: str
    place: tuple[str, str]
    """Where rank 0 listens."""
    returncode: int | None = None
    listens: bool = False
    hangs: bool = False
    signals: list[int] = field(default_factory=list)
    leaving: bool = False
    """Whether it has noticed that a peer is lost."""
    group: Group | None = None
    ended: Waiters = field(default_factory=Waiters)

    def __str__(self) -> str:
        return f"rank {self.rank}/{self.world_size} on {self.node.name}"

    @property
    def alive(self) -> bool:
        return self.returncode is None

    def begin(self) -> None:
        world = self.fleet.world
        world.note(self, f"starts, round {self.round_key[:4]}")
        world.after((1 + 3 * world.rng.random()) / self.node.rate, self._listen)

    def _listen(self) -> None:
        world = self.fleet.world
        if not self.alive:
            return
        if self.node.paused:
            world.after(POLL_S, self._listen)
            return
        self.listens = True
        if self.fleet.run.finished:
            self.end(FINISHED)
            return
        self.group = self.fleet.groups.setdefault(self.place, Group(self.fleet, self.place))
        self.group.join(self)

    def poll(self) -> int | None:
        return self.returncode

    def wait(self) -> int:
        current()
        while self.returncode is None:
            self.ended.wait()
        return self.returncode

    def send_signal(self, number: int) -> None:
        self.fleet.world.note(self, f"gets {signal.Signals(number).name}")
        if number == signal.SIGKILL:
            self.end(-number)
        else:
            self.signals.append(number)

    @property
    def stop_code(self) -> int:
        """The exit code after an orderly stop."""
        final = any(number != signal.SIGTERM for number in self.signals)
        return INTERRUPTED if final else STEPPED_ASIDE

    def end(self, code: int) -> None:
        if self.returncode is None:
            self.returncode = code
            self.fleet.world.note(self, f"ended with {code}")
            self.fleet.failures[self.launcher] += code in (FAILED, -signal.SIGSEGV)
            self.ended.wake()
            if self.fleet.run.holder is self:
                self.fleet.run.holder = None
            self.fleet.on_end(self)


@dataclass(eq=False)
class Group:
    """The ranks of a round, once they meet."""

    fleet: Ranks
    place: tuple[str, str]
    ranks: list[RankProcess] = field(default_factory=list)
    step: int = -1
    trains: bool = False
    over: bool = False
    moved_at: float = 0.0
    locking_at: float = 0.0
    """Since when rank 0 waits for the lock."""
    saved: int = 0
    steps_made: int = 0

    def join(self, rank: RankProcess) -> None:
        world = self.fleet.world
        if self.over or any(other.rank == rank.rank for other in self.ranks):
            world.after(MEETING_S / rank.node.rate, rank.end, STEPPED_ASIDE)
            return
        self.ranks.append(rank)
        world.after(MEETING_S / rank.node.rate, self._too_late, rank)
        world.after(MEETS_S / min(rank.node.rate, 1.0), self._check_meeting, rank)
        if len(self.ranks) == rank.world_size:
            self.moved_at = world.now
            world.after(0.2, self._begin)

    def _check_meeting(self, rank: RankProcess) -> None:
        if not self.trains:
            self.fleet.check_wait(self, rank, MEETS_S)

    def _too_late(self, rank: RankProcess) -> None:
        if not self.trains:
            rank.end(STEPPED_ASIDE)

    @property
    def first(self) -> RankProcess:
        return next(rank for rank in self.ranks if rank.rank == 0)

    @property
    def connected(self) -> bool:
        """Whether all ranks are there and reach each other."""
        if any(not r.alive or r.hangs or r.node.paused for r in self.ranks):
            return False
        nodes = list(dict.fromkeys(rank.node for rank in self.ranks))
        return all(reaches_both_ways(a, b) for a in nodes for b in nodes if a is not b)

    def _begin(self) -> None:
        """All have come: connect, and lock the run."""
        world, run = self.fleet.world, self.fleet.run
        if self._breaks():
            return
        first = self.first
        if not self.connected:
            world.after(0.5, self._begin)
            return
        if run.holder and run.holder is not first:
            # A rank that waits for the lock keeps the others waiting.
            self.locking_at = self.locking_at or world.now
            if world.now - self.locking_at > LOCK_S / first.node.rate:
                first.end(INTERRUPTED)
            world.after(0.5, self._begin)
            return
        if run.finished:
            self._leave(FINISHED)
            return
        run.holder, self.trains, self.moved_at = first, True, world.now
        self.fleet.check_alone(self)
        self.step = self.saved = run.begin_attempt()
        world.note(self, f"begins at step {self.step} with {len(self.ranks)} ranks")
        self._next()

    def __str__(self) -> str:
        return f"group {self.place[0]}:{self.place[1]}"

    def _next(self) -> None:
        slowest = min(rank.node.rate for rank in self.ranks)
        self.fleet.world.after(self.fleet.step_s / slowest, self._between_steps)

    def _between_steps(self) -> None:
        """Between two steps: vote, save, and make the next one, if all ranks are there."""
        world, run = self.fleet.world, self.fleet.run
        if self.over or self._breaks():
            return
        if not self.connected:
            self._watch()
            return
        if any(rank.signals for rank in self.ranks):
            self._save_and_leave(None)
            return
        self.fleet.check_alone(self)
        self.fleet.check_stops(self)
        self.fleet.check_newest(self)
        if self._fails():
            self._between_steps()
            return
        run.add_step(self.step)
        self.step, self.moved_at = self.step + 1, world.now
        self.steps_made += 1
        if self.step >= run.steps:
            self._save_and_leave(FINISHED)
            return
        if self.step - self.saved >= self.fleet.save_every:
            self.saved = self.step
            world.after(self.fleet.save_s, self._commit, self.step)
        self._next()

    def _watch(self) -> None:
        """Nothing moves: the watchdog of each rank ends it, in the end."""
        world = self.fleet.world
        limit_s = STALL_S if self.steps_made > 1 else FIRST_STALL_S
        for rank in self.ranks:
            still = (world.now - self.moved_at) * rank.node.rate
            if still > limit_s and rank.alive and not rank.node.paused:
                rank.end(STEPPED_ASIDE)
        for rank in self.ranks:
            self.fleet.check_wait(self, rank, LOST_NODE_S)
        world.after(POLL_S, self._between_steps)

    def _fails(self) -> bool:
        """Whether a rank fails in this step."""
        if self.step in self.fleet.fails_at:
            self.fleet.fails_at.remove(self.step)
            self.fleet.world.rng.choice(self.ranks).end(FAILED)
            return True
        return False

    def _breaks(self) -> bool:
        """Whether a rank was lost in a way that others notice: they end. Those that cannot notice
        wait."""
        world = self.fleet.world
        if all(not rank.alive for rank in self.ranks):
            self.over = True
            return True
        gone = [rank for rank in self.ranks if not rank.alive]
        if not gone:
            return False
        for rank in self.ranks:
            notices = any(r.node.has_power and reaches_both_ways(rank.node, r.node) for r in gone)
            stuck = rank.leaving or rank.hangs or rank.node.paused
            if rank.alive and notices and not stuck:
                rank.leaving = True
                delay = (TELL_S + world.rng.random() * 0.5) / rank.node.rate
                world.after(delay, rank.end, STEPPED_ASIDE)
        if self.trains:
            self._watch()
        else:
            world.after(POLL_S, self._begin)
        return True

    def _commit(self, step: int) -> None:
        """A save in the background ends. One of a rank that has ended is lost."""
        first = self.first
        if not first.alive:
            return
        if first.node.disk_out or first.node.paused:
            self.fleet.world.after(POLL_S, self._commit, step)
            return
        if step > self.fleet.run.checkpoints[-1]:
            self.fleet.run.checkpoints.append(step)

    def _save_and_leave(self, code: int | None) -> None:
        """Rank 0 saves and ends; after a stop, the others do not wait for that."""
        world = self.fleet.world
        if code is None:
            for rank in self.ranks:
                if rank is not self.first:
                    world.after(world.rng.random() * 0.5, rank.end, rank.stop_code)
            self.over = True
            world.after(self.fleet.save_s, self._saved_alone)
        else:
            self.moved_at = world.now + self.fleet.save_s  # to save is not to wait
            world.after(self.fleet.save_s, self._saved_and_leave, code)

    def _saved_alone(self) -> None:
        """The last save before a stop: it needs rank 0 alone."""
        first, world = self.first, self.fleet.world
        if first.alive and (first.node.disk_out or first.node.paused or first.hangs):
            world.after(POLL_S, self._saved_alone)
        elif first.alive:
            self._commit(self.step)
            first.end(first.stop_code)

    def _saved_and_leave(self, code: int) -> None:
        world, run = self.fleet.world, self.fleet.run
        if self.over or self._breaks():
            return
        if not self.connected or self.first.node.disk_out:
            self._watch_save(code)
            return
        self._commit(self.step)
        run.finished = True
        world.note(self, "has finished the run")
        self._leave(code)

    def _watch_save(self, code: int) -> None:
        for rank in self.ranks:
            if (self.fleet.world.now - self.moved_at) * rank.node.rate > STALL_S:
                rank.end(STEPPED_ASIDE)
        self.fleet.world.after(POLL_S, self._saved_and_leave, code)

    def _leave(self, code: int) -> None:
        self.over = True
        for rank in self.ranks:
            self.fleet.world.after(self.fleet.world.rng.random() * 0.5, rank.end, code)


@dataclass(eq=False)
class Ranks:
    """All ranks of a schedule."""

    world: World
    run: TrainingRun
    step_s: float
    save_s: float
    save_every: int
    fails_at: list[int] = field(default_factory=list)
    """Steps at which a rank fails, once each."""
    groups: dict[tuple[str, str], Group] = field(default_factory=dict)
    rounds: dict[str, dict[int, RankProcess]] = field(default_factory=dict)
    numbers: dict[Process, tuple[Any, int]] = field(default_factory=dict)
    """The store and the number of the round that each launcher was last part of."""
    highest: dict[Any, int] = field(default_factory=dict)
    """The number of the last round of each store whose ranks were started."""
    newest: str = ""
    """The key of the newest round: not of one that a node which slept begins too late."""
    newest_at: float = 0.0
    alive: list[RankProcess] = field(default_factory=list)
    impatient: bool = True
    """Whether waiting is a failure: not where a slow link or disk may be the reason."""
    failures: Counter[Process] = field(default_factory=Counter)
    """How many ranks of each launcher have failed."""

    def start(self, variables: Mapping[str, str]) -> RankProcess:
        """What a launcher does to start a rank."""
        process = current()
        node = process.machine
        assert isinstance(node, Node)
        rank = RankProcess(
            self,
            node,
            process,
            int(variables["RANK"]),
            int(variables["WORLD_SIZE"]),
            variables[ROUND_KEY],
            (variables["MASTER_ADDR"], variables["MASTER_PORT"]),
        )
        store, number = self.numbers[process]
        if number > self.highest.get(store, -1):
            self.highest[store] = number
            self.newest, self.newest_at = rank.round_key, self.world.now
        others = self.rounds.setdefault(rank.round_key, {})
        if rank.rank in others:
            self.world.violated(f"a second {rank} in round {rank.round_key[:4]}")
        if any(other.world_size != rank.world_size for other in others.values()):
            self.world.violated(f"{rank} in a round of another size")
        others[rank.rank] = rank
        self.alive.append(rank)
        rank.begin()
        return rank

    def on_end(self, rank: RankProcess) -> None:
        self.alive.remove(rank)

    def of(self, launcher: Process) -> list[RankProcess]:
        return [rank for rank in self.alive if rank.launcher is launcher]

    def check_alone(self, group: Group) -> None:
        """One group trains at a time."""
        for rank in self.alive:
            other = rank.group
            trains = other and other.trains and not other.over and rank.rank == 0
            if trains and other is not group:
                self.world.violated(f"{group} and {other} train at once")

    def check_wait(self, group: Group, rank: RankProcess, most_s: float) -> None:
        """Launchers that run end a rank that waits for one that is lost. One that was told to save
        may take its time."""
        since = rank.launcher.runs_since(group.moved_at or self.world.now - most_s)
        waited_s = (self.world.now - since) * min(rank.node.rate, 1.0)
        may_wait = rank.hangs or rank.signals or not rank.alive
        if self.impatient and not may_wait and waited_s > most_s + POLL_S:
            self.world.violated(f"{rank} has waited for {waited_s:.0f} s for a lost node")

    def check_newest(self, group: Group) -> None:
        """Ranks of a round make no more steps for long once a newer one has begun."""
        if group.first.round_key != self.newest:
            launcher, rate = group.first.launcher, min(group.first.node.rate, 1.0)
            steps_s = (self.world.now - launcher.runs_since(self.newest_at)) * rate
            if self.impatient and steps_s > NEWER_S:
                self.world.violated(f"{group} makes steps {steps_s:.0f} s after a newer round")

    def check_stops(self, group: Group) -> None:
        """A node that is told to leave makes no more steps for long."""
        for rank in group.ranks:
            launcher = rank.launcher
            if launcher.stopped_at is not None:
                steps_s = self.world.now - launcher.runs_since(launcher.stopped_at)
                if steps_s * min(rank.node.rate, 1.0) > STOPS_S:
                    self.world.violated(f"{rank} makes steps {steps_s:.0f} s after a stop signal")
