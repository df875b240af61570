"""Each image of the split is counted once, and right means right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from samples import image_folder
from stoker.data.dataset import Dataset
from stoker.data.images.encode import Storage
from stoker.data.loading.crops import View
from stoker.data.loading.loader import BatchLoader
from stoker.data.loading.order import InOrder
from stoker.data.packing.pack import pack
from stoker.train import evaluate as evaluate_module
from stoker.train.evaluate import (
    NO_PREDICTION,
    Accuracy,
    Answers,
    DeviceTally,
    Evaluator,
    hits,
)
from stoker.train.mixing import Mix
from stoker.train.model.build import ResNet9
from stoker.train.process_group import Ranks

quick = settings(deadline=None, max_examples=80)
CPU = torch.device("cpu")
CLASSES = 7
NAN = float("nan")


def rank(number: int = 0, world: int = 1) -> Ranks:
    return Ranks(number, world, number, world, CPU)


def counted(logits: Tensor, labels: Tensor) -> tuple[int, int]:
    best, five = hits(logits, labels)
    return int(best), int(five)


class TestHits:
    @given(st.integers(1, 30), st.integers(5, 40), st.integers(0, 10**6))
    @quick
    def test_are_those_of_topk(self, images: int, classes: int, seed: int) -> None:
        draw = torch.Generator().manual_seed(seed)
        logits = torch.randn(images, classes, generator=draw, dtype=torch.float64)
        labels = torch.randint(classes, (images,), generator=draw)
        found = logits.topk(5).indices == labels[:, None]
        assert counted(logits, labels) == (int(found[:, 0].sum()), int(found.sum()))

    @given(st.lists(st.integers(0, 2), min_size=1, max_size=12), st.data())
    @quick
    def test_a_tie_goes_to_the_lower_class(self, values: list[int], data: st.DataObject) -> None:
        label = data.draw(st.integers(0, len(values) - 1))
        ranking = sorted(range(len(values)), key=lambda number: (-values[number], number))
        place = ranking.index(label)
        found = counted(torch.tensor([values]).float(), torch.tensor([label]))
        assert found == (int(place < 1), int(place < 5))

    def test_a_model_that_says_the_same_of_every_class_is_right_for_class_0_only(self) -> None:
        logits = torch.full((9, 9), 0.3)
        assert counted(logits, torch.arange(9)) == (1, 5)
        assert counted(logits, torch.zeros(9, dtype=torch.int64)) == (9, 9)

    @pytest.mark.parametrize("classes", [1, 2, 4])
    def test_of_fewer_than_five_classes_each_is_among_the_five_best(self, classes: int) -> None:
        labels = torch.arange(20) % classes
        logits = torch.randn(20, classes)
        right = int((logits.argmax(1) == labels).sum())
        assert counted(logits, labels) == (right, 20)

    @pytest.mark.parametrize("classes", [2, 4, 5, 100])
    def test_a_model_that_answers_nan_is_never_right(self, classes: int) -> None:
        logits = torch.full((8, classes), NAN)
        assert counted(logits, torch.arange(8) % classes) == (0, 0)

    def test_a_class_that_is_nan_is_never_the_right_one(self) -> None:
        logits = torch.randn(10, 10)
        logits.fill_diagonal_(NAN)
        assert counted(logits, torch.arange(10)) == (0, 0)

    def test_infinities_are_ranked_like_any_number(self) -> None:
        logits = torch.tensor([[float("inf"), 1.0], [float("-inf"), 1.0], [float("-inf")] * 2])
        assert counted(logits, torch.tensor([0, 0, 0])) == (2, 3)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Twenty-one images to evaluate on, of seven classes."""
    root = tmp_path_factory.mktemp("evaluate")
    folder = image_folder(
        root / "photos", classes=CLASSES, images=1, val=3, size=(12, 12), suffix="png"
    )
    return Dataset(
        pack(folder, root / "packed", storage=Storage(codec="raw"), shard_images=8, workers=1)
    )


MakeEvaluator = Callable[..., Evaluator]


@pytest.fixture
def evaluator(dataset: Dataset) -> Iterator[MakeEvaluator]:
    loaders: list[BatchLoader] = []

    def make(ranks: Ranks | None = None, batch_size: int = 8) -> Evaluator:
        split, view = dataset.split("val"), View(crop_pct=1.0)
        loaders.append(BatchLoader(split, InOrder(), view, threads=1))
        return Evaluator(loaders[-1], ranks or rank(), batch_size)

    yield make
    for loader in loaders:
        loader.close()


def to_input(images: Tensor, mix: Mix | None = None) -> Tensor:
    return images.permute(0, 3, 1, 2).float() / 255 - 0.5


@pytest.fixture
def model() -> nn.Module:
    """A model with an opinion on every image and running statistics of its own."""
    torch.manual_seed(3)
    model = ResNet9(CLASSES, width=4)
    with torch.no_grad():
        for _ in range(5):
            model(torch.rand(16, 3, 12, 12) - 0.5)
    return model


class TestEvaluator:
    def test_counts_what_one_pass_over_all_images_counts(
        self, dataset: Dataset, evaluator: MakeEvaluator, model: nn.Module
    ) -> None:
        split = dataset.split("val")
        pixels = [np.frombuffer(split.bytes_of(i), np.uint8)[-432:] for i in range(len(split))]
        images = np.stack(pixels).reshape(-1, 12, 12, 3)
        with torch.no_grad():
            logits = model.eval()(to_input(torch.from_numpy(images)))
        labels = torch.from_numpy(split.labels)
        found = evaluator().run(model, 12, to_input)
        assert found is not None
        top5 = int((logits.topk(5).indices == labels[:, None]).sum())
        assert 0 < top5 < 21
        assert (found.top1, found.top5) == (int((logits.argmax(1) == labels).sum()), top5)
        assert found.loss == pytest.approx(float(cross_entropy(logits, labels)), rel=1e-5)

    @pytest.mark.parametrize("batch_size", [1, 7, 50, 1000])
    def test_counts_the_same_at_any_batch_size(
        self, evaluator: MakeEvaluator, model: nn.Module, batch_size: int
    ) -> None:
        usual = evaluator(batch_size=8).run(model, 12, to_input)
        found = evaluator(batch_size=batch_size).run(model, 12, to_input)
        assert usual is not None
        assert found is not None
        assert found.images == 21
        assert (found.top1, found.top5) == (usual.top1, usual.top5)
        assert found.loss == pytest.approx(usual.loss, rel=1e-5)
        assert found.top1_share == found.top1 / 21

    def test_counts_the_same_again(self, evaluator: MakeEvaluator, model: nn.Module) -> None:
        same = evaluator()
        assert same.run(model, 12, to_input) == same.run(model, 12, to_input)

    @pytest.mark.parametrize("training", [True, False])
    def test_leaves_the_model_in_the_mode_it_was_in(
        self, evaluator: MakeEvaluator, model: nn.Module, training: bool
    ) -> None:
        model.train(training)
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        evaluator().run(model, 12, to_input)
        assert model.training is training
        assert all(torch.equal(now, before[name]) for name, now in model.state_dict().items())

    @pytest.mark.parametrize("turns", [0, 2])
    def test_a_stop_leaves_no_count_and_the_model_as_it_was(
        self, evaluator: MakeEvaluator, model: nn.Module, turns: int
    ) -> None:
        asked = iter([False] * turns + [True])
        model.train()
        assert evaluator().run(model, 12, to_input, lambda: next(asked)) is None
        assert model.training
        assert isinstance(evaluator().run(model, 12, to_input), Accuracy)


class TestShares:
    @pytest.mark.parametrize("batch_size", [1, 4, 1000])
    @pytest.mark.parametrize("world", [1, 2, 3, 7, 30])
    def test_hold_each_image_once(
        self, evaluator: MakeEvaluator, world: int, batch_size: int
    ) -> None:
        seen: list[int] = []
        for number in range(world):
            for batch in evaluator(rank(number, world), batch_size).plan(12):
                assert 0 < batch.size <= batch_size
                seen += range(batch.position, batch.end)
        assert seen == list(range(21))

    @pytest.mark.parametrize("world", [2, 3, 7])
    def test_differ_by_one_image_at_most(self, evaluator: MakeEvaluator, world: int) -> None:
        sizes = [
            sum(batch.size for batch in evaluator(rank(number, world)).plan(12))
            for number in range(world)
        ]
        assert max(sizes) - min(sizes) <= 1


def test_images_are_shown_at_the_size_asked_for_whatever_is_stored(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "photos", classes=2, images=2, val=3, size=(40, 30))
    stored = Dataset(pack(folder, tmp_path / "packed", workers=1))
    loader = BatchLoader(stored.split("val"), InOrder(), View(), threads=1)
    shapes: list[tuple[int, ...]] = []

    def noted(images: Tensor, mix: Mix | None) -> Tensor:
        shapes.append(tuple(images.shape))
        return to_input(images)

    Evaluator(loader, rank(), 4).run(ResNet9(2, width=2), 16, noted)
    loader.close()
    assert shapes == [(4, 16, 16, 3), (2, 16, 16, 3)]


class TestAnswers:
    @given(st.integers(1, 12), st.integers(1, 8), st.integers(0, 10**6))
    @quick
    def test_agree_with_the_hits(self, images: int, classes: int, seed: int) -> None:
        draw = np.random.default_rng(seed)
        values = draw.choice([0.0, 1.0, 1.0, 2.0, NAN, np.inf, -np.inf], (images, classes))
        logits, labels = torch.from_numpy(values).float(), torch.arange(images) % classes
        tally = DeviceTally(0, images, CPU)
        tally.add(logits, labels, 0)
        answers = Answers.of(tally.rows)
        best, five = hits(logits, labels)
        assert int((answers.predicted == labels.numpy()).sum()) == int(best)
        assert (int((answers.ahead < 1).sum()), int((answers.ahead < 5).sum())) == (best, five)
        has_nan = np.isnan(values).any(1)
        assert ((answers.predicted == NO_PREDICTION) == has_nan).all()
        assert np.isnan(answers.probability[has_nan]).all()
        for row, predicted in zip(values[~has_nan], answers.predicted[~has_nan], strict=True):
            assert predicted == int(np.flatnonzero(row == row.max())[0])

    def test_are_those_of_single_images(
        self, dataset: Dataset, evaluator: MakeEvaluator, model: nn.Module
    ) -> None:
        evaluated = evaluator(batch_size=4).run_with_answers(model, 12, to_input)
        assert evaluated is not None
        accuracy, answers = evaluated
        assert answers is not None
        labels = dataset.split("val").labels
        assert (answers.predicted == labels).sum() == accuracy.top1
        assert (answers.ahead < 5).sum() == accuracy.top5
        assert float(answers.loss.mean()) == pytest.approx(accuracy.loss, rel=1e-5)
        assert (answers.probability > 1 / CLASSES - 1e-6).all()
        right = answers.predicted == labels
        assert np.exp(-answers.loss[right]) == pytest.approx(answers.probability[right], rel=1e-5)

    def test_of_a_very_large_split_are_not_kept(
        self, evaluator: MakeEvaluator, model: nn.Module, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        usual = evaluator().run(model, 12, to_input)
        monkeypatch.setattr(evaluate_module, "MOST_KEPT", 20)
        assert evaluator().run_with_answers(model, 12, to_input) == (usual, None)
