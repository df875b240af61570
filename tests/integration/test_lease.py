"""A rented machine ends whatever becomes of training, with the task's own lines in a real shell."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rented import TRAINER, RentedMachine
from stoker.errors import BAD_REQUEST, FAILED, FINISHED, INTERRUPTED
from stoker.fleet.sky.records import LAUNCHED, CloudJob, write_job
from stoker.fleet.sky.task import SkyTask
from stoker.run.leases import past_leases

QUICK = ("--after", "0.005", "--grace", "3", "--pause", "0.4")


def task_for(machine: RentedMachine, words: list[str], **changes: object) -> SkyTask:
    options = {"hours": 1.0, "stall_minutes": 1.0, "end": [machine.command("end")], **changes}
    return SkyTask("mine", words, "runs/mine", "s3://b/mine", {}, {}, **options)  # type: ignore[arg-type]


def start(
    machine: RentedMachine, how: str, **changes: object
) -> tuple[subprocess.Popen[str], Path]:
    """Start the lines of a task whose command is a trainer that does as it is told."""
    (machine.root / "trainer.py").write_text(TRAINER)
    pid = machine.root / "pid"
    task = task_for(machine, ["train"], **changes)
    # `stoker train` is this trainer here.
    words = f"{sys.executable} {machine.root / 'trainer.py'} {how} runs/mine {pid}"
    machine.install(f'[ "$1" != train ] || exec {words}\nexec {sys.executable} -P -m stoker "$@"')
    return machine.run(task, QUICK), pid


def wait_for(path: Path, seconds: float = 60.0) -> int:
    limit = time.monotonic() + seconds
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < limit
        time.sleep(0.02)
    return int(path.read_text())


def is_listed(machine: RentedMachine) -> bool:
    """Whether `stoker runs --refresh`, elsewhere, lists the machine as billed."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "stoker", "runs", "--refresh"],
        cwd=machine.root / "laptop",
        env=machine.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return "mine (L4:1, on demand)" in done.stdout


@pytest.mark.parametrize(
    ("how", "code", "reason"),
    [
        ("crash", FAILED, "the job has ended at step 1"),
        ("killed", INTERRUPTED, "the job has ended at step 1"),
        ("deaf", INTERRUPTED, "training did not stop: it is killed"),
    ],
)
def test_the_machine_ends_after_a_crash_and_a_hang(
    tmp_path: Path, how: str, code: int, reason: str
) -> None:
    machine = RentedMachine.rent(tmp_path, refusals=1)
    record = CloudJob("mine", False, time.time(), "L4:1, on demand", "s3://b/mine", LAUNCHED)
    write_job(tmp_path / "laptop" / "jobs" / "mine", record)
    assert is_listed(machine)
    job, pid = start(machine, how, stall_minutes=0.2 if how == "deaf" else 1.0)
    trainer = wait_for(pid) if how != "crash" else 0
    if how == "killed":
        os.kill(trainer, signal.SIGKILL)
    elif how == "deaf":
        os.kill(trainer, signal.SIGSTOP)
    output, _ = job.communicate(timeout=60)
    assert job.returncode == code, output
    log = machine.wait_for_log("this machine is gone")
    assert reason in log
    assert "the provider is busy" in log
    assert "its state is 'shutting-down'" in log
    assert not machine.is_billed
    assert not is_listed(machine)


def test_the_machine_ends_after_training_has_finished(tmp_path: Path) -> None:
    from tiny_runs import FLAGS, tiny_set

    machine = RentedMachine.rent(tmp_path)
    data = tiny_set(tmp_path)
    (machine.job / "data").symlink_to(data)
    flags = [f"--{k.replace('_', '-')}={v}" for k, v in FLAGS.items() if not isinstance(v, bool)]
    words = ["train", "data", "--epochs=1", "--no-rehearse", *flags, "--run", "runs/mine"]
    job = machine.run(task_for(machine, words, stall_minutes=10), QUICK)
    output, _ = job.communicate(timeout=120)
    assert job.returncode == FINISHED, output
    log = machine.wait_for_log("this machine is gone")
    assert "the job has ended at step" in log
    assert not machine.is_billed
    (lease,) = past_leases(machine.job / "runs" / "mine")
    assert lease.seconds > 0


def test_the_machine_ends_when_its_hours_are_used_up(tmp_path: Path) -> None:
    machine = RentedMachine.rent(tmp_path)
    job, _ = start(machine, "good", hours=8 / 3600)
    output, _ = job.communicate(timeout=60)
    # The next machine would have no time left.
    assert job.returncode == FAILED, output
    assert "the hours of the lease are used up" in output
    machine.wait_for_log("this machine is gone")
    assert not machine.is_billed
    again, _ = start(machine, "good", hours=8 / 3600)
    output, _ = again.communicate(timeout=60)
    assert again.returncode == 1
    assert "launch it again with more --hours" in output


def test_a_stopped_machine_is_not_gone(tmp_path: Path) -> None:
    machine = RentedMachine.rent(tmp_path)
    job, _ = start(machine, "crash", end=[machine.command("stop"), machine.command("end")])
    job.communicate(timeout=60)
    log = machine.wait_for_log("this machine is gone")
    assert "its state is 'stopped'" in log
    assert log.count("(" + machine.command("stop") + ")") == 3
    assert not machine.is_billed


def test_a_later_lease_takes_over(tmp_path: Path) -> None:
    machine = RentedMachine.rent(tmp_path)
    sleepers = []
    for number in range(2):
        sleeper = subprocess.Popen(["sleep", "600"])
        words = [sys.executable, "-P", "-m", "stoker", "lease", f"run{number}", "--hours", "1"]
        words += ["--process", str(sleeper.pid), "--stall", "0.1", "--after", "60"]
        done = subprocess.run(
            [*words, "--end", machine.command("end"), "--log", f"{number}.log"],
            cwd=machine.home,
            env=machine.environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == FINISHED, done.stderr
        sleepers.append(sleeper)
    limit = time.monotonic() + 60
    while "taken over" not in (machine.home / "0.log").read_text():
        assert time.monotonic() < limit
        time.sleep(0.05)
    assert machine.record["state"] == "running"
    newest = json.loads((machine.home / ".stoker-lease.json").read_text())
    os.kill(newest["pid"], signal.SIGKILL)
    for sleeper in sleepers:
        sleeper.kill()
        sleeper.wait()


def test_a_lease_that_cannot_begin_is_no_lease(tmp_path: Path) -> None:
    machine = RentedMachine.rent(tmp_path)
    words = [sys.executable, "-P", "-m", "stoker", "lease", "run", "--process", "999999999"]
    done = subprocess.run(
        [*words, "--hours", "1"], env=machine.environment, capture_output=True, text=True
    )
    assert done.returncode == BAD_REQUEST
    assert "there is no such process" in done.stderr
