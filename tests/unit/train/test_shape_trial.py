"""A new batch shape is tried before its first step: all ranks agree on whether it fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from stoker.errors import StokerError
from stoker.recipe.recipe import Phase, Recipe
from stoker.recipe.resolve import resolve
from stoker.recipe.schedule import Batch, Timeline
from stoker.survive.remedies import MEMORY, Trouble
from stoker.survive.stopping import StopRequest
from stoker.train.model.build import build_model
from stoker.train.process_group import Ranks
from stoker.train.shape_trial import ShapeTrial, at_most_twice, compile_model, limits
from stoker.train.step import Step
from stoker.train.trials.compute import Trial

CPU = torch.device("cpu")
TINY = Recipe(model="resnet9_w1", image_size=8, batch_size=20, micro_batch=8)
BATCH = Batch(step=7, position=140, size=20, image_size=8)
ERRORS = [
    MemoryError(),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("CUDA error: out of memory"),
]


class Two(Ranks):
    """The second of two ranks; the first one votes as a test says."""

    others_vote = 0

    def largest(self, numbers: list[int]) -> list[int]:
        return [max(number, self.others_vote) for number in numbers]


def step_of(recipe: Recipe = TINY, ranks: Ranks | None = None) -> Step:
    model, normalise = build_model(recipe, 3)
    return Trial(recipe, ranks or Ranks(0, 1, 0, 1, CPU), model, normalise, 1000).step


def trial_of(step: Step) -> ShapeTrial:
    return ShapeTrial(step, StopRequest(), leave=lambda: None)


def fail_with(error: Exception) -> Callable[..., None]:
    def fail(*arguments: object) -> None:
        raise error

    return fail


def sizes_seen(model: nn.Module) -> list[int]:
    """Images of each pass from here on."""
    sizes: list[int] = []
    model.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    return sizes


class TestNeed:
    def test_on_a_cpu_only_where_the_shape_is_compiled(self) -> None:
        assert not trial_of(step_of()).is_needed(BATCH)
        assert trial_of(step_of(replace(TINY, compile=True))).is_needed(BATCH)

    def test_on_a_gpu_always_and_once_for_each_shape(self) -> None:
        step = step_of()
        step.ranks = replace(step.ranks, device=torch.device("cuda"))
        trial = trial_of(step)
        assert trial.is_needed(BATCH)
        step.ranks = replace(step.ranks, device=CPU)
        trial(BATCH)
        step.ranks = replace(step.ranks, device=torch.device("cuda"))
        assert not trial.is_needed(replace(BATCH, step=8, position=160))
        assert trial.is_needed(replace(BATCH, image_size=16))
        assert trial.is_needed(replace(BATCH, size=16))


class TestPasses:
    def test_every_size_is_tried_and_a_second_pass_has_the_gradients_of_the_first(self) -> None:
        step = step_of()
        sizes = sizes_seen(step.state.model)
        assert step.micro_batch_sizes(BATCH) == [6, 6, 8]
        trial_of(step)(BATCH)
        assert sizes == [6, 6, 8]
        assert at_most_twice([6, 6, 6, 6, 8]) == [6, 6, 8]

    @pytest.mark.exact
    @pytest.mark.parametrize("recipe", [TINY, replace(TINY, amp="bf16")], ids=["off", "bf16"])
    def test_they_leave_no_trace(self, recipe: Recipe) -> None:
        step = step_of(recipe)
        model = step.state.model
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        trial_of(step)(BATCH)
        assert all(torch.equal(now, before[name]) for name, now in model.state_dict().items())
        assert all(weight.grad is None for weight in model.parameters())
        assert step.loaded is None


class TestOutOfMemory:
    @pytest.mark.parametrize("error", ERRORS, ids=str)
    def test_all_ranks_agree_on_it(self, error: Exception) -> None:
        step = step_of(ranks=Two(1, 2, 1, 2, CPU))
        step.wrapped.register_forward_pre_hook(fail_with(error))
        with pytest.raises(Trouble) as caught:
            trial_of(step)(BATCH)
        trouble = caught.value
        assert (trouble.kind, trouble.step, trouble.agreed) == (MEMORY, 7, True)
        assert str(trouble) == "out of memory at step 7: on rank 1"

    def test_a_rank_that_fits_learns_of_another_that_does_not(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Two, "others_vote", 4)
        with pytest.raises(Trouble, match="on rank 3") as caught:
            trial_of(step_of(ranks=Two(1, 2, 1, 2, CPU)))(BATCH)
        assert caught.value.agreed

    def test_it_leaves_no_gradient_behind(self) -> None:
        step = step_of()
        passes: list[Tensor] = []

        def fail_later(module: nn.Module, inputs: tuple[Tensor]) -> None:
            passes.append(inputs[0])
            if len(passes) == 2:
                raise MemoryError

        step.wrapped.register_forward_pre_hook(fail_later)
        before = [buffer.clone() for buffer in step.state.model.buffers()]
        with pytest.raises(Trouble):
            trial_of(step)(BATCH)
        assert all(weight.grad is None for weight in step.state.model.parameters())
        assert all(map(torch.equal, before, step.state.model.buffers()))

    def test_other_errors_stay_what_they_are(self) -> None:
        step = step_of()
        step.wrapped.register_forward_pre_hook(fail_with(RuntimeError("shapes differ")))
        with pytest.raises(RuntimeError, match="shapes differ"):
            trial_of(step)(BATCH)

    def test_a_compiler_that_is_missing_is_named(self) -> None:
        step = step_of(replace(TINY, compile=True))
        torch._dynamo.reset()
        backend = fail_with(RuntimeError("No working C++ compiler found"))
        step.wrapped = torch.compile(step.wrapped, backend=backend)  # type: ignore[assignment]
        with pytest.raises(StokerError, match=r"No working C\+\+ compiler found\): install g\+\+"):
            trial_of(step)(BATCH)
        assert all(weight.grad is None for weight in step.state.model.parameters())

    def test_in_the_compiler_all_ranks_agree_on_it_too(self) -> None:
        step = step_of(replace(TINY, compile=True), ranks=Two(1, 2, 1, 2, CPU))
        torch._dynamo.reset()
        step.wrapped = torch.compile(step.wrapped, backend=fail_with(ERRORS[1]))  # type: ignore[assignment]
        with pytest.raises(Trouble) as caught:
            trial_of(step)(BATCH)
        assert caught.value.agreed


class Means(nn.Module):
    """The smallest model of our own code: code of PyTorch itself is not compiled by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 2)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(images.mean((2, 3)))
        return logits


def presets() -> list[str]:
    folder = resources.files("stoker.recipe") / "presets"
    return sorted(path.name.removesuffix(".toml") for path in folder.iterdir())


def small_shapes(recipe: Recipe) -> Recipe:
    """The recipe with as many shapes as it has, each of them small."""
    phases = tuple(
        replace(phase, image_size=phase.image_size // 16, batch_size=phase.batch_size // 16)
        for phase in recipe.phases
    )
    sizes = {"image_size": max(recipe.image_size // 16, 4), "batch_size": recipe.batch_size // 2}
    return replace(recipe, phases=phases, model="resnet9_w1", pretrained=False, amp="off", **sizes)


MANY = replace(
    TINY,
    epochs=12,
    phases=tuple(Phase(from_epoch=n, image_size=8 + n, batch_size=20 + 2 * n) for n in range(12)),
)


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    """A group of this process alone."""
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture
def compiler_limits() -> Iterator[None]:
    """The limits of the compiler as PyTorch has them, before and after."""
    with torch._dynamo.config.patch(dict(zip(limits(), (8, 256), strict=True))):
        yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("compiler_limits")
class TestGraphs:
    """Every shape of a recipe is compiled; none is left to run as it is."""

    @pytest.mark.parametrize("name", [*presets(), "twelve phases"])
    def test_every_shape_is_compiled(self, process_group: None, name: str) -> None:
        recipe = MANY if name == "twelve phases" else small_shapes(resolve(name).recipe)
        recipe = replace(recipe, micro_batch=14, compile=True)
        model = Means()
        timeline = Timeline.of(recipe, 40_000)
        graphs = []

        def backend(graph: Any, inputs: object) -> Any:
            graphs.append(graph)
            return graph.forward

        ranks, (_, normalise) = Two(1, 2, 1, 2, CPU), build_model(TINY, 3)
        step = Trial(replace(recipe, compile=False, phases=()), ranks, model, normalise, 1000).step
        step.recipe, step.micro_batch = recipe, recipe.micro_batch
        step.wrapped = compile_model(DistributedDataParallel(model), timeline, backend)
        step.ddp = step.wrapped._orig_mod
        trial, expected = trial_of(step), set()
        for stretch in timeline.stretches:
            batch = timeline.batch_at(stretch.first_position)
            sizes = step.micro_batch_sizes(batch)
            expected |= {(size, batch.image_size) for size in sizes}
            trial(batch)
        assert len(graphs) == len(expected)

    def test_a_new_attempt_begins_with_none(self) -> None:
        timeline, counts = Timeline.of(MANY, 1000), []

        def backend(graph: Any, inputs: object) -> Any:
            counts.append(1)
            return graph.forward

        model = nn.Linear(3, 2)
        for _ in range(40):
            compile_model(model, timeline, backend)(torch.zeros(2, 3))
        assert len(counts) == 40


class TestStep:
    """Memory that runs out later, in a step."""

    @pytest.mark.parametrize("error", ERRORS, ids=str)
    @pytest.mark.parametrize("place", ["micro_step", "update"])
    def test_one_rank_is_in_agreement_with_itself(
        self, monkeypatch: pytest.MonkeyPatch, error: Exception, place: str
    ) -> None:
        for ranks, agreed in ((Ranks(0, 1, 0, 1, CPU), True), (Two(1, 2, 1, 2, CPU), False)):
            model, normalise = build_model(TINY, 3)
            trial = Trial(TINY, ranks, model, normalise, 1000)
            monkeypatch.setattr(Step, place, fail_with(error))
            with pytest.raises(Trouble) as caught:
                trial.step(trial.random_batch(20))
            assert caught.value.kind == MEMORY
            assert caught.value.agreed is agreed
            assert caught.value.__context__ is None  # it would hold the tensors of the pass
            monkeypatch.undo()

    def test_a_step_without_memory_does_not_count(self, monkeypatch: pytest.MonkeyPatch) -> None:
        step = step_of()
        monkeypatch.setattr(Step, "update", fail_with(MemoryError()))
        model, normalise = build_model(TINY, 3)
        batch = Trial(TINY, step.ranks, model, normalise, 1000).random_batch(20)
        with pytest.raises(Trouble):
            step(batch)
        assert (step.state.step, step.state.position) == (0, 0)
