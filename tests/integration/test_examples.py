"""What is in `examples/` runs, and the bare loop is the same to the bit after kill -9."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from bits import same
from samples import image_folder
from stoker.cli import main
from stoker.data.images.encode import Storage
from stoker.data.packing.pack import pack

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
EPOCHS, IMAGES = 3, 60
SMALL = ["--model", "resnet9_w2", "--image-size", "16", "--batch-size", "16"]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("set")
    photos = image_folder(root / "photos", images=IMAGES // 3, val=5, size=(40, 32))
    storage = Storage(codec="raw")
    return pack(photos, root / "packed", storage=storage, val_share=0, shard_images=16, workers=1)


def variables() -> dict[str, str]:
    more = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path), "MPLBACKEND": "agg"}
    return {**os.environ, **more}


def start(name: str, folder: Path, *words: object) -> subprocess.Popen[str]:
    command = [sys.executable, str(ROOT / "examples" / f"{name}.py"), *map(str, words)]
    return subprocess.Popen(
        command,
        cwd=folder,
        env=variables(),
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
        env=variables(),
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


@pytest.mark.rotates(2)
def test_fine_tuning_says_how_good_the_model_was_before_and_after(
    packed: Path, tmp_path: Path
) -> None:
    assert (
        main(["train", str(packed), "--run", str(tmp_path / "first"), "--epochs", "1", *SMALL]) == 0
    )
    words = ("--weights", "first", "--epochs", 2, *SMALL)
    output = printed("finetune", tmp_path, packed, *words)
    assert re.search(r"^before: [\d.]+% top-1$", output, re.MULTILINE)
    assert re.search(r"^after: [\d.]+% top-1 on 15 images, at epoch ", output, re.MULTILINE)


def test_the_meter_says_what_limits_a_loop(packed: Path, tmp_path: Path) -> None:
    photos = packed.parent / "photos" / "train"
    output = printed("meter_loop", tmp_path, photos, "--epochs", 1)
    assert "epoch 0: loss " in output and "\nslowed by " in output and "\nnext: " in output


@pytest.mark.rotates(2)
def test_the_best_run_of_a_sweep_is_found(packed: Path, tmp_path: Path) -> None:
    words = ("--seed", 0, "--epochs", 1, "--workers", 2, *SMALL)
    output = printed("sweep", tmp_path, packed, *words)
    assert "2 cells: 2 done" in output
    (best,) = re.findall(r"^its run: (.+)$", output, re.MULTILINE)
    assert (tmp_path / best / "run.json").exists()


def cells_of(notebook: Path) -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return cells


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_is_valid_and_holds_no_outputs(notebook: Path) -> None:
    content = json.loads(notebook.read_text(encoding="utf-8"))
    assert content["nbformat"] == 4 and content["nbformat_minor"] >= 5
    cells = content["cells"]
    assert len({cell["id"] for cell in cells}) == len(cells)
    for cell in cells:
        assert cell["cell_type"] in ("markdown", "code") and cell["metadata"] == {}
        text = "".join(cell["source"])
        assert not re.search(r"^\s*[%!]", text, re.MULTILINE), "needs IPython"
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None
            compile(text, cell["id"], "exec")


@pytest.mark.rotates(2)
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.name)
def test_the_cells_of_a_notebook_run_in_order(notebook: Path, packed: Path, tmp_path: Path) -> None:
    for name in ("pandas", "matplotlib"):
        pytest.importorskip(name)
    shutil.copytree(packed.parent / "photos", tmp_path / "photos")
    program = "\n\n".join(
        "".join(cell["source"]) for cell in cells_of(notebook) if cell["cell_type"] == "code"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=variables(),
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert "finished: best top-1" in done.stdout
