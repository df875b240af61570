"""Stop signals at any moment of any verb that works for long: the command ends soon, with 75 or
because it was done, never with 1, leaves no process behind, and the same command then gives the
result that it always gives.

The moments are drawn from a seed, over the time that the command takes here. A signal goes to the
command, to its process group, or to every process that it has started, in any order, as schedulers
and service managers do. A share runs here, another one with the next commit. `--whole` runs all.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from chaos.conftest import Tables
from measured import held, measured
from shares import share
from stoker.commit import sha256_file
from stoker.errors import FINISHED, INTERRUPTED
from waiting import until

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
TARGETS = ("the command", "its group", "every process")
LONGEST_S = 20.0
"""How long a command may take to stop: schedulers kill later."""
PARTS = 20
SMALL = "--model resnet9_w4 --image-size 32 --batch-size 16 --threads 2 --spot-notice off"
GRID = "--model resnet9_w4 --image-size 32 --batch-size 16 --epochs 2 --workers 2"


@dataclass(frozen=True)
class Verb:
    """A command, how many signals it gets in all, and the files that show its result."""

    words: str
    signals: int
    result: str


VERBS = {
    "pack": Verb("pack {photos} out --codec raw --shard-images 50 --workers 1", 6, "out/*.json"),
    "pack by two workers": Verb(
        "pack {photos} out --codec raw --shard-images 50", 10, "out/*.json"
    ),
    "train": Verb(f"train {{set}} {SMALL} --epochs 10 --run out", 14, "out/checkpoints/*/w*"),
    "train on two ranks": Verb(
        f"train {{set}} {SMALL} --epochs 10 --run out --ranks 2", 14, "out/checkpoints/*/w*"
    ),
    "train on photographs": Verb(
        f"train {{photos}} {SMALL} --epochs 4 --run out", 6, "out/report*"
    ),
    "evaluate": Verb("evaluate {run} {set}", 4, ""),
    "evaluate on two ranks": Verb("evaluate {run} {set} --ranks 2", 6, ""),
    "predict": Verb("predict {run} {photos} --out out.csv", 4, "out.csv"),
    "export": Verb("export {run} out --to onnx", 4, "out/*.onnx"),
    "verify": Verb("verify {set}", 4, ""),
    "report": Verb("report {run} --out out.html", 4, "out.html"),
    "explain": Verb("explain {run}", 4, ""),
    "show-batch": Verb("show-batch {set} --sheet out.png", 2, "out.png"),
    "doctor on two ranks": Verb("doctor --ranks 2", 2, ""),
    "bench": Verb(
        "bench train {set} --model resnet9_w4 --batch-size 16 --image-size 32 --steps 5 "
        "--repeats 1 --out out.json",
        6,
        "",
    ),
    "sweep": Verb(
        f"sweep {{set}} --set lr_base=0.1,0.2 {GRID} --out out", 6, "out/cells/*/result*"
    ),
    "track": Verb("track {run} --to csv --out out --once", 4, "out/*/*.csv"),
}
"""100 signals, 22 of them to commands with two ranks."""


@dataclass(frozen=True)
class Case:
    verb: str
    number: int

    @property
    def draw(self) -> random.Random:
        return random.Random(f"{self.verb} {self.number}")

    def __str__(self) -> str:
        return f"{self.verb}, {self.number}"


CASES = [Case(name, number) for name, verb in VERBS.items() for number in range(verb.signals)]
assert len(CASES) == 100


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        whole = metafunc.config.getoption("--whole")
        cases = share("signals at any moment", CASES, PARTS, whole=whole)
        metafunc.parametrize("case", cases, ids=str)


class Commands:
    """Runs commands of Stoker in folders of their own, on the same inputs."""

    def __init__(self, root: Path, inputs: dict[str, Path]) -> None:
        self.root, self.inputs = root, inputs
        self.variables = {**os.environ, "STOKER_CACHE": str(root / "cache")}
        self.finished = cache(self._finished)

    def start(self, verb: str, folder: Path) -> subprocess.Popen[bytes]:
        folder.mkdir(exist_ok=True)
        words = VERBS[verb].words.format(**self.inputs).split()
        with (folder / "log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "stoker", *words],
                cwd=folder,
                env=self.variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=default_signals,
            )

    def _finished(self, verb: str) -> tuple[float, dict[str, str]]:
        """How long a command takes that nobody stops, and its result."""
        folder, began = self.root / f"{verb} whole", time.monotonic()
        assert self.start(verb, folder).wait(600) == FINISHED, printed(folder)
        return time.monotonic() - began, result(verb, folder)


def default_signals() -> None:
    """Runs in the new process: whoever started the tests may ignore signals (nohup)."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)


def result(verb: str, folder: Path) -> dict[str, str]:
    """A hash of each file that shows what a command has made."""
    pattern = VERBS[verb].result
    paths = sorted(folder.glob(pattern)) if pattern else []
    if "checkpoints" in pattern:
        paths = paths[-1:]  # the end of the run: which earlier ones are kept follows from the stops
    return {
        # A page has the time at which it was made, and the attempts.
        str(path.relative_to(folder)): "a page" if path.suffix == ".html" else sha256_file(path)
        for path in paths
    }


def printed(folder: Path) -> str:
    return (folder / "log").read_text(errors="replace")[-3000:]


@pytest.fixture(scope="module")
def commands(
    packed_sets: dict[str, Path], photos: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Commands]:
    root = tmp_path_factory.mktemp("commands")
    run = root / "run"
    words = f"train {packed_sets['raw']} {SMALL} --epochs 2 --run {run}".split()
    subprocess.run([sys.executable, "-P", "-m", "stoker", *words], check=True)
    yield Commands(root, {"set": packed_sets["raw"], "photos": photos, "run": run})


def listens(pid: int) -> bool:
    """Whether a process has ended, or catches SIGTERM: Python itself does not."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt"):
                return bool(int(line.split()[1], 16) >> (signal.SIGTERM - 1) & 1)
            if line.startswith("State") and "Z" in line:
                return True
    return True


def family(pid: int) -> list[int]:
    """A process and all that it has started, in whichever session."""
    found = [pid]
    for each in found:
        for path in Path(f"/proc/{each}/task").glob("*/children"):
            with suppress(OSError):
                found += [int(word) for word in path.read_text().split()]
    return found


def send(number: signal.Signals, target: str, pids: list[int], draw: random.Random) -> None:
    if target == "its group":
        with suppress(ProcessLookupError):
            os.killpg(pids[0], number)
        return
    for pid in draw.sample(pids, len(pids)) if target == "every process" else pids[:1]:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def is_reader(pid: int) -> bool:
    """Whether a process is the one that reads the first checkpoint of a run back."""
    with suppress(OSError):
        return b"stoker.survive.rehearsal" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


@pytest.mark.parametrize("verb", ["train", "train on two ranks"])
@pytest.mark.rotates(2)
def test_a_signal_to_every_process_while_a_checkpoint_is_read_back(
    commands: Commands, verb: str
) -> None:
    folder = commands.root / f"{verb}, read back"
    process = commands.start(verb, folder)
    reader = until(lambda: next(filter(is_reader, family(process.pid)), 0))
    os.kill(reader, signal.SIGSTOP)
    until((folder / "out/checkpoints/rehearsal/COMMITTED").exists)
    for pid in [reader, *family(process.pid)]:
        os.kill(pid, signal.SIGTERM)
    os.kill(reader, signal.SIGCONT)
    assert process.wait(60) == INTERRUPTED, printed(folder)
    until(lambda: is_gone(reader))
    assert commands.start(verb, folder).wait(600) == FINISHED, printed(folder)
    assert result(verb, folder) == commands.finished(verb)[1]


@pytest.mark.alone
@pytest.mark.exact
@measured(3)
def test_a_signal_at_any_moment(commands: Commands, tables: Tables, case: Case) -> None:
    draw, folder = case.draw, commands.root / f"{case}, {time.monotonic_ns()}"
    takes_s, expected = commands.finished(case.verb)
    number, target, share_of_time = draw.choice(SIGNALS), draw.choice(TARGETS), draw.random()
    process = commands.start(case.verb, folder)
    until(lambda: listens(process.pid))
    with suppress(subprocess.TimeoutExpired):
        process.wait(share_of_time * takes_s)
    pids, sent_at = family(process.pid), time.monotonic()
    send(number, target, pids, draw)
    code = process.wait(600)
    took = time.monotonic() - sent_at
    assert code in (FINISHED, INTERRUPTED), (number, target, printed(folder))
    assert "Traceback" not in printed(folder), printed(folder)
    until(lambda: all(is_gone(pid) for pid in pids))
    tables.say(
        f"{case}: {number.name} to {target} at {100 * share_of_time:.0f} %: {code} "
        f"after {took:.1f} s, {len(pids)} processes"
    )
    if code == INTERRUPTED:
        assert "stopped" in printed(folder), printed(folder)
        assert commands.start(case.verb, folder).wait(600) == FINISHED, printed(folder)
    assert result(case.verb, folder) == expected
    held(took < LONGEST_S, took)
