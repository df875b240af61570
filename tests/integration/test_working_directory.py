"""Every verb in a working directory full of hostile modules: the usual result, nothing imported."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from hostile_modules import hostile_folder, imported, stoker_command
from ports import free_port
from samples import image_folder
from stoker.safe_path import SAFE

pytestmark = [pytest.mark.exact, pytest.mark.timeout(600)]
TINY = "--model resnet9_w4 --image-size 24 --batch-size 8 --epochs 1 --eval-every 1"
Stoker = Callable[[str], None]


@pytest.fixture
def stoker(tmp_path: Path) -> Stoker:
    """Runs a command in the hostile folder, where the images are."""
    folder = hostile_folder(tmp_path / "hostile")
    image_folder(folder / "photos", classes=2, images=8, val=2, size=(32, 32))
    command = stoker_command(tmp_path)
    variables = {name: text for name, text in os.environ.items() if name != SAFE}

    def run(words: str) -> None:
        done = subprocess.run(
            [*command, *words.split()],
            cwd=folder,
            env={**variables, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert (done.returncode, imported(folder)) == (0, []), done.stdout + done.stderr

    return run


def test_no_verb_imports_from_the_working_directory(stoker: Stoker) -> None:
    stoker("pack photos packed --workers 2 --shard-images 4")
    stoker("verify packed --threads 2")
    stoker("bench data packed --seconds 0.1 --image-size 24 --batch-size 8 --threads 2")
    stoker(f"train packed --run run --ranks 2 {TINY}")
    stoker("explain run")
    stoker("show-config run")


@pytest.mark.rotates(2)
@pytest.mark.parametrize("verb", ["nodes", "doctor"])
def test_ranks_of_nodes_and_of_doctor_do_not_either(stoker: Stoker, verb: str) -> None:
    stoker("pack photos packed")
    if verb == "nodes":
        stoker(f"train packed --nodes 1 --rendezvous 127.0.0.1:{free_port()} --ranks 2 {TINY}")
    else:
        stoker("doctor packed --ranks 2 --seconds 0.2 --model resnet9_w4 --image-size 24")
