"""A run is exported in every format: the same answers, also without Stoker."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file

from exports import answers_without_stoker, code_blocks, config_of, tiny_run
from samples import picture
from stoker.cli import main
from stoker.commit import sha256_file
from stoker.errors import BadRequest, StokerError
from stoker.show.use.export import lines
from stoker.survive.manifest import MARKER
from stoker.use.classifier import Classifier, open_classifier
from stoker.use.export import agreement
from stoker.use.export.figures import EvaluationFigures
from stoker.use.export.write import ExportOptions, ExportReport, export_run
from tiny_runs import one_thread_alone

__all__ = ["one_thread_alone"]
CPU = torch.device("cpu")
ALL = ("safetensors", "torch", "onnx")
SIDE = 8


@pytest.fixture(scope="module")
def run_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_run(tmp_path_factory.mktemp("export"), ema=True, ema_decay=0.9, epochs=16, lr=0.05)


@pytest.fixture(scope="module")
def exported(run_path: Path) -> tuple[Path, ExportReport]:
    pytest.importorskip("onnxscript")
    out = run_path.parent / "out"
    return out, export_run(run_path, out, ExportOptions(ALL))


def some_images(count: int = 5) -> torch.Tensor:
    images = [np.asarray(picture(n % 3, 900 + n, (SIDE, SIDE))) for n in range(count)]
    return torch.from_numpy(np.stack(images))


@pytest.mark.exact
def test_weights_give_the_same_bits(exported: tuple[Path, ExportReport], run_path: Path) -> None:
    own, again = open_classifier(run_path, CPU), open_classifier(exported[0], CPU)
    assert torch.equal(own.logits(some_images()), again.logits(some_images()))
    assert (own.classes, own.preprocessing) == (again.classes, again.preprocessing)
    assert again.recipe.image_size == SIDE


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("file", ["model.pt2", "model.onnx"])
def test_programs_take_any_number_of_images(
    exported: tuple[Path, ExportReport], run_path: Path, file: str, count: int
) -> None:
    answer = agreement.ANSWERS[file](exported[0] / file)
    own = open_classifier(run_path, CPU).logits(some_images(count))
    logits, probabilities = answer(some_images(count))
    torch.testing.assert_close(logits, own, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(probabilities, own.softmax(1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("file", ["model.pt2", "model.onnx"])
@pytest.mark.parametrize("wrong", ["size", "type", "order"])
def test_programs_refuse_other_inputs(
    exported: tuple[Path, ExportReport], file: str, wrong: str
) -> None:
    images = some_images()
    if wrong == "size":
        images = images[:, :-1]
    elif wrong == "order":
        images = images.permute(0, 3, 1, 2).contiguous()
    else:
        images = images / 255
    with pytest.raises(Exception, match=r"."):
        agreement.ANSWERS[file](exported[0] / file)(images)


def only(out: Path, target: Path, *names: str) -> Path:
    """A copy of an export with these model files alone."""
    shutil.copytree(out, target)
    config = config_of(out)
    for name in ("model.safetensors", "model.pt2", "model.onnx"):
        if name not in names:
            (target / name).unlink()
            del config["stoker"]["files"][name]
    (target / "config.json").write_text(json.dumps(config))
    return target


def test_a_graph_alone_is_used_by_onnxruntime(
    exported: tuple[Path, ExportReport], run_path: Path, tmp_path: Path
) -> None:
    classifier = open_classifier(only(exported[0], tmp_path / "out", "model.onnx"), CPU)
    own = open_classifier(run_path, CPU).logits(some_images())
    torch.testing.assert_close(classifier.logits(some_images()), own, atol=1e-5, rtol=1e-5)
    with pytest.raises(BadRequest, match="no features"):
        classifier.model.get_classifier()  # type: ignore[operator]


def test_a_program_alone_is_not_loaded(exported: tuple[Path, ExportReport], tmp_path: Path) -> None:
    out = only(exported[0], tmp_path / "out", "model.pt2")
    with pytest.raises(BadRequest, match=r"only model\.pt2"):
        open_classifier(out, CPU)


def test_an_export_has_one_checkpoint(exported: tuple[Path, ExportReport]) -> None:
    with pytest.raises(BadRequest, match="no other checkpoints"):
        open_classifier(exported[0], CPU, "last")


def test_what_is_written(exported: tuple[Path, ExportReport], run_path: Path) -> None:
    out, report = exported
    names = {"model.safetensors", "model.pt2", "model.onnx", "config.json", "classes.txt"}
    assert {file.name for file in out.iterdir()} == {*names, "README.md"}
    assert [item for item in out.parent.iterdir() if item.name.startswith(".")] == []
    facts = config_of(out)["stoker"]
    for name, listed in facts["files"].items():
        assert listed["sha256"] == hashlib.sha256((out / name).read_bytes()).hexdigest()
    with safe_open(out / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
    assert (out / "classes.txt").read_text().splitlines() == facts["classes"]
    assert facts["compared_on"] == "15 validation images" == report.checked_on
    assert report.figures is not None
    assert facts["figures"]["images"] == report.figures.images == 15
    mode = {(out / name).stat().st_mode & 0o777 for name in names}
    assert mode == {(out / "README.md").stat().st_mode & 0o777}


def test_the_moving_average_is_exported(
    exported: tuple[Path, ExportReport], run_path: Path
) -> None:
    name = (run_path / "best").read_text().strip()
    kept = load_file(run_path / "checkpoints" / name / "ema.safetensors")
    weights = load_file(exported[0] / "model.safetensors")
    assert weights.keys() == kept.keys()
    assert all(torch.equal(weights[key], kept[key]) for key in kept)


def test_nothing_names_this_machine(exported: tuple[Path, ExportReport], run_path: Path) -> None:
    places = [str(run_path.parent), str(Path(torch.__file__).parents[1]), str(Path.home())]
    for file in exported[0].iterdir():
        data = file.read_bytes()
        assert not [place for place in places if place.encode() + b"/" in data], file.name


def test_the_cards_code_runs_without_stoker(
    exported: tuple[Path, ExportReport], run_path: Path
) -> None:
    out, classifier = exported[0], open_classifier(run_path, CPU)
    blocks = code_blocks((out / "README.md").read_text())
    assert len(blocks) == 2
    images = some_images(3)
    wanted = [classifier.classes[n] for n in classifier.logits(images).argmax(1).tolist()]
    assert len({*wanted}) == 3  # it has learnt something
    sources = []
    for number, image in enumerate(images):
        Image.fromarray(image.numpy()).save(out.parent / f"{number}.png")
        sources += [block.replace("photo.jpg", f"../{number}.png") for block in blocks]
    answers = answers_without_stoker(out, sources)
    assert answers == [name for name in wanted for _ in blocks]


def test_without_the_set_images_are_generated(run_path: Path, tmp_path: Path) -> None:
    classifier = open_classifier(run_path, CPU)
    record = json.loads((run_path / "run.json").read_text())
    for data, fingerprint in ((tmp_path, record["fingerprint"]), (record["data"], "another")):
        check = agreement.check_images(classifier, str(data), fingerprint)
        assert (check.kind, check.images.shape) == ("generated", (64, SIDE, SIDE, 3))


class Wrong:
    """A program whose answers are not the model's."""

    def __init__(self, classifier: Classifier, factor: float) -> None:
        self._classifier, self._factor = classifier, factor

    def __call__(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self._classifier.logits(images) * self._factor
        return logits, logits.softmax(1)


@pytest.mark.parametrize("factor", [1.1, float("nan")])
def test_a_program_with_other_answers_is_not_exported(
    run_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factor: float
) -> None:
    classifier = open_classifier(run_path, CPU)
    monkeypatch.setitem(agreement.ANSWERS, "model.pt2", lambda path: Wrong(classifier, factor))
    check = agreement.CheckImages(some_images(), "validation")
    with pytest.raises(StokerError, match="other answers"):
        agreement.difference(tmp_path / "model.pt2", classifier, check)


def test_a_run_of_an_older_version_has_no_storage(run_path: Path, tmp_path: Path) -> None:
    older = shutil.copytree(run_path, tmp_path / "run")
    for folder in (older / "checkpoints").iterdir():
        file = folder / "manifest.json"
        manifest = json.loads(file.read_text())
        del manifest["storage"]
        file.write_text(json.dumps(manifest))
        (folder / MARKER).write_text(sha256_file(file))
    export_run(older, tmp_path / "out", ExportOptions())
    assert open_classifier(tmp_path / "out", CPU).preprocessing.storage.max_side == 500


def test_figures_belong_to_the_checkpoint(run_path: Path, tmp_path: Path) -> None:
    changed = shutil.copytree(run_path, tmp_path / "run")
    for file in changed.glob("attempts/*/rank0.jsonl"):
        kept = [line for line in file.read_text().splitlines() if '"evaluation"' not in line]
        file.write_text("\n".join(kept) + "\n")
    assert export_run(changed, tmp_path / "out", ExportOptions()).figures is None
    assert "did not evaluate" in (tmp_path / "out" / "README.md").read_text()


def test_classes_of_the_kept_evaluation(run_path: Path, tmp_path: Path) -> None:
    changed = shutil.copytree(run_path, tmp_path / "run")
    position = open_classifier(changed, CPU).facts["position"]
    rows = {"class0": [5, 5, 5], "class1": [5, 2, 5], "class2": [0, 0, 0]}
    kept = json.loads((changed / "evaluation.json").read_text())
    kept |= {"position": position, "classes": [*rows], "per_class": [*rows.values()]}
    kept |= {"images": 10, "top1": 7, "top5": 10, "confusions": [], "worst": []}
    (changed / "evaluation.json").write_text(json.dumps(kept))
    figures = export_run(changed, tmp_path / "out", ExportOptions()).figures
    assert figures is not None
    assert figures.macro == pytest.approx(0.7)
    assert [row.name for row in figures.worst] == ["class1", "class0"]
    for wrong in ({"position": 1}, {"per_class": [[1, 2, 3]] * 3}, {"classes": ["a"]}):
        (changed / "evaluation.json").write_text(json.dumps(kept | wrong))
        options = ExportOptions(overwrite=True)
        figures = export_run(changed, tmp_path / "out", options).figures
        assert figures is not None
        assert figures.macro is None


@pytest.mark.rotates(3)
def test_the_commands_of_the_docs_run(
    run_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (Path(__file__).parents[4] / "docs" / "using.md").read_text()
    section = text.partition("\n## Export\n")[2].partition("\n## ")[0]
    commands = re.findall(r"^stoker (.*)$", section, flags=re.MULTILINE)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "mine").symlink_to(run_path)
    monkeypatch.chdir(tmp_path)
    assert [main(command.split()) for command in commands] == [0, 0]
    assert (tmp_path / "mine-everywhere" / "model.onnx").is_file()


def test_golden_lines(exported: tuple[Path, ExportReport]) -> None:
    from golden import check_golden

    report = exported[1]
    small = agreement.Difference(1.5e-7, 0.0, 0, 2.0)
    other = agreement.Difference(2e-5, 3e-6, 1, 2.0)
    files = {"model.safetensors": 1_700_000, "model.pt2": 1_800_000, "model.onnx": 1_750_000}
    fields = vars(report) | {"origin": "runs/mine, checkpoint 000000008", "bytes": files}
    fields |= {
        "figures": EvaluationFigures(15, 14, 15),
        "differences": {"model.pt2": small, "model.onnx": other},
    }
    generated = fields | {"checked_on": "64 generated images", "figures": None}
    weights = fields | {"bytes": {"model.safetensors": 1_700_000}}
    check_golden(
        "export",
        [
            line
            for each in (fields, generated, weights)
            for line in [*lines(ExportReport(**each), Path("model")), ""]
        ],
    )
