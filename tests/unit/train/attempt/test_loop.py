"""A step is a function of the state and the position, however the batch is cut."""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from samples import image_folder
from stoker.data.dataset import Dataset
from stoker.data.images.encode import Storage
from stoker.data.loading.loader import BatchLoader, Loaded
from stoker.data.packing.pack import pack
from stoker.errors import StokerError
from stoker.recipe.recipe import Phase, Recipe
from stoker.recipe.schedule import learning_rate
from stoker.run.directory import Run
from stoker.survive.stopping import StopRequest
from stoker.train.attempt.assembly import assemble
from stoker.train.attempt.inputs import AttemptInputs
from stoker.train.attempt.loop import Loop, collecting_by_schedule
from stoker.train.evaluate import Evaluator
from stoker.train.loaders import Loaders, prepare
from stoker.train.process_group import Ranks
from stoker.train.records.saving import Saves
from stoker.train.state import TrainState

CPU = torch.device("cpu")
TINY = Recipe(
    model="resnet9_w2",
    epochs=1,
    batch_size=16,
    image_size=8,
    crop="pad",
    crop_pad=1,
    crop_pct=1.0,
    threads=1,
)
MIXED = replace(TINY, mixup_alpha=0.5, cutmix_prob=0.5, label_smoothing=0.1)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Sixty images to train on and nine to evaluate on, stored as pixels."""
    root = tmp_path_factory.mktemp("loop")
    folder = image_folder(root / "photos", images=20, val=3, size=(16, 16), suffix="png")
    storage = Storage(codec="raw")
    return Dataset(pack(folder, root / "packed", storage=storage, shard_images=16, workers=1))


MakeLoop = Callable[..., Loop]


@pytest.fixture
def make_loop(dataset: Dataset, tmp_path: Path) -> Iterator[MakeLoop]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    made: list[Loop] = []

    def make(recipe: Recipe, listener: Callable[[dict[str, Any]], None] = lambda event: None):
        run, ranks = Run(tmp_path / f"run{len(made)}"), Ranks(0, 1, 0, 1, CPU)
        inputs = AttemptInputs(prepare(dataset, recipe, ranks), run, ranks, StopRequest())
        inputs.begin((listener,))
        made.append(assemble(inputs))
        return made[-1]

    yield make
    for loop in made:
        loop.close()
        loop.records.events.close()
    torch.set_num_threads(before)


def first_batch(loop: Loop) -> Loaded:
    return next(iter(loop.loaders.loader.batches(loop.timeline.batches())))


def first_loss(loop: Loop) -> float:
    loaded = first_batch(loop)
    return float(loop.step(loaded).numbers()[0]) / len(loaded.labels)


PINNED = replace(
    TINY, model="resnet9_w4", image_size=16, crop_pad=2, batch_size=10, epochs=2, lr=0.05
)
RICH = replace(
    PINNED,
    optimizer="adamw",
    lr=0.003,
    mixup_alpha=0.4,
    cutmix_prob=0.5,
    label_smoothing=0.1,
    ema=True,
    clip_grad=1.0,
    warmup_epochs=0.5,
)
GOLDEN = {
    "sgd": (
        PINNED,
        "1.059493 1.148378 0.992154 0.932720 1.065051 0.916394"
        " 0.849605 0.784878 0.780256 0.796540 0.779462 0.918865",
        "1.085725 1.054452",
    ),
    "adamw, mixed, smoothed, clipped, averaged": (
        RICH,
        "1.051022 1.162512 1.087551 1.037457 1.056442 1.099088"
        " 0.976802 0.982003 0.938596 0.994898 1.007506 0.948591",
        "1.097143 1.090001",
    ),
}
"""A recipe, its twelve training losses and its two evaluation losses."""


def numbers(words: str) -> list[float]:
    return [float(word) for word in words.split()]


class TestGolden:
    """A change to what is learnt is noticed here, whether it was meant or not."""

    def test_the_first_batch_is_to_the_bit_what_it_was(self, make_loop: MakeLoop) -> None:
        loaded = first_batch(make_loop(PINNED))
        assert loaded.samples.tolist() == [32, 42, 23, 28, 35, 46, 44, 51, 37, 53]
        assert loaded.labels.tolist() == [0, 2, 0, 0, 1, 0, 0, 2, 0, 2]
        assert hashlib.sha256(loaded.images.tobytes()).hexdigest() == (
            "03cad61363ec5012a4681b789c81ed25ec52035bd7c9dd8ec9558a594b10bb89"
        )

    @pytest.mark.parametrize("name", GOLDEN)
    def test_losses_are_what_they_were(self, make_loop: MakeLoop, name: str) -> None:
        recipe, training, evaluation = GOLDEN[name]
        heard: list[dict[str, Any]] = []
        assert make_loop(recipe, heard.append).run()
        steps = [event["sums"][0] / 10 for event in heard if event["kind"] == "step"]
        assert steps == pytest.approx(numbers(training), rel=1e-4)
        found = [event["loss"] for event in heard if event["kind"] == "evaluation"]
        assert found == pytest.approx(numbers(evaluation), rel=1e-4)


def with_model(loop: Loop, model: nn.Module) -> Loop:
    """The same loop around another model, in double precision."""
    model = model.double()
    make_input = loop.step.to_input
    state = TrainState.fresh(loop.step.recipe, model, CPU)
    step = replace(
        loop.step,
        state=state,
        wrapped=model,
        to_input=lambda images, mix: make_input(images, mix).double(),
    )
    return replace(loop, step=step)


def without_norms() -> nn.Module:
    """A model whose answer to an image does not depend on the images beside it."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 4, 3), nn.Tanh(), nn.AdaptiveAvgPool2d(2), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(16, 3))


def gradients(loop: Loop) -> dict[str, Tensor]:
    """The gradients of a run's first step."""
    loop.step(first_batch(loop))
    found = {}
    for name, weight in loop.state.model.named_parameters():
        assert weight.grad is not None
        found[name] = weight.grad.clone()
    return found


def assert_close(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-6, atol=1e-8)


CUTS = [(16, 4), (16, 16), (14, 4), (15, 4), (9, 2), (10, 3), (16, 1), (16, 1000)]
"""Batch and micro-batch: those that divide, those that leave a short part, those that are odd."""


class TestAccumulation:
    @pytest.mark.parametrize("recipe", [TINY, MIXED], ids=["plain", "mixed"])
    @pytest.mark.parametrize(("batch_size", "micro_batch"), CUTS)
    def test_gradients_are_those_of_the_whole_batch(
        self, make_loop: MakeLoop, recipe: Recipe, batch_size: int, micro_batch: int
    ) -> None:
        recipe = replace(recipe, batch_size=batch_size)
        whole = gradients(with_model(make_loop(recipe), without_norms()))
        recipe = replace(recipe, micro_batch=micro_batch)
        assert_close(gradients(with_model(make_loop(recipe), without_norms())), whole)

    @pytest.mark.parametrize(("batch_size", "micro_batch"), CUTS)
    def test_sums_count_each_image_once(
        self, make_loop: MakeLoop, batch_size: int, micro_batch: int
    ) -> None:
        recipe = replace(TINY, batch_size=batch_size)
        loops = [
            with_model(make_loop(replace(recipe, micro_batch=micro)), without_norms())
            for micro in (0, micro_batch)
        ]
        whole, parts = (loop.step(first_batch(loop)).numbers() for loop in loops)
        torch.testing.assert_close(parts, whole, rtol=1e-6, atol=0)
        assert int(whole[2]) == batch_size  # of three classes each is among the five best

    @pytest.mark.parametrize(("batch_size", "micro_batch"), CUTS)
    def test_no_micro_batch_is_empty(
        self, make_loop: MakeLoop, batch_size: int, micro_batch: int
    ) -> None:
        sizes = held_at_once(make_loop, batch_size, micro_batch)
        assert sum(sizes) == batch_size
        assert min(sizes) > 0

    @pytest.mark.parametrize(
        ("batch_size", "micro_batch"), [(16, 4), (14, 4), (12, 8), (10, 3), (14, 5)]
    )
    def test_no_more_images_are_held_at_once_than_asked(
        self, make_loop: MakeLoop, batch_size: int, micro_batch: int
    ) -> None:
        assert max(held_at_once(make_loop, batch_size, micro_batch)) <= micro_batch


def held_at_once(make_loop: MakeLoop, batch_size: int, micro_batch: int) -> list[int]:
    """How many images the model was given each time in one step."""
    loop = make_loop(replace(TINY, batch_size=batch_size, micro_batch=micro_batch))
    sizes: list[int] = []
    loop.step.wrapped.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    loop.step(first_batch(loop))
    return sizes


class TestRanks:
    @pytest.mark.parametrize("recipe", [TINY, MIXED], ids=["plain", "mixed"])
    @pytest.mark.parametrize(("batch_size", "world"), [(16, 2), (16, 4), (10, 3), (15, 7)])
    def test_the_mean_of_their_gradients_is_the_gradient_of_the_batch(
        self, make_loop: MakeLoop, recipe: Recipe, batch_size: int, world: int
    ) -> None:
        recipe = replace(recipe, batch_size=batch_size)
        alone = gradients(with_model(make_loop(recipe), without_norms()))
        found = []
        for rank in range(world):
            loop = with_model(make_loop(recipe), without_norms())
            whole = loop.loaders.loader
            part = BatchLoader(
                whole.split, whole.order, whole.view, rank=rank, world=world, threads=1
            )
            step = replace(loop.step, ranks=Ranks(rank, world, 0, world, CPU))
            found.append(gradients(replace(loop, step=step, loaders=Loaders(part, None))))
            part.close()
        mean = {name: sum(each[name] for each in found) / world for name in alone}
        assert_close(mean, alone)


class TestStep:
    def test_moves_position_and_step_on(self, make_loop: MakeLoop) -> None:
        loop = make_loop(TINY)
        for loaded in loop.loaders.loader.batches(loop.timeline.batches()):
            loop.step(loaded)
        assert (loop.state.step, loop.state.position) == (3, 48) == (3, loop.timeline.end)

    def test_drops_out_the_same_whenever_it_is_taken(self, make_loop: MakeLoop) -> None:
        def once(noise: int) -> dict[str, Tensor]:
            model = nn.Sequential(nn.Dropout(0.5), without_norms())
            loop = with_model(make_loop(TINY), model)
            torch.manual_seed(noise)
            return gradients(loop)

        one, two = once(1), once(2)
        assert all(torch.equal(one[name], two[name]) for name in one)

    def test_clipping_limits_the_norm_of_the_gradient(self, make_loop: MakeLoop) -> None:
        norms = {}
        for limit in (0.0, 0.01):
            found = gradients(make_loop(replace(TINY, clip_grad=limit)))
            norms[limit] = float(torch.stack([each.norm() for each in found.values()]).norm())
        assert norms[0.0] > 0.02
        assert norms[0.01] == pytest.approx(0.01, rel=1e-3)

    def test_smoothing_is_part_of_the_loss(self, make_loop: MakeLoop) -> None:
        loop = make_loop(replace(TINY, label_smoothing=0.3))
        with torch.no_grad():
            loop.state.model.head.weight.zero_()
            loop.state.model.head.bias.copy_(torch.tensor([8.0, 0.0, 0.0]))
        loaded = first_batch(loop)
        log_shares = torch.tensor([1.0, 0.0, 0.0]).log_softmax(0)
        targets = torch.full((3, 3), 0.1) + 0.7 * torch.eye(3)
        expected = -(targets[loaded.labels] @ log_shares).sum()
        assert float(loop.step(loaded).numbers()[0]) == pytest.approx(float(expected), rel=1e-5)

    def test_channels_last_is_only_a_matter_of_speed(self, make_loop: MakeLoop) -> None:
        losses = [first_loss(make_loop(replace(TINY, channels_last=how))) for how in (True, False)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)

    def test_the_average_follows_the_weights(self, make_loop: MakeLoop) -> None:
        loop = make_loop(replace(TINY, ema=True))
        begin = loop.state.model.head.weight.detach().clone()
        loop.step(first_batch(loop))
        now, average = loop.state.model.head.weight, loop.state.evaluated_model.head.weight
        torch.testing.assert_close(average, 0.1 * begin + 0.9 * now.detach())


class TestEvaluation:
    def test_without_memory_it_names_the_flag(
        self, make_loop: MakeLoop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*arguments: object) -> None:
            raise RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED")

        monkeypatch.setattr(Evaluator, "run_with_answers", fail)
        with pytest.raises(StokerError, match="--eval-batch-size"):
            make_loop(TINY).run()


class TestEnd:
    def test_ranks_meet_once_more_when_the_last_save_is_done(
        self, make_loop: MakeLoop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A launcher on another node than rank 0's would end with 0 before the run is finished."""
        order: list[str] = []
        save = Saves.save

        def follow(saves: Saves, **options: bool) -> None:
            save(saves, **options)
            order.append("saved")

        monkeypatch.setattr(Saves, "save", follow)
        monkeypatch.setattr(Ranks, "meet", lambda ranks: order.append("met"))
        assert make_loop(TINY).run()
        assert order[-2:] == ["saved", "met"]


class TestPhases:
    PHASES = (
        Phase(from_epoch=0, image_size=8, batch_size=20),
        Phase(from_epoch=1, image_size=16, batch_size=12),
    )
    RECIPE = replace(TINY, epochs=3, phases=PHASES, warmup_epochs=0.5, scheduler="cosine")

    def test_image_and_batch_size_change_in_mid_run(self, make_loop: MakeLoop) -> None:
        loop = make_loop(self.RECIPE)
        shapes: list[tuple[int, ...]] = []

        def note(module: nn.Module, inputs: tuple[Tensor]) -> None:
            if module.training:
                shapes.append(tuple(inputs[0].shape))

        loop.step.wrapped.register_forward_pre_hook(note)
        assert loop.run()
        assert shapes == [(20, 3, 8, 8)] * 3 + [(12, 3, 16, 16)] * 10

    def test_events_say_the_learning_rate_of_each_batch(self, make_loop: MakeLoop) -> None:
        steps: list[dict[str, Any]] = []

        def note(event: dict[str, Any]) -> None:
            if event["kind"] == "step":
                steps.append(event)

        loop = make_loop(self.RECIPE, note)
        assert loop.run()
        batches = list(loop.timeline.batches())
        assert [event["lr"] for event in steps] == [
            learning_rate(self.RECIPE, 60, batch) for batch in batches
        ]
        assert [(event["step"], event["position"], event["batch"]) for event in steps] == [
            (batch.step, batch.position, batch.size) for batch in batches
        ]
        assert len({event["lr"] for event in steps}) == 13


KINDS = {
    "plain": {},
    "clipped": {"clip_grad": 0.5},
    "smoothed": {"label_smoothing": 0.1},
    "adamw": {"optimizer": "adamw", "lr": 1e-3},
    "averaged": {"ema": True},
    "bf16": {"amp": "bf16"},
    "fp16": {"amp": "fp16"},
    "tf32": {"amp": "tf32"},
    "mixup": {"mixup_alpha": 0.2},
    "cutmix": {"cutmix_prob": 1.0},
    "resized crops": {"crop": "resized"},
    "no flips, no crops": {"crop": "centre", "hflip": False},
    "onecycle": {"scheduler": "onecycle", "warmup_epochs": 0.3},
    "steps": {"scheduler": "step", "decay_epochs": (0.5,)},
    "deterministic": {"deterministic": True},
    "in parts": {"micro_batch": 4},
    "all at once": {
        "optimizer": "adamw",
        "lr": 1e-3,
        "amp": "bf16",
        "ema": True,
        "clip_grad": 1.0,
        "mixup_alpha": 0.2,
        "cutmix_prob": 0.5,
        "label_smoothing": 0.1,
        "micro_batch": 8,
    },
}


class TestKinds:
    @pytest.fixture(autouse=True)
    def arithmetic(self) -> Iterator[None]:
        yield
        torch.set_float32_matmul_precision("highest")
        torch.use_deterministic_algorithms(False)

    @pytest.mark.parametrize("name", KINDS)
    def test_three_steps_and_an_evaluation_give_finite_numbers(
        self, make_loop: MakeLoop, name: str
    ) -> None:
        heard: list[dict[str, Any]] = []
        loop = make_loop(replace(TINY, **KINDS[name]), heard.append)
        before = [weight.detach().clone() for weight in loop.state.model.parameters()]
        assert loop.run()
        losses = [event["sums"][0] for event in heard if event["kind"] == "step"]
        assert len(losses) == 3
        assert np.isfinite(losses).all()
        (evaluation,) = (event for event in heard if event["kind"] == "evaluation")
        assert evaluation["images"] == 9
        assert np.isfinite(evaluation["loss"])
        weights = list(loop.state.model.parameters())
        assert all(weight.isfinite().all() for weight in weights)
        changed = [not torch.equal(*pair) for pair in zip(before, weights, strict=True)]
        assert all(changed)


class TestCollections:
    def test_python_collects_no_garbage_by_itself_within_the_loop(
        self, make_loop: MakeLoop
    ) -> None:
        enabled: list[bool] = []
        loop = make_loop(TINY)
        loop.step.wrapped.register_forward_pre_hook(lambda *_: enabled.append(gc.isenabled()))
        assert gc.isenabled()
        assert loop.run()
        assert gc.isenabled()
        assert gc.get_freeze_count() == 0
        assert set(enabled) == {False}

    def test_some_steps_collect_and_few_of_them_everything(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        generations: list[int] = []
        monkeypatch.setattr(gc, "collect", generations.append)
        with collecting_by_schedule() as collect:
            for step in range(1, 5001):
                collect(step)
        assert generations == [1] * 99 + [2]

    def test_a_program_that_collects_by_itself_keeps_its_choice(self) -> None:
        gc.disable()
        try:
            with collecting_by_schedule():
                pass
            assert not gc.isenabled()
        finally:
            gc.enable()
