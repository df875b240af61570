"""A model of the user's own is used and exported, and its code runs with consent only."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from exports import answers_without_stoker, code_blocks
from golden import check_golden
from own_models import NET, write
from stoker.errors import BadRequest, StokerError
from stoker.recipe.resolve import resolve, with_code
from stoker.run.model_code import code_to_train
from stoker.train.attempt.session import train
from stoker.train.model import own_code
from stoker.train.model.own_code import trust
from stoker.use.classifier import NO_CODE, Classifier, CodeConsent, open_classifier
from stoker.use.export.write import ExportOptions, export_run
from tiny_runs import FLAGS, one_thread_alone, tiny_set

__all__ = ["one_thread_alone"]
CPU = torch.device("cpu")
TRUSTED = CodeConsent(trusted=True)
IMAGES = torch.arange(2 * 8 * 8 * 3, dtype=torch.uint8).reshape(2, 8, 8, 3)


@pytest.fixture(autouse=True)
def no_code_is_trusted_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_code, "_trusted", {})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with net.py, a run that it trained, and an export of the run."""
    root = tmp_path_factory.mktemp("own")
    data = tiny_set(root)
    named = resolve(None, FLAGS | {"model": f"{write(root)}:build", "epochs": 1})
    code = code_to_train(named, None)
    trust(code)
    assert code
    assert train(data, with_code(named, code), root / "run") == "finished"
    export_run(root / "run", root / "out", ExportOptions(["safetensors"], consent=TRUSTED))
    return root


def opened(path: Path, consent: CodeConsent = NO_CODE) -> Classifier:
    return open_classifier(path, CPU, consent=consent)


@pytest.mark.parametrize("name", ["run", "out"])
def test_its_code_needs_consent(place: Path, name: str) -> None:
    with pytest.raises(BadRequest, match="--trust-code"):
        opened(place / name)
    logits = opened(place / name, TRUSTED).logits(IMAGES)
    own = CodeConsent(file=str(place / "net.py"))
    assert torch.equal(opened(place / name, own).logits(IMAGES), logits)
    assert logits.shape == (2, 3)


def test_run_and_export_answer_alike(place: Path) -> None:
    one, other = (opened(place / name, TRUSTED).logits(IMAGES) for name in ("run", "out"))
    assert torch.equal(one, other)


def test_another_file_is_no_consent(place: Path, tmp_path: Path) -> None:
    other = CodeConsent(file=str(write(tmp_path, NET + "# changed\n")))
    for name in ("run", "out"):
        with pytest.raises(BadRequest):
            opened(place / name, other)
        with pytest.raises(BadRequest, match="no such file"):
            opened(place / name, CodeConsent(file=str(tmp_path / "none.py")))


def test_the_code_of_an_export_is_not_changed_unnoticed(place: Path, tmp_path: Path) -> None:
    target = shutil.copytree(place / "out", tmp_path / "out")
    (target / "model.py").write_text(NET.replace("0.2", "0.3"))
    with pytest.raises(StokerError, match="damaged"):
        opened(target, TRUSTED)


def edited(source: Path, target: Path, **facts: Any) -> Path:
    shutil.copytree(source, target)
    config = json.loads((target / "config.json").read_text())
    config["stoker"] |= facts
    (target / "config.json").write_text(json.dumps(config))
    return target


def test_a_wrong_config_is_refused(place: Path, tmp_path: Path) -> None:
    config = json.loads((place / "out" / "config.json").read_text())["stoker"]
    without = {name: facts for name, facts in config["files"].items() if name != "model.py"}
    wrong = [{"model_code": "0" * 64}, {"files": without}, {"model": "net.py:other"}]
    for number, facts in enumerate(wrong):
        with pytest.raises(StokerError):
            opened(edited(place / "out", tmp_path / str(number), **facts), TRUSTED)


def test_refusals_golden(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    lines = []
    for name in ("run", "out"):
        with pytest.raises(BadRequest) as refusal:
            opened(Path(name))
        lines.append(str(refusal.value))
    check_golden("use_own_models", lines)


def test_the_card_says_how_to_use_it(place: Path) -> None:
    card = (place / "out" / "README.md").read_text()
    assert "from model import build" in card
    assert "library_name: stoker" in card
    classifier = opened(place / "out", TRUSTED)
    (block,) = code_blocks(card)
    Image.fromarray(IMAGES[0].numpy()).save(place / "photo.png")
    beside = f"import sys; sys.path.insert(0, '')\n{block.replace('photo.jpg', '../photo.png')}"
    answer = classifier.classes[int(classifier.logits(IMAGES[:1]).argmax())]
    assert answers_without_stoker(place / "out", [beside]) == [answer]
