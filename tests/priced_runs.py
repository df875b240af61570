"""Run directories whose events are written by hand, and what their machines would be billed."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from run_records import record
from stoker.run.directory import Run

BATCH = 10


def price(dollars: float) -> dict[str, Any]:
    return {
        "dollars": dollars,
        "kind": "stated",
        "source": "--price-per-hour",
        "date": "2026-08-22",
    }


def new_run(folder: Path) -> Run:
    run = Run(folder)
    run.create(record(), "")
    return run


def write(run: Run, attempt: int, rank: int, events: list[dict[str, Any]]) -> None:
    path = run.events_path(attempt, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(event) + "\n" for event in events))


def start(position: int = 0, startup_s: float = 0.0, **facts: Any) -> dict[str, Any]:
    return {
        "kind": "attempt",
        "position": position,
        "step": position // BATCH,
        "startup_s": startup_s,
        "samples": 100,
        "environment": {"host": "one"},
        **facts,
    }


def step(number: int, **parts: float) -> dict[str, Any]:
    place = {"step": number, "position": number * BATCH, "batch": BATCH}
    return {"kind": "step", **place, "parts": parts}


def end(outcome: str = "finished", **facts: Any) -> dict[str, Any]:
    return {"kind": "end", "outcome": outcome, **facts}


@dataclass
class Rented:
    """A machine of a fake provider, which bills from its first second with us to its last."""

    host: str
    dollars: float
    clock_s: float
    """Since its boot."""
    wall: float
    bill: float = 0.0

    def work(self, seconds: float) -> float:
        """Let time pass; it is billed."""
        self.clock_s += seconds
        self.wall += seconds
        self.bill += seconds * self.dollars / 3600
        return seconds

    def rest(self, seconds: float) -> None:
        """Let time pass while it is not ours."""
        self.clock_s += seconds
        self.wall += seconds


@dataclass
class FakeCluster:
    """Trains a run on rented machines, and writes what the product would write."""

    run: Run
    chance: random.Random
    machines: list[Rented]
    ranks: int = 1
    """On each machine."""
    attempts: int = 0
    commands: dict[str, float] = field(default_factory=dict)

    def attempt(self, resumed: int, steps: int, ending: str, *, same_command: bool = False) -> None:
        """Train some steps from a step on; killed where `ending` is 'killed'."""
        self.attempts += 1
        parts = ("data", "forward", "exchange", "checkpoint", "evaluation", "other")
        startup_s = self.chance.uniform(1, 30)
        lengths = [[self.chance.uniform(0, 3) for _ in parts] for _ in range(steps)]
        for number, machine in enumerate(self.machines):
            if not same_command:
                self.commands[machine.host] = machine.clock_s
            machine.work(self.chance.uniform(0, 2))  # the launcher, or what follows a kill
            facts = {
                "boot": machine.host,
                "command_s": self.commands[machine.host],
                "began_s": machine.clock_s,
            }
            machine.work(startup_s)
            lines = [
                start(
                    resumed * BATCH,
                    startup_s,
                    time=machine.wall,
                    local_world=self.ranks,
                    environment={"host": machine.host},
                    machine=facts,
                )
            ]
            for index, seconds in enumerate(lengths):
                machine.work(sum(seconds))
                parts_s = dict(zip(parts, seconds, strict=True))
                lines.append({**step(resumed + index, **parts_s), "time": machine.wall})
            if ending != "killed":
                last_s = machine.work(self.chance.uniform(0, 5))
                stamps = {"time": machine.wall, "clock_s": machine.clock_s}
                lines.append(end(ending, parts={"checkpoint": last_s / 2}, **stamps))
            for local in range(self.ranks):
                own = [{**lines[0], "local_rank": local}, *lines[1:]]
                if not local:
                    own[0]["price"] = price(machine.dollars)
                write(self.run, self.attempts, number * self.ranks + local, own)

    @property
    def invoice(self) -> float:
        return sum(machine.bill for machine in self.machines)
