"""A model is evaluated on other sets: classes in another order, missing, unknown, one alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from golden import check_golden
from samples import COLOURS, picture
from stoker.data.dataset import Dataset
from stoker.data.images.encode import Storage
from stoker.data.packing.pack import pack
from stoker.errors import BadRequest, StokerError
from stoker.recipe.resolve import resolve
from stoker.run.directory import Run
from stoker.train.attempt.session import train
from stoker.train.process_group import Ranks
from stoker.use import evaluate as use_evaluate
from stoker.use.classifier import Classifier, open_classifier
from stoker.use.evaluate import EvaluateOptions, Evaluation, Mirrored, evaluate, stored_image
from stoker.use.evaluation_set import evaluation_out, evaluation_set, is_source
from stoker.use.selection import select, split_to_evaluate, storage_note
from tiny_runs import FLAGS, one_thread_alone, tiny_set

__all__ = ["one_thread_alone"]
CPU = torch.device("cpu")
ALONE = Ranks(0, 1, 0, 1, CPU)
RAW = Storage(codec="raw")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("evaluate")
    data = tiny_set(root)
    assert train(data, resolve(None, FLAGS | {"epochs": 2}), root / "run") == "finished"
    return data, root / "run"


@pytest.fixture(scope="module")
def classifier(trained: tuple[Path, Path]) -> Classifier:
    return open_classifier(trained[1], CPU, "last")


def folder(root: Path, **classes: int) -> Path:
    """ROOT/CLASS with the validation images 20 to 24 of the classes by number."""
    for name, label in classes.items():
        (root / name).mkdir(parents=True)
        for number in range(20, 25):
            picture(label, number, (8, 8)).save(root / name / f"{number}.png")
    return root


def measure(
    classifier: Classifier, data: Path, split: str = "", options: EvaluateOptions | None = None
) -> Evaluation:
    dataset = Dataset(data)
    name = split_to_evaluate(dataset, split, classifier.facts["fingerprint"])
    selection = select(dataset, name, classifier.classes)
    options = options or EvaluateOptions(threads=1, worst=100)
    evaluation = evaluate(classifier, selection, ALONE, options)
    assert evaluation is not None
    return evaluation


def packed(root: Path, **classes: int) -> Path:
    photos = folder(root / "photos", **classes)
    return pack(photos, root / "set", storage=RAW, val_share=0, allow_one_class=True, workers=1)


@pytest.mark.exact
def test_the_runs_own_figures_come_out_again(
    trained: tuple[Path, Path], classifier: Classifier
) -> None:
    kept = Run(trained[1]).evaluation()
    assert kept is not None
    assert measure(classifier, trained[0]).report == kept.report


@pytest.mark.exact
@pytest.mark.parametrize("batch_size", [1, 4, 100])
def test_the_counts_are_those_at_any_batch_size(
    trained: tuple[Path, Path], classifier: Classifier, batch_size: int
) -> None:
    usual = measure(classifier, trained[0]).report
    other = measure(classifier, trained[0], options=EvaluateOptions(batch_size)).report
    assert (other.per_class, other.confusions) == (usual.per_class, usual.confusions)


def test_classes_are_matched_by_name(classifier: Classifier, tmp_path: Path) -> None:
    path = packed(tmp_path, class0=0, class1=1, class2=2)
    labels = Dataset(path).split("train").labels
    permuted = Dataset(path)
    permuted.description["classes"] = ["class2", "class0", "class1"]
    selection = select(permuted, "train", classifier.classes)
    assert (selection.labels == np.array([2, 0, 1])[labels]).all()
    assert selection.left_out == {}


@pytest.mark.exact
def test_some_of_the_classes_are_enough(
    trained: tuple[Path, Path], classifier: Classifier, tmp_path: Path
) -> None:
    usual = measure(classifier, trained[0]).report
    report = measure(classifier, packed(tmp_path, class2=2)).report
    assert report.per_class == [(0, 0, 0), (0, 0, 0), usual.per_class[2]]
    assert report.images == 5


@pytest.mark.exact
def test_unknown_classes_are_left_out(
    trained: tuple[Path, Path], classifier: Classifier, tmp_path: Path
) -> None:
    usual = measure(classifier, trained[0]).report
    data = packed(tmp_path, aardvark=3, class0=0, class1=1, zebra=4)
    selection = select(Dataset(data), "train", classifier.classes)
    assert selection.left_out == {"aardvark": 5, "zebra": 5}
    report = measure(classifier, data).report
    assert report.per_class == [*usual.per_class[:2], (0, 0, 0)]
    split = Dataset(data).split("train")
    names = [row.path.split("/")[0] for row in report.worst]
    assert names == [Dataset(data).classes[split.labels[row.sample]] for row in report.worst]


def test_refusals_golden(
    trained: tuple[Path, Path],
    classifier: Classifier,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    other = packed(Path("other"), lion=0, tiger=1)
    splits = packed(Path("splits"), test=0)
    mixed = packed(Path("mixed"), class0=0, lion=1)
    description = Dataset(mixed)
    lines = []
    attempts = {
        "nothing in common": lambda: select(Dataset(other), "train", classifier.classes),
        "splits in the place of classes": lambda: select(Dataset(splits), "train", ["cat"]),
        "many classes": lambda: select(Dataset(other), "train", [f"c{n}" for n in range(99)]),
        "a split that is not there": lambda: split_to_evaluate(description, "vall", ""),
        "only training images": lambda: split_to_evaluate(description, "", description.fingerprint),
        "too many images": lambda: measure(classifier, mixed),
    }
    monkeypatch.setattr(use_evaluate, "MOST_KEPT", 3)
    for name, attempt in attempts.items():
        with pytest.raises(BadRequest) as caught:
            attempt()
        lines.append(f"{name}: {caught.value}")
    lines.append(f"stored otherwise: {storage_note({'codec': 'raw'}, {'codec': 'jpeg'})}")
    check_golden("use_evaluate", lines)


def test_no_image_of_a_known_class(classifier: Classifier, tmp_path: Path) -> None:
    data = packed(tmp_path, class0=0, lion=1)
    dataset = Dataset(data)
    split = dataset.split("train")
    split.labels = np.ones_like(split.labels)  # all images are of the unknown class
    dataset.split = lambda name: split  # type: ignore[method-assign]
    with pytest.raises(BadRequest, match="no image in train of a class that the model knows"):
        select(dataset, "train", classifier.classes)


def test_a_set_for_evaluation_has_all_images_as_its_split(tmp_path: Path) -> None:
    dataset = Dataset(packed(tmp_path, class0=0, class1=1))
    assert split_to_evaluate(dataset, "", "another set") == "train"


def test_equal_storage_needs_no_note() -> None:
    assert storage_note({"codec": "raw", "quality": 1}, {"codec": "raw", "quality": 2}) is None


class Sided(nn.Module):
    """Its logits depend on the side on which the light is."""

    def forward(self, images: Tensor) -> Tensor:
        half = images.shape[3] // 2
        return torch.stack([images[..., :half].mean((1, 2, 3)), images.mean((1, 2, 3))], 1)


def test_the_mirror_image_counts_as_much() -> None:
    images = torch.rand(3, 3, 4, 6)
    plain, mirrored = Sided()(images), Sided()(images.flip(3))
    assert torch.equal(Mirrored(Sided())(images), (plain + mirrored) / 2)
    assert torch.allclose(Mirrored(Sided())(images.flip(3)), Mirrored(Sided())(images))


def test_mirrored_figures_are_others(trained: tuple[Path, Path], classifier: Classifier) -> None:
    plain = measure(classifier, trained[0]).report
    mirrored = measure(classifier, trained[0], options=EvaluateOptions(hflip=True)).report
    assert mirrored.images == plain.images
    assert mirrored.loss != plain.loss


def test_a_lack_of_memory_names_the_flag(
    trained: tuple[Path, Path], classifier: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(use_evaluate.ChosenEvaluator, "run_with_answers", fail)
    with pytest.raises(StokerError, match="lower --batch-size"):
        measure(classifier, trained[0])


@pytest.mark.parametrize("codec", ["raw", "jpeg"])
def test_stored_images_keep_their_shape(tmp_path: Path, codec: str) -> None:
    for label in range(2):
        (tmp_path / "photos" / f"class{label}").mkdir(parents=True)
        picture(label, 1, (60, 30)).save(tmp_path / "photos" / f"class{label}" / "1.png")
    path = pack(
        tmp_path / "photos", tmp_path / "set", storage=Storage(codec=codec), val_share=0, workers=1
    )
    split = Dataset(path).split("train")
    assert stored_image(split, 0, 100).shape == (30, 60, 3)
    small = stored_image(split, 0, 20)
    assert small.shape == (10, 20, 3)
    colour = small.mean((0, 1))
    assert np.abs(colour - COLOURS[int(split.labels[0])]).max() < 30


class TestEvaluationSet:
    @pytest.fixture(autouse=True)
    def here(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)

    def made(self, source: str, trained_on: str = "", storage: Storage = RAW) -> tuple[Path, bool]:
        self.lines: list[str] = []
        made = evaluation_set(source, storage, trained_on, self.lines.append)
        return made.path, made.is_new

    def test_all_images_are_packed_and_found_again(self) -> None:
        folder(Path("new"), class0=0)
        path, is_new = self.made("new")
        assert is_new
        assert Dataset(path).images("train") == 5
        assert Dataset(path).description["storage"]["codec"] == "raw"
        assert self.made("new") == (path, False)

    def test_each_way_of_storing_has_a_folder(self) -> None:
        assert evaluation_out("a/new.tar.gz", Storage()) == Path("new-evaluation")
        assert evaluation_out("new", RAW) != evaluation_out("new", Storage(max_side=64))

    def test_the_training_set_is_not_packed_again(self) -> None:
        folder(Path("photos"), class0=0, class1=1)
        own = pack("photos", workers=1)
        print_of_own = Dataset(own).fingerprint
        assert self.made("photos", print_of_own) == (own, False)

    def test_another_folder_of_the_same_name_is_not_the_training_set(self) -> None:
        folder(Path("photos"), class0=0, class1=1)
        own = pack("photos", workers=1)
        folder(Path("elsewhere/photos"), class0=2)
        path, is_new = self.made("elsewhere/photos", Dataset(own).fingerprint)
        assert is_new
        assert path != own

    def test_archives_have_a_source_too(self) -> None:
        folder(Path("photos"), class0=0, class1=1)
        archive = shutil.make_archive("photos", "tar", "photos")
        own = pack(archive, workers=1)
        assert is_source(own, "photos.tar")
        assert not is_source(own, "photos")
        for wrong in ("[]", "{", '{"stamp": 3}', '{"stamp": []}'):
            (own / ".source.json").write_text(wrong)
            assert not is_source(own, "photos.tar")

    def test_lines_golden(self) -> None:
        folder(Path("new"), class0=0)
        lines = []
        self.made("new", storage=Storage())
        lines += self.lines
        self.made("new", storage=Storage())
        lines += self.lines
        picture(0, 99, (8, 8)).save("new/class0/99.png")
        with pytest.raises(BadRequest) as caught:
            self.made("new", storage=Storage())
        lines.append(str(caught.value))
        folder(Path("photos"), class0=0, class1=1)
        self.made("photos", Dataset(pack("photos", workers=1)).fingerprint)
        check_golden("use_evaluation_set", [*lines, *self.lines])
