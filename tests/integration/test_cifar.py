"""The quick recipe on real pictures: a short and narrow version of docs/results/cifar10.md."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from integration.processes import finish, start
from stoker.run.directory import Run

pytestmark = pytest.mark.alone

ARCHIVE = Path(__file__).parents[3] / "shared" / "data" / "cifar10-jpeg.tar.gz"


@pytest.mark.rotates(4)
@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.skipif(not ARCHIVE.exists(), reason=f"needs CIFAR-10 as JPEG files at {ARCHIVE.name}")
def test_two_epochs_of_the_quick_recipe_beat_one_half(tmp_path: Path) -> None:
    with tarfile.open(ARCHIVE) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # not in Python 3.11.2
        archive.extractall(tmp_path / "cifar10")
    code, printed = finish(start(["pack", "cifar10", "--codec", "raw"], tmp_path), 900)
    assert code == 0, printed
    assert "60,000 images (train 50,000, test 10,000) in 10 classes" in printed
    flags = ["--recipe", "cifar10-quick", "--model", "resnet9_w16", "--epochs", "2", "--run", "run"]
    code, printed = finish(start(["train", "cifar10-packed", *flags], tmp_path), 1400)
    assert code == 0, printed
    last = Run(tmp_path / "run").merged("evaluation")[-1]
    assert last["images"] == 10_000
    assert last["top1"] / last["images"] > 0.5
