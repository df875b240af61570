"""stoker lease RUN --process PID --hours H: end this rented machine when training has ended, hangs,
or takes too long."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path
from uuid import uuid4

from stoker.cli.flags import Parser
from stoker.commit import write_json
from stoker.errors import BAD_REQUEST, FAILED, FINISHED, INTERRUPTED, BadRequest, StokerError
from stoker.fleet.sky.lease import BoundedRead, LeaseTerms, MachineLease, Pulse
from stoker.fleet.sky.processes import WatchedProcess
from stoker.host.plain_file import read_plain
from stoker.run.leases import LeaseFile, past_leases, used_s
from stoker.run.progress import RunProgress
from stoker.survive.watchdog import GIVE_UP_AFTER, TIMES_USUAL
from stoker.text import plural, say, shown

MACHINE_FILE = Path(".stoker-lease.json")
"""Below the user's home: the newest lease of this machine."""
LOG = "lease.log"
START_S = 60.0
STALL_MINUTES = 60.0
"""The watchdog of a run gives up after 50 minutes at most, unless steps are longer than two."""
AFTER_MINUTES = 20.0
MOST_STUCK = 3
"""Machines in a row without a step, after which nothing goes on elsewhere."""
SKYPILOT = "skypilot"
DOWN_NOW = (
    "from sky.skylet import autostop_lib as a; "
    "a.set_autostop(0, 'cloudvmray', a.AutostopWaitFor.NONE, True)"
)
"""Tells SkyPilot's process on this machine to terminate it, by the provider's interface. It looks
once a minute."""


def parser() -> Parser:
    lease = Parser(
        prog="stoker lease",
        usage="stoker lease RUN --process PID --hours H [--end COMMAND]",
        description="End this rented machine when the job has ended, makes no progress, or has "
        "used up its hours. Starts a process beside training, and returns at once. 'stoker launch "
        "sky' writes this command into its task; --ended is for the task's last line.",
        examples=("stoker lease runs/mine --process $$ --hours 8 --end 'sudo -n shutdown -h now'",),
    )
    add = lease.add_argument
    add("run", metavar="RUN", type=Path, help="the run directory, which need not exist yet")
    add("--process", metavar="PID", type=int, help="the job's shell: when it ends, the job has")
    add("--hours", metavar="H", type=float, help="hours of all machines of this run together")
    add(
        "--end",
        metavar="COMMAND",
        action="append",
        help=f"a command that ends this machine; several are tried in turn. '{SKYPILOT}' stands "
        f"for SkyPilot's own way [{SKYPILOT}]",
    )
    add("--state", metavar="COMMAND", help="a command that prints the machine's state")
    add(
        "--stall",
        metavar="MINUTES",
        type=float,
        default=STALL_MINUTES,
        help=f"minutes without progress, at least, that are a hang [{STALL_MINUTES:g}]",
    )
    add(
        "--after",
        metavar="MINUTES",
        type=float,
        default=AFTER_MINUTES,
        help=f"minutes that SkyPilot has to end the machine first [{AFTER_MINUTES:g}]",
    )
    add("--log", metavar="FILE", type=Path, default=Path(LOG), help=f"log of the lease [{LOG}]")
    add("--grace", metavar="S", type=float, default=120.0, help=argparse.SUPPRESS)
    add("--pause", metavar="S", type=float, default=60.0, help=argparse.SUPPRESS)
    add("--watch", metavar="ID", help=argparse.SUPPRESS)
    add("--ended", metavar="CODE", type=int, help="the job's exit code: print what comes next")
    return lease


def run(arguments: Sequence[str]) -> int:
    parsed = parser().parse(arguments)
    if parsed.ended is not None:
        return end_code(parsed.run, parsed.ended)
    check(parsed)
    if parsed.watch:
        return watch(parsed)
    return start(parsed, arguments)


def check(parsed: argparse.Namespace) -> None:
    if parsed.process is None or parsed.hours is None:
        raise BadRequest("a lease needs --process PID and --hours H: see 'stoker lease --help'")
    for name in ("hours", "stall", "after", "grace", "pause"):
        value = getattr(parsed, name)
        if not 0 <= value < 1e6 or (name not in ("after", "grace") and value == 0):
            raise BadRequest(f"--{name} must be a positive number, not {value:g}")
    for command in [*(parsed.end or []), *([parsed.state] if parsed.state else [])]:
        words_of(command)


def words_of(command: str) -> list[str]:
    """The words of a command. Raises BadRequest where it is none."""
    if command == SKYPILOT:
        runtime = Path(os.environ.get("SKY_RUNTIME_DIR") or Path.home())
        python = runtime / "skypilot-runtime" / "bin" / "python"
        with suppress(OSError, ValueError):
            python = Path(read_plain(runtime / ".sky" / "python_path", 4096).decode().strip())
        return [str(python), "-I", "-c", DOWN_NOW]
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise BadRequest(f"'{shown(command)}' is no command: {error}") from error
    if not words:
        raise BadRequest("an empty command ends no machine")
    return words


def start(parsed: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Start the process that watches, in a session of its own; returns once it watches."""
    WatchedProcess.of(parsed.process)
    used_h = (BoundedRead(lambda: used_s(parsed.run))() or 0.0) / 3600
    if used_h >= parsed.hours:
        raise StokerError(
            f"the lease is used up: {used_h:.1f} of {plural(parsed.hours, 'hour')}; launch it "
            "again with more --hours"
        )
    name = uuid4().hex
    try:
        log = parsed.log.open("ab")
    except OSError as error:
        raise StokerError(f"cannot write {shown(str(parsed.log))}: {error.strerror}") from error
    with log:
        watcher = subprocess.Popen(
            [sys.executable, "-P", "-m", "stoker", "lease", *arguments, "--watch", name],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    limit = time.monotonic() + START_S
    while newest_lease() != name:
        if watcher.poll() is not None or time.monotonic() > limit:
            watcher.kill()
            raise StokerError(f"the lease did not start: see {shown(str(parsed.log))}")
        time.sleep(0.05)
    say(
        f"lease: this machine ends with the job, after {plural(parsed.stall, 'minute')} without "
        f"progress, or after {parsed.hours - used_h:.1f} hours; log: "
        f"{shown(str(parsed.log.absolute()))}"
    )
    return FINISHED


def watch(parsed: argparse.Namespace) -> int:
    """Be the process that watches."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    training = WatchedProcess.of(parsed.process)
    used = BoundedRead(lambda: used_s(parsed.run))() or 0.0
    ends = [words_of(command) for command in parsed.end or [SKYPILOT]]
    file, progress = LeaseFile(parsed.run), RunProgress(parsed.run)

    def pulse() -> Pulse | None:
        position = progress.look()
        file.beat(position.step if position else 0)
        if position is None:
            return None
        allowed_s = TIMES_USUAL * (GIVE_UP_AFTER + 1) * position.step_s
        mark = (position.attempt, position.events)
        return Pulse(mark, f"step {position.step:,}", allowed_s)

    lease = MachineLease(
        LeaseTerms(
            left_s=parsed.hours * 3600 - used,
            stall_s=parsed.stall * 60,
            after_s=parsed.after * 60,
            grace_s=parsed.grace,
            pause_s=parsed.pause,
        ),
        training,
        BoundedRead(pulse),
        ends,
        BootClock(),
        log_line,
        state=words_of(parsed.state) if parsed.state else [],
        is_newest=lambda: newest_lease() in (parsed.watch, None),
        decided=lambda why: BoundedRead(lambda: file.write(why))() or None,
    )
    write_json(Path.home() / MACHINE_FILE, {"id": parsed.watch, "pid": os.getpid()})
    log_line(f"lease of process {parsed.process} begins: {lease.terms.left_s / 3600:.2f} hours")
    lease.run()
    return FINISHED


class BootClock:
    """A clock that goes on while the machine sleeps."""

    def now(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)


def newest_lease() -> str | None:
    """The newest lease of this machine; None where nothing tells."""
    with suppress(OSError, ValueError, RecursionError):
        record = json.loads(read_plain(Path.home() / MACHINE_FILE, 4096).decode())
        return str(record["id"]) if isinstance(record, dict) and "id" in record else None
    return None


def log_line(text: str) -> None:
    say(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC: {text}")


def end_code(run: Path, code: int) -> int:
    """What a job that ended with a code tells SkyPilot, which starts it again elsewhere for 75
    alone."""
    if code in (FINISHED, BAD_REQUEST):
        say("finished" if code == FINISHED else "refused: the message above says what to change")
        return code
    if code not in (INTERRUPTED, 128 + signal.SIGKILL, 128 + signal.SIGTERM):
        say(f"failed (exit code {code}): the output above says why")
        return FAILED
    leases, position = past_leases(run), RunProgress(run).look()
    if leases and leases[-1].used_up:
        say("stopped: the hours of the lease are used up; launch it again with more --hours")
        return FAILED
    step = position.step if position else 0
    # Machines in a row, up to this one, that began where the run still is.
    stuck = len([*takewhile(lambda lease: lease.step >= step, reversed(leases))])
    if stuck >= MOST_STUCK:
        say(f"stopped: {stuck} machines in a row made no step after step {step:,}")
        return FAILED
    say(f"stopped at step {step:,} (exit code {code}): started again, it resumes")
    return INTERRUPTED
