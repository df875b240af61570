"""`stoker evaluate` with real processes: several ranks, signals, ranks that fail, a reader that
leaves."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from integration.processes import finish, start, wait_until
from samples import image_folder
from stoker.data.packing.pack import pack
from stoker.faults import VARIABLE
from stoker.run.directory import Run

COUNTS = ("images", "top1", "top5", "per_class", "confusions")
TRAIN = "--model resnet9_w8 --image-size 32 --batch-size 50 --epochs 2 --eval-batch-size 20"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a packed set of 7 x 11 images for evaluation, and a run of two epochs."""
    root = tmp_path_factory.mktemp("evaluate")
    photos = image_folder(root / "photos", classes=7, images=30, val=11, size=(40, 36))
    pack(photos, root / "set", workers=1)
    code, printed = finish(start(["train", "set", "--run", "run", *TRAIN.split()], root))
    assert code == 0, printed
    return root


def evaluated(root: Path, *words: str) -> dict[str, Any]:
    code, printed = finish(start(["evaluate", *words, "--json", "out.json"], root))
    assert code == 0, printed
    made: dict[str, Any] = json.loads((root / "out.json").read_text())
    return made


@pytest.mark.exact
def test_ranks_count_what_the_run_counted(root: Path) -> None:
    event, kept = Run(root / "run").merged("evaluation")[-1], Run(root / "run").evaluation()
    assert kept is not None
    for ranks in (2, 3):  # one: tests/unit/cli/test_evaluate_verb.py
        made = evaluated(root, "run", "--checkpoint", "last", "--ranks", str(ranks))
        assert [made[key] for key in COUNTS[:3]] == [event[key] for key in COUNTS[:3]]
        assert made["per_class"] == [list(row) for row in kept.report.per_class]
        assert made["confusions"] == [list(row) for row in kept.report.confusions]
        assert made["ranks"] == ranks
        assert made["loss"] == pytest.approx(event["loss"], rel=1e-6)


@pytest.mark.exact
@pytest.mark.rotates(3)
def test_a_run_of_two_ranks_to_the_last_digit(root: Path) -> None:
    code, printed = finish(
        start(["train", "set", "--run", "two", *TRAIN.split(), "--ranks", "2"], root)
    )
    assert code == 0, printed
    event, kept = Run(root / "two").merged("evaluation")[-1], Run(root / "two").evaluation()
    assert kept is not None
    assert (kept.report.images, kept.report.loss) == (77, event["loss"])
    made = evaluated(root, "two", "--checkpoint", "last", "--ranks", "2", "--worst", "100")
    assert made["loss"] == event["loss"]
    assert made["ece"] == kept.report.ece
    assert [row["sample"] for row in made["worst"]] == [row.sample for row in kept.report.worst]


def slow_reads() -> dict[str, str]:
    return {VARIABLE: json.dumps([{"fault": "stall", "at": "read", "seconds": 60}])}


@pytest.mark.parametrize(("ranks", "number"), [(1, signal.SIGTERM), (2, signal.SIGINT)])
def test_a_signal_ends_it_at_once(
    root: Path, tmp_path: Path, ranks: int, number: signal.Signals
) -> None:
    out = tmp_path / "out.json"
    words = ["evaluate", str(root / "run"), str(root / "set"), "--ranks", str(ranks)]
    process = start([*words, "--json", str(out)], tmp_path, slow_reads())
    wait_until(lambda: all_read(process.pid, ranks), process)
    process.send_signal(number)
    code, printed = finish(process, timeout_s=50)
    assert code == 75, printed
    assert f"evaluating stopped ({number.name})" in printed
    assert list(tmp_path.iterdir()) == []


def all_read(pid: int, ranks: int) -> bool:
    """Whether a process, or each of the ranks that it started, has a shard open."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    owners = [str(pid)] if ranks == 1 else children
    return len(owners) == ranks and all(map(has_shard, owners))


def has_shard(pid: str) -> bool:
    with suppress(OSError):  # files are closed meanwhile
        return any(
            str(file.readlink()).endswith(".tar") for file in Path(f"/proc/{pid}/fd").iterdir()
        )
    return False


def test_a_rank_that_fails_is_one_line(root: Path, tmp_path: Path) -> None:
    run = shutil.copytree(root / "run", tmp_path / "run")
    for file in run.glob("checkpoints/*/weights.safetensors"):
        file.write_bytes(b"x" * file.stat().st_size)
    code, printed = finish(start(["evaluate", "run", str(root / "set"), "--ranks", "2"], tmp_path))
    assert code == 1
    lines = [line for line in printed.splitlines() if line]
    assert len(lines) == 1
    assert "weights.safetensors is damaged" in lines[0]


@pytest.mark.rotates(3)
def test_the_run_is_left_as_it_is(root: Path, tmp_path: Path) -> None:
    before = sorted((path, path.stat().st_mtime_ns) for path in (root / "run").rglob("*"))
    code, printed = finish(
        start(["evaluate", str(root / "run"), str(root / "set"), "--ranks", "2"], tmp_path)
    )
    assert code == 0, printed
    assert sorted((path, path.stat().st_mtime_ns) for path in (root / "run").rglob("*")) == before


@pytest.mark.rotates(3)
def test_a_reader_that_leaves_is_no_error(root: Path) -> None:
    command = f"{sys.executable} -m stoker evaluate run --csv - | head -n 1"
    script = f"set -o pipefail; {command}"
    done = subprocess.run(
        ["bash", "-c", script], cwd=root, env=os.environ, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("class,images")
