"""Four nodes of two ranks: two killed at once, one told to leave, one cut off, and all back.

Steps take half a second until everything has happened: no run is over too early, and two cores are
enough for eight ranks. A time is from the fault, or the start of a node, to the first step in the
run's events of as many ranks as there are then; the step itself is part of it.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from integration.namespaces import kill_at_once, missing
from integration.site import LOST, Record, Site, site_of
from measured import held, measured
from stoker.faults import VARIABLE
from stoker.survive.checkpoints import Checkpoints

RANKS, STEP_S, CUT_S = 2, 0.5, 30.0
MOST_S = 240.0
"""More than any of the times, unless other programs have the cores."""
A, B, C, D = range(4)
"""The nodes. Rank 0 is on A."""

no_machines = missing()
pytestmark = [
    pytest.mark.alone,
    pytest.mark.rotates(6),
    pytest.mark.skipif(no_machines is not None, reason=no_machines or ""),
    pytest.mark.timeout(1500),
    pytest.mark.slow,
    measured(tries=2),
]


@dataclass
class Fleet:
    """The nodes of a site, and what was measured."""

    site: Site
    record: Record
    launchers: dict[int, subprocess.Popen[str]] = field(default_factory=dict)

    def start(self, *nodes: int) -> float:
        """Start some nodes; returns when that was."""
        since = time.time()
        for node in nodes:
            self.launchers[node] = self.site.start(node, "--ranks", str(RANKS))
        return since

    def kill(self, *nodes: int) -> float:
        """Kill all processes of some nodes at once; returns when that was."""
        since = time.time()
        kill_at_once(*(self.site.machines[node] for node in nodes))
        for node in nodes:
            assert self.launchers.pop(node).wait() == -signal.SIGKILL
        return since

    def train(self, nodes: int, since: float, name: str) -> None:
        """Wait for a step of so many nodes together, in an attempt that began after a moment."""
        self.note(name, self.site.trains(nodes * RANKS, since, MOST_S))

    def end(self, node: int, since: float, name: str) -> None:
        """Wait until a node has ended to be started again, with nothing left on its machine."""
        self.note(name, self.site.left(self.launchers.pop(node), since))
        assert not self.site.machines[node].processes()

    def note(self, name: str, seconds: float) -> None:
        print(f"{seconds:6.1f} s  {name}", flush=True)
        self.record(name, round(seconds, 1))
        held(seconds < MOST_S, name, seconds)

    def finish(self) -> None:
        """Let all nodes finish: each ends with 0, each sample was used once an epoch, the last
        checkpoint is that of the last step, and in no step did ranks disagree on the gradient."""
        site, run = self.site, self.site.run
        assert not run.finished, "the run was over before the last fault"
        (site.folder / "quick").touch()
        site.finish(*self.launchers.values())
        site.assert_whole()
        newest, torn = Checkpoints(run.path).newest()
        assert newest is not None and not torn
        assert newest.facts["step"] == len(run.steps())
        for attempt in run.attempts():
            norms: dict[int, set[float]] = {}
            for rank in run.ranks(attempt):
                for event in run.attempt_events(attempt, rank):
                    if event["kind"] == "step":
                        norms.setdefault(event["step"], set()).add(event["norm"])
            assert {len(values) for values in norms.values()} <= {1}
        assert "Traceback" not in site.everything()


@pytest.fixture
def site(disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    slow = {"fault": "stall", "at": "forward", "seconds": STEP_S, "again": True}
    monkeypatch.setenv(VARIABLE, json.dumps([{**slow, "till": str(tmp_path / "quick")}]))
    with site_of(4, disk, tmp_path, epochs=30) as site:
        yield site


@pytest.mark.parametrize("host", [D, C], ids=["the host stays", "the host is killed"])
def test_two_are_killed_one_leaves_and_one_is_cut_off(
    site: Site, record_property: Record, host: int
) -> None:
    site.host = host
    fleet = Fleet(site, record_property)
    began = fleet.start(A, B, C, D)
    fleet.train(4, began, "four started: all make steps")

    killed = fleet.kill(B, C)
    if host == C:  # without the rendezvous no node goes on
        fleet.end(A, killed, "two killed, with the host: another ends with 75")
        fleet.end(D, killed, "two killed, with the host: the last ends with 75")
        assert all(LOST in site.printed(node) for node in (A, D))
        back = fleet.start(A, B, C, D)
        fleet.train(4, back, "started again: all four make steps")
    else:
        fleet.train(2, killed, "two killed: the other two make steps")
        fleet.start(B, C)

    asked = time.time()
    fleet.launchers[A].send_signal(signal.SIGUSR1)
    fleet.end(A, asked, "one told to leave: it ends with 75")
    fleet.train(3, asked, "one told to leave: the other three make steps")

    cut = time.time()
    site.machines[B].link("down")
    time.sleep(CUT_S)
    site.machines[B].link("up")
    fleet.end(B, cut, "one cut off: it ends with 75")
    assert LOST in site.printed(B)
    fleet.train(2, cut, "one cut off: the other two make steps")

    back = fleet.start(A, B)
    fleet.train(4, back, "two started again: all four make steps")
    fleet.finish()
