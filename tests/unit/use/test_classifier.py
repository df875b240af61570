"""A run's own evaluation comes out again from its directory; nothing wrong in it is used."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from stoker.commit import sha256_file
from stoker.data.dataset import Dataset
from stoker.data.loading.crops import View
from stoker.data.loading.loader import BatchLoader
from stoker.data.loading.order import InOrder
from stoker.errors import BadRequest, StokerError
from stoker.recipe.resolve import resolve
from stoker.run.directory import Run
from stoker.survive.manifest import MARKER
from stoker.train.attempt.session import train
from stoker.train.evaluate import Accuracy, Evaluator
from stoker.train.process_group import Ranks
from stoker.use.classifier import Classifier, open_classifier
from tiny_runs import FLAGS, one_thread_alone, tiny_set

__all__ = ["one_thread_alone"]
CPU = torch.device("cpu")
EVALUATIONS = 3


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A packed set, and the run of three epochs on it, with a moving average."""
    root = tmp_path_factory.mktemp("classifier")
    data = tiny_set(root)
    flags = FLAGS | {"epochs": EVALUATIONS, "ema": True, "keep_checkpoints": 9}
    assert train(data, resolve(None, flags), root / "run") == "finished"
    return data, root / "run"


def accuracy(classifier: Classifier, data: Path) -> Accuracy:
    split = Dataset(data).split("val")
    view = View(crop_pct=classifier.preprocessing.crop_pct)
    loader = BatchLoader(split, InOrder(), view, threads=1)
    evaluator = Evaluator(loader, Ranks(0, 1, 0, 1, CPU), classifier.recipe.eval_batch_size)
    size = classifier.preprocessing.image_size
    found = evaluator.run(classifier.model, size, classifier.to_input)
    loader.close()
    assert found is not None
    return found


@pytest.mark.exact
@pytest.mark.parametrize("which", ["best", "last"])
def test_evaluates_as_the_run_did(trained: tuple[Path, Path], which: str) -> None:
    data, run_path = trained
    classifier = open_classifier(run_path, CPU, which)
    own = {event["position"]: event for event in Run(run_path).merged("evaluation")}
    event = own[classifier.facts["position"]]
    again = accuracy(classifier, data)
    assert (again.top1, again.top5, again.loss) == (event["top1"], event["top5"], event["loss"])
    assert classifier.classes == Dataset(data).classes
    assert classifier.preprocessing.storage.codec == "raw"


def test_every_checkpoint_has_a_name(trained: tuple[Path, Path]) -> None:
    _, run_path = trained
    for folder in (run_path / "checkpoints").iterdir():
        assert folder.name in open_classifier(run_path, CPU, folder.name).origin


@pytest.mark.parametrize("name", ["000000099", "../best", "best/", "", "COMMITTED"])
def test_refuses_other_names(trained: tuple[Path, Path], name: str) -> None:
    with pytest.raises(BadRequest, match="no such checkpoint"):
        open_classifier(trained[1], CPU, name)


def test_refuses_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="is not a run"):
        open_classifier(tmp_path, CPU)


def edited(run_path: Path, target: Path, **facts: Any) -> Path:
    """A copy of a run whose newest manifests say something else, with the right marker."""
    shutil.copytree(run_path, target)
    for folder in (target / "checkpoints").iterdir():
        file = folder / "manifest.json"
        manifest = json.loads(file.read_text()) | facts
        file.write_text(json.dumps({k: v for k, v in manifest.items() if v is not ...}))
        (folder / MARKER).write_text(sha256_file(file))
    return target


INPUT = {"image_size": 8, "crop_pct": 1.0, "mean": [0.5] * 3, "std": [0.2] * 3}


@pytest.mark.parametrize(
    "facts",
    [
        {"classes": None},
        {"classes": ["a", "a", "b"]},
        {"classes": ["a", "b"]},
        {"input": []},
        {"input": INPUT | {"image_size": 0}},
        {"input": INPUT | {"image_size": 1 << 20}},
        {"input": INPUT | {"crop_pct": 0}},
        {"input": INPUT | {"mean": [0.5]}},
        {"input": INPUT | {"std": [0.0, 0.2, 0.2]}},
        {"input": INPUT | {"std": [float("nan")] * 3}},
        {"storage": []},
        {"storage": {"codec": "gif"}},
        {"storage": {"max_side": "many"}},
    ],
)
def test_refuses_a_wrong_manifest(
    trained: tuple[Path, Path], tmp_path: Path, facts: dict[str, Any]
) -> None:
    with pytest.raises(StokerError):
        open_classifier(edited(trained[1], tmp_path / "run", **facts), CPU)


def test_images_that_are_too_small_for_the_model(
    trained: tuple[Path, Path], tmp_path: Path
) -> None:
    """The size in a manifest may be another than the one that training has tried."""
    run = edited(trained[1], tmp_path / "run", input=INPUT | {"image_size": 7})
    with pytest.raises(StokerError, match=r"manifest\.json is damaged: .* images of 7 px"):
        open_classifier(run, CPU)


def test_an_older_run_has_no_storage(trained: tuple[Path, Path], tmp_path: Path) -> None:
    older = edited(trained[1], tmp_path / "run", storage=...)
    assert open_classifier(older, CPU).preprocessing.storage.max_side == 500


def test_refuses_a_newer_recipe(trained: tuple[Path, Path], tmp_path: Path) -> None:
    target = shutil.copytree(trained[1], tmp_path / "run")
    record = json.loads((target / "run.json").read_text())
    record["values"]["tomorrow"] = 1
    (target / "run.json").write_text(json.dumps(record))
    with pytest.raises(BadRequest, match="unknown key 'tomorrow'"):
        open_classifier(target, CPU)


def test_refuses_damaged_weights(trained: tuple[Path, Path], tmp_path: Path) -> None:
    target = shutil.copytree(trained[1], tmp_path / "run")
    for folder in (target / "checkpoints").iterdir():
        data = bytearray((folder / "ema.safetensors").read_bytes())
        data[-1] ^= 1
        (folder / "ema.safetensors").write_bytes(data)
    with pytest.raises(StokerError, match="damaged"):
        open_classifier(target, CPU)
