"""A set with its index in partitions, by the commands of a user: they compute what they compute for
the same set with a whole index."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from integration.processes import finish, start
from parted_sets import pack_both
from samples import image_folder
from stoker.run.directory import Run

SETS = ("whole", "parted")
TRAIN = "--model resnet9_w8 --image-size 32 --batch-size 32 --epochs 2 --eval-batch-size 20"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both sets, and a run of each."""
    root = tmp_path_factory.mktemp("parted")
    photos = image_folder(root / "photos", classes=4, images=40, val=10, size=(40, 36))
    pack_both(photos, root, shard_images=16)
    for name in SETS:
        done(root, "train", name, "--run", f"run-{name}", *TRAIN.split())
    return root


def done(root: Path, *words: str) -> str:
    code, printed = finish(start(list(words), root))
    assert code == 0, printed
    return printed


@pytest.mark.exact
def test_a_run_has_the_bits_of_one_with_a_whole_index(root: Path) -> None:
    one, other = (Run(root / f"run-{name}") for name in SETS)
    losses = [[event["sums"] for event in run.merged("step")] for run in (one, other)]
    assert losses[0] and losses[0] == losses[1]
    kept = [run.evaluation() for run in (one, other)]
    assert kept[0] is not None and kept[0] == kept[1]


@pytest.mark.exact
def test_an_evaluation_is_the_same(root: Path) -> None:
    made: list[Any] = []
    for name in SETS:
        words = ["evaluate", "run-whole", name, "--split", "train", "--json", f"{name}.json"]
        done(root, *words)
        made.append(json.loads((root / f"{name}.json").read_text()))
    for key in ("images", "loss", "top1", "per_class", "confusions", "worst"):
        assert made[0][key] == made[1][key], key


@pytest.mark.exact
def test_predictions_are_the_same(root: Path) -> None:
    for name in SETS:
        done(root, "predict", "run-whole", name, "--out", f"{name}.csv")
    assert (root / "whole.csv").read_text() == (root / "parted.csv").read_text()


def test_it_is_shown_and_verified_like_any_set(root: Path) -> None:
    assert "all hashes match" in done(root, "verify", "parted")
    for name in SETS:
        done(root, "show-batch", name, "--sheet", f"{name}.png", "--image-size", "32")
    assert (root / "whole.png").read_bytes() == (root / "parted.png").read_bytes()
