"""Runs to be killed, and what is compared afterwards."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from bits import same
from stoker.run.directory import Run
from stoker.survive.checkpoints import Checkpoints

HERE = Path(__file__).parent
LONGEST_S = 500.0
"""What an attempt may take on the slowest machine: far more than any needs, less than a test."""
EVERY_SAVE = (
    "save:begun",
    "save:folder",
    "weights.safetensors:piece",
    "weights.safetensors:synced",
    "state.pt:piece",
    "state.pt:synced",
    "manifest.json:written",
    "manifest.json:named",
    "COMMITTED:written",
    "COMMITTED:named",
    "last:written",
    "last:named",
)
"""What happens in each save, in this order."""
SAVE_STAGES = (*EVERY_SAVE, "best:written", "best:named", "prune:marker", "prune:folder")
"""And what happens in some."""


class Trainers:
    """A fork server and the runs it starts."""

    def __init__(self, variables: Mapping[str, str] | None = None) -> None:
        """Start the server; `variables` are added to its environment, before torch is imported."""
        self._server = subprocess.Popen(
            [sys.executable, str(HERE / "forkserver.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(HERE.parent), *sys.path]),
                **(variables or {}),
            },
        )

    def close(self) -> None:
        assert self._server.stdin
        self._server.stdin.close()
        self._server.wait(timeout=30)

    def train(
        self,
        argv: list[str],
        log: Path,
        *,
        ranks: int = 1,
        faults: Sequence[dict[str, Any]] = (),
        kill_after_s: float | None = None,
        linger: bool = False,
        variables: Mapping[str, str] | None = None,
        where: Mapping[str, Any] | None = None,
        meanwhile: Callable[[list[int]], None] | None = None,
        within_s: float = LONGEST_S,
    ) -> list[int]:
        """Run one attempt to whatever end it comes to; the ranks' exit codes. `where` says on which
        cores and networks they run; `meanwhile` is called with the ranks' process ids as soon as
        they have begun. What takes longer than `within_s` is killed, and TookTooLong raised."""
        command = {
            "argv": argv,
            "ranks": ranks,
            "faults": list(faults),
            "log": str(log),
            "linger": linger,
            "variables": dict(variables or {}),
            **(where or {}),
        }
        assert self._server.stdin and self._server.stdout
        self._server.stdin.write(json.dumps(command) + "\n")
        self._server.stdin.flush()
        pids = json.loads(self._server.stdout.readline())["pids"]
        late = threading.Event()

        def end_it() -> None:
            late.set()
            kill_if_alive(*pids)

        timers = [threading.Timer(within_s, end_it)]
        if kill_after_s is not None:
            timers.append(threading.Timer(kill_after_s, kill_if_alive, pids[-1:]))
        for timer in timers:
            timer.start()
        try:
            if meanwhile:
                meanwhile(pids)
            answer = json.loads(self._server.stdout.readline())
        except BaseException:
            # The server is to be of use to the next test, whatever became of this one.
            kill_if_alive(*pids)
            self._server.stdout.readline()
            raise
        finally:
            for timer in timers:
                timer.cancel()
                timer.join()
        if late.is_set():
            raise TookTooLong(f"still at it after {within_s:g} s: {log.read_text()[-3000:]}")
        self.ended_at: float = max(answer["ended"])
        codes: list[int] = answer["codes"]
        return codes


class TookTooLong(AssertionError):
    """A run that did not end."""


def kill_if_alive(*pids: int) -> None:
    """SIGKILL for ranks of ours. The server has not reaped them yet, or they are gone."""
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            if b"forkserver.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)


@dataclass(frozen=True)
class Kill:
    """When a run is killed: from inside at a place, or from outside by a clock."""

    what: str
    number: float
    where: str = ""
    """The moment as a table names it."""

    def arguments(self, rank: int) -> dict[str, Any]:
        if self.what == "clock":
            return {"kill_after_s": self.number}
        row = {"fault": "kill", "at": self.what, "count": int(self.number)}
        return {"faults": [{**row, "rank": 0 if self.what in SAVE_STAGES else rank}]}


def random_kills(count: int, seed: int) -> list[Kill]:
    """Kills spread over every part of a step, over saves, evaluations, and plain moments."""
    draw = random.Random(seed)
    moments = ["data", "forward", "backward", "optimiser", "save", "evaluation", "clock"]
    kills = []
    for number in range(count):
        what = moments[number % len(moments)]
        if what == "clock":
            kills.append(Kill(what, draw.uniform(0.05, 0.8), what))
        elif what == "save":
            kills.append(Kill(draw.choice(EVERY_SAVE), draw.randint(1, 2), "save"))
        elif what == "evaluation":
            kills.append(Kill(what, draw.randint(1, 2), what))
        else:
            kills.append(Kill(what, draw.randint(1, 25), what))
    draw.shuffle(kills)
    return kills


def step_record(run: Run) -> list[tuple[int, int, float, list[float]]]:
    """Every step's position, learning rate, and sums of loss and hits over all ranks."""
    return [(e["step"], e["position"], e["lr"], e["sums"]) for e in run.steps()]


def evaluation_record(run: Run) -> list[tuple[int, int, int, float]]:
    return [(e["position"], e["top1"], e["top5"], e["loss"]) for e in run.merged("evaluation")]


def assert_bit_equal(run: Run, reference: Run) -> None:
    """Losses, rates, evaluations, weights, averages, buffers and optimiser: the same bits."""
    assert run.finished and reference.finished
    assert step_record(run) == step_record(reference)
    assert evaluation_record(run) == evaluation_record(reference)
    ours, theirs = last_checkpoint(run), last_checkpoint(reference)
    for name in ("weights.safetensors", "ema.safetensors"):
        assert (ours / name).exists() == (theirs / name).exists()
        if (ours / name).exists():
            assert same(load_file(ours / name), load_file(theirs / name)), name
    states = [torch.load(path / "state.pt", weights_only=True) for path in (ours, theirs)]
    assert same(*states)


def last_checkpoint(run: Run) -> Path:
    checkpoints = Checkpoints(run.path)
    name = checkpoints.pointer("last")
    assert name is not None
    return checkpoints.folder / name
