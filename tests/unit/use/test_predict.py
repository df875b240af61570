"""Answers are those of the run's own evaluation, from a packed set and from its source files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from samples import image_folder
from stoker.data.dataset import Dataset
from stoker.data.packing.pack import pack
from stoker.errors import BadRequest, StokerError
from stoker.run.directory import Run
from stoker.use.classifier import Classifier, open_classifier
from stoker.use.image_stream import image_sources
from stoker.use.predict import NOT_FINITE, NamedAnswers, Predictor
from tiny_runs import one_thread_alone
from unit.use.conftest import Trained

__all__ = ["one_thread_alone"]
CPU = torch.device("cpu")


def predicted(
    run: Path | Classifier, *words: Path, split: str = "", **options: Any
) -> NamedAnswers:
    """All answers as one."""
    classifier = run if isinstance(run, Classifier) else open_classifier(run, CPU)
    predictor = Predictor(classifier, **options)
    parts = list(predictor.answers(image_sources([*map(str, words)], split)))
    predictor.close()
    return joined(parts)


def joined(parts: Sequence[NamedAnswers]) -> NamedAnswers:
    features = [part.features for part in parts if part.features is not None]
    return NamedAnswers(
        [name for part in parts for name in part.names],
        [error for part in parts for error in part.errors],
        np.concatenate([part.classes for part in parts]),
        np.concatenate([part.probabilities for part in parts]),
        np.concatenate(features) if features else None,
    )


@pytest.mark.exact
def test_accuracy_from_answers_is_the_evaluation_of_the_run(stored_run: Trained) -> None:
    classifier = open_classifier(stored_run.run, CPU, "last")
    event = Run(stored_run.run).merged("evaluation")[-1]
    assert event["position"] == classifier.facts["position"]
    answers = predicted(classifier, stored_run.packed, split="val", top=5)
    labels = Dataset(stored_run.packed).split("val").labels
    right = answers.classes == labels[:, None]
    assert (right[:, 0].sum(), right.any(1).sum()) == (event["top1"], event["top5"])
    # With three classes all probabilities are there: the loss comes out too.
    own = answers.probabilities.astype(np.float64)[right]
    assert -np.log(own).mean() == pytest.approx(event["loss"], rel=1e-6)
    assert len(own) == event["images"] == 18


@pytest.mark.exact
def test_source_files_get_the_answers_of_their_stored_copies(stored_run: Trained) -> None:
    stored = predicted(stored_run.run, stored_run.packed, top=3)
    words = [stored_run.photos / name for name in stored.names]
    files = predicted(stored_run.run, *words[:48], *words[48:], top=3)
    assert files.names == [str(word) for word in words]
    assert stored.errors == files.errors == [None] * 66
    # Batches of the set end with its splits, and a batch's size may change the last bits.
    np.testing.assert_array_equal(files.classes, stored.classes)
    np.testing.assert_allclose(files.probabilities, stored.probabilities, rtol=1e-5)
    same = predicted(stored_run.run, *words[:48], top=3, batch_size=7)
    np.testing.assert_array_equal(same.probabilities, stored.probabilities[:48])


@pytest.mark.exact
def test_threads_change_no_bit(small_run: Trained) -> None:
    one, four = (
        predicted(small_run.run, small_run.photos, threads=threads, features=True)
        for threads in (1, 4)
    )
    assert one.names == four.names == sorted(one.names)
    np.testing.assert_array_equal(one.probabilities, four.probabilities)
    assert one.features is not None
    assert four.features is not None
    np.testing.assert_array_equal(one.features, four.features)


def test_broken_images_keep_their_place_and_change_no_other(
    small_run: Trained, tmp_path: Path
) -> None:
    good = sorted((small_run.photos / "train" / "class1").iterdir())[:6]
    bad = tmp_path / "bad.jpg"
    bad.write_bytes(good[0].read_bytes()[:200])
    missing = tmp_path / "missing.jpg"
    missing.symlink_to("nothing")
    answers = predicted(small_run.run, good[0], bad, *good[1:], missing)
    alone = predicted(small_run.run, *good)
    assert [error is not None for error in answers.errors] == [False, True, *[False] * 5, True]
    assert answers.errors[1] is not None
    assert answers.errors[1].startswith("damaged")
    assert answers.errors[-1] == "cannot read: No such file or directory"
    kept = [0, 2, 3, 4, 5, 6]
    np.testing.assert_array_equal(answers.classes[kept], alone.classes)
    np.testing.assert_allclose(answers.probabilities[kept], alone.probabilities, rtol=1e-5)


def test_the_same_image_twice_is_two_answers(small_run: Trained) -> None:
    image = next((small_run.photos / "val" / "class0").iterdir())
    answers = predicted(small_run.run, image, image)
    assert answers.names == [str(image)] * 2
    np.testing.assert_array_equal(answers.probabilities[0], answers.probabilities[1])


class Fixed(nn.Module):
    """A model that always says the same."""

    def __init__(self, logits: list[float]) -> None:
        super().__init__()
        self.logits = torch.tensor(logits)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.logits.repeat(len(x), 1)


def with_model(run: Path, model: nn.Module) -> Classifier:
    opened = open_classifier(run, CPU)
    return Classifier(**{**vars(opened), "model": model})


@pytest.mark.parametrize(
    ("logits", "order"),
    [([0.0, 0.0, 0.0], [0, 1, 2]), ([0.0, 1.0, 1.0], [1, 2, 0]), ([2.0, 1.0, 3.0], [2, 0, 1])],
)
def test_of_equal_logits_the_lower_class_comes_first(
    small_run: Trained, logits: list[float], order: list[int]
) -> None:
    image = next((small_run.photos / "val" / "class0").iterdir())
    answers = predicted(with_model(small_run.run, Fixed(logits)), image, top=9)
    assert answers.classes.tolist() == [order]
    assert answers.probabilities.sum() == pytest.approx(1)


@pytest.mark.parametrize("logit", [float("nan"), float("inf")])
def test_an_answer_that_is_no_number_is_an_error(small_run: Trained, logit: float) -> None:
    image = next((small_run.photos / "val" / "class0").iterdir())
    answers = predicted(with_model(small_run.run, Fixed([0.0, logit, 1.0])), image)
    assert answers.errors == [NOT_FINITE]


class Greedy(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")


def test_too_large_a_batch_is_said(small_run: Trained) -> None:
    image = next((small_run.photos / "val" / "class0").iterdir())
    with pytest.raises(StokerError, match="--batch-size"):
        predicted(with_model(small_run.run, Greedy()), image)


def test_a_batch_that_no_memory_holds(small_run: Trained) -> None:
    """More than an address space has. A batch of a packed set is never larger than the set."""
    with pytest.raises(StokerError, match=r"10000000000000 images at once .*--batch-size"):
        predicted(open_classifier(small_run.run, CPU), small_run.photos / "val", batch_size=10**13)
    assert len(predicted(small_run.run, small_run.packed, batch_size=10**13).names) > 0


def test_a_set_of_other_classes_is_refused_with_the_difference(
    small_run: Trained, tmp_path: Path
) -> None:
    other = pack(
        image_folder(tmp_path / "photos", classes=4, images=2, size=(8, 8)),
        tmp_path / "packed",
        workers=1,
    )
    with pytest.raises(BadRequest, match="added: class3"):
        predicted(small_run.run, other)


def test_a_damaged_set_ends_it(small_run: Trained, tmp_path: Path) -> None:
    import shutil

    packed = shutil.copytree(small_run.packed, tmp_path / "packed")
    shard = packed / "val" / "00000.tar"
    data = bytearray(shard.read_bytes())
    data[600:700] = bytes(100)
    shard.write_bytes(data)
    with pytest.raises(StokerError, match="damaged"):
        predicted(small_run.run, packed, split="val")
