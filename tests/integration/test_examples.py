"""The loops in `examples/` run, and the bare one is the same to the bit after kill -9."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from bits import same
from samples import image_folder
from stoker.data.images.encode import Storage
from stoker.data.packing.pack import pack

ROOT = Path(__file__).parents[2]
EPOCHS, IMAGES = 3, 60


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("set")
    photos = image_folder(root / "photos", images=IMAGES // 3, val=5, size=(40, 32))
    storage = Storage(codec="raw")
    return pack(photos, root / "packed", storage=storage, val_share=0, shard_images=16, workers=1)


def start(name: str, folder: Path, *words: object) -> subprocess.Popen[str]:
    command = [sys.executable, str(ROOT / "examples" / f"{name}.py"), *map(str, words)]
    variables = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def printed(name: str, folder: Path, *words: object) -> str:
    process = start(name, folder, *words)
    output, errors = process.communicate(timeout=500)
    assert process.returncode == 0, errors[-3000:]
    return output


@pytest.mark.exact
def test_the_bare_loop_is_the_same_after_kills(packed: Path, tmp_path: Path) -> None:
    words = ("--epochs", EPOCHS, "--image-size", 16)
    reference = printed("bare_loop", tmp_path, packed, tmp_path / "reference.pt", *words)
    losses: dict[str, str] = {}
    for steps in (2, 3, 100):
        process = start("bare_loop", tmp_path, packed, tmp_path / "killed.pt", *words)
        assert process.stdout
        for line in process.stdout:
            if match := re.fullmatch(r"(\d+) (\S+)\n", line):
                losses[match[1]] = match[2]
                if not (steps := steps - 1):
                    process.kill()
        process.communicate(timeout=500)
    assert process.returncode == 0
    assert losses == dict(re.findall(r"^(\d+) (\S+)$", reference, re.MULTILINE))
    assert len(losses) == EPOCHS * (IMAGES // 16)
    states = [
        torch.load(tmp_path / f"{name}.pt", weights_only=True) for name in ("reference", "killed")
    ]
    assert same(*[state["model"] for state in states])
    assert states[0]["loader"] == states[1]["loader"]


@pytest.mark.exact
def test_two_ranks_of_torchrun_share_the_batches(packed: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    loop = [str(ROOT / "examples" / "bare_loop.py"), str(packed), str(tmp_path / "two.pt")]
    done = subprocess.run(
        [*words, *loop, "--epochs", "1", "--image-size", "16"],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    counts = [int(n) for n in re.findall(r"of (\d+) right on this rank", done.stdout)]
    assert sorted(counts) == [7, 8]
    assert torch.load(tmp_path / "two.pt", weights_only=True)["loader"]["position"] == IMAGES


@pytest.mark.parametrize("name", ["lightning", "accelerate"])
def test_other_trainers(packed: Path, name: str, tmp_path: Path) -> None:
    if find_spec(name) is None:
        pytest.skip(f"{name} is not installed: pip install {name}")
    output = printed(f"{name}_loop", tmp_path, packed)
    assert f"samples {2 * IMAGES}" in output


def test_nothing_waits(packed: Path) -> None:
    """A loop that is left at its first batch ends at once."""
    program = (
        "import sys, stoker\n"
        "for images, labels in stoker.Loader(sys.argv[1], batch_size=16, image_size=16):\n"
        "    break\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(packed)], timeout=300)
    assert done.returncode == 0
