"""The real SkyPilot reads our task files, and its process on a machine takes our word to end it.

It needs an environment of its own: 95 packages, 460 MB, some minutes to install.

    python3 -m venv sky-env
    sky-env/bin/pip install -c tests/integration/sky-constraints.txt skypilot
    STOKER_SKY_PYTHON=sky-env/bin/python pytest tests/integration/test_sky_package.py
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stoker.cli.launch_sky import parser, task_of
from stoker.cli.lease import words_of
from stoker.fleet.sky.task import END_COMMANDS, task_text

PYTHON = os.environ.get("STOKER_SKY_PYTHON", "")
pytestmark = pytest.mark.skipif(
    not PYTHON, reason="STOKER_SKY_PYTHON names no Python with SkyPilot: see this file"
)

HOSTILE = 'it\'s "$(touch x)" `x` {{ y }} # : - ~ * & ! % @ ☃ ${HOME}'
CASES = {
    "spot": ["--gpus", "A10G:1", "--cloud", "aws", "--region", "us-east-1", "--secret", "TOKEN"],
    "on demand": ["--on-demand", "--cloud", "gcp", "--cpus", "8+", "--memory", "32+", "--disk=100"],
    "anything": ["--resource", "max_hourly_cost=2.5", "--resource", "disk_tier=best"],
    "hostile": ["--job-name", HOSTILE, "--gpus", "A100:8", "--end", f"echo {shlex.quote(HOSTILE)}"],
}


def environment(home: Path) -> dict[str, str]:
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return {**variables, "HOME": str(home), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What SkyPilot makes of the task of each case, in one process, which takes seconds."""
    root = tmp_path_factory.mktemp("sky")
    files = []
    for number, (name, options) in enumerate(CASES.items()):
        data = root / (HOSTILE.replace("/", "") if name == "hostile" else "photos") / "packed"
        data.mkdir(parents=True, exist_ok=True)
        (data / "dataset.json").touch()
        (root / "x.whl").touch()
        flags = ["--bucket", f"s3://bucket/{'it(s)$x' if name == 'hostile' else 'runs'}", *options]
        task = task_of(parser().parse(flags), ["train", str(data), "--epochs", "3"])
        file = root / f"{number}.yaml"
        file.write_text(task_text(task, file, root / "x.whl"))
        files.append(str(file))
    script = Path(__file__).with_name("sky_tasks.py")
    done = subprocess.run(
        [PYTHON, str(script), *files],
        env=environment(root),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert not done.returncode, done.stderr
    return dict(zip(CASES, json.loads(done.stdout.splitlines()[-1]), strict=True))


def test_a_spot_job_is_recovered_after_75_alone(tasks: dict[str, dict[str, Any]]) -> None:
    resources = tasks["spot"]["resources"]
    assert resources["use_spot"] is True
    assert resources["infra"] == "aws/us-east-1"
    assert resources["accelerators"] == {"A10G": 1}
    assert resources["job_recovery"]["recover_on_exit_codes"] == [75]
    assert resources["job_recovery"]["max_restarts_on_errors"] == 0
    assert tasks["spot"]["secrets"] == ["secrets:TOKEN"]


def test_a_machine_on_demand_ends_when_it_is_idle(tasks: dict[str, dict[str, Any]]) -> None:
    resources = tasks["on demand"]["resources"]
    assert resources["use_spot"] is False
    assert resources["autostop"] == {"idle_minutes": 10, "down": True, "wait_for": "jobs"}
    assert (resources["cpus"], resources["memory"], resources["disk_size"]) == ("8+", "32+", 100)
    assert tasks["anything"]["resources"]["max_hourly_cost"] == 2.5


@pytest.mark.parametrize("case", CASES)
def test_the_run_is_in_the_bucket_and_the_lines_are_whole(
    case: str, tasks: dict[str, dict[str, Any]]
) -> None:
    task = tasks[case]
    (bucket,) = [mount for mount in task["file_mounts"].values() if isinstance(mount, dict)]
    assert bucket["mode"] == "MOUNT_CACHED"
    assert bucket["source"].startswith("s3://bucket/")
    assert "stoker lease" in task["run"]
    assert task["run"].rstrip().endswith("--ended $?")
    for script in ("setup", "run"):
        subprocess.run(["bash", "-n", "-c", task[script]], check=True)


def test_no_word_leaves_its_place(tasks: dict[str, dict[str, Any]]) -> None:
    task = tasks["hostile"]
    lease = next(line for line in task["run"].splitlines() if line.startswith("stoker lease"))
    words = shlex.split(lease.removesuffix("|| exit 1"))
    assert words[words.index("--end") + 1] == f"echo {shlex.quote(HOSTILE)}"
    assert any(HOSTILE in str(mount) for mount in task["file_mounts"].values())


def test_skypilots_own_process_takes_the_word_to_end_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert END_COMMANDS[0] == "skypilot"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SKY_RUNTIME_DIR", raising=False)
    (tmp_path / ".sky").mkdir()
    (tmp_path / ".sky" / "python_path").write_text(str(Path(PYTHON).absolute()) + "\n")
    words = words_of("skypilot")
    done = subprocess.run(words, env=environment(tmp_path), capture_output=True, text=True)
    assert not done.returncode, done.stderr
    read = (
        "from sky.skylet import autostop_lib as a; c = a.get_autostop_config(); "
        "print(c.autostop_idle_minutes, c.down, c.wait_for.value, c.backend)"
    )
    back = subprocess.run(
        [words[0], "-c", read], env=environment(tmp_path), capture_output=True, text=True
    )
    assert back.stdout.splitlines()[-1] == "0 True none cloudvmray"
    assert sys.executable != words[0]
