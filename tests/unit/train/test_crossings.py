"""What crosses between host and device in one step, on a fake GPU: the exact list.

The real step runs on tensors without numbers that say they are on a GPU (FakeTensorMode). Each
operation with tensors on both sides is logged, and each number that the host reads from the device.
What no fake can tell: whether a kernel waits, and how long anything takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from stoker.data.loading.loader import BatchMemory, Loaded, Pixels
from stoker.measure.clocks import clock_of
from stoker.measure.spans import Spans
from stoker.recipe.recipe import Recipe
from stoker.recipe.schedule import Batch, Timeline
from stoker.survive.remedies import Remedies
from stoker.train import device as seam
from stoker.train import optim, transfer
from stoker.train import step as step_module
from stoker.train.evaluate import Evaluator
from stoker.train.mixing import draw_mix, partners
from stoker.train.model.build import Normalise, ResNet9
from stoker.train.model_input import FusedInput, input_maker
from stoker.train.process_group import Ranks
from stoker.train.state import TrainState
from stoker.train.step import Step

GPU = torch.device("cuda", 0)
IMAGES, SIDE, CLASSES = 8, 16, 10
IN = f"copy_ host->device {transfer.Views.size((IMAGES, SIDE, SIDE, 3))} bytes, not waited for"
OUT = "_to_copy device->host 32 bytes, not waited for"
STREAMS = ["copy waits", IN, "compute waits"]
READ = "the numbers of two steps before are read"
"""They have arrived by then."""

RECIPES = {
    "plain": {},
    "tf32": {"amp": "tf32"},
    "mixed, averaged, clipped": {
        "mixup_alpha": 0.2,
        "cutmix_prob": 0.5,
        "ema": True,
        "clip_grad": 1.0,
        "label_smoothing": 0.1,
    },
    "accumulated": {"micro_batch": 2},
    "adamw, accumulated, mixed": {"optimizer": "adamw", "micro_batch": 4, "mixup_alpha": 0.2},
    "channels first": {"channels_last": False},
}
EXPECTED = [*STREAMS, OUT, READ]


class Log(TorchDispatchMode):
    """Writes down operations that involve host and device."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self.lines = lines

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        name = operation.__name__.split(".")[0]
        if name == "_local_scalar_dense" and inputs[0].device.type == "cuda":
            self.lines.append("the host reads a number from the device")
            return 0.0
        out = operation(*args, **kwargs)
        outputs = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        sides = {tensor.device.type for tensor in (*inputs, *outputs)}
        if sides == {"cpu", "cuda"} and any(tensor.numel() > 1 for tensor in (*inputs, *outputs)):
            self.lines.append(f"{name} {self.way(name, inputs, outputs, args, kwargs)}")
        return out

    @staticmethod
    def way(name: str, inputs: Any, outputs: Any, args: Any, kwargs: Any) -> str:
        target = inputs[0] if name == "copy_" else outputs[0]
        way = "host->device" if target.device.type == "cuda" else "device->host"
        waits = not (kwargs.get("non_blocking") or args[2:3] == (True,))
        return f"{way} {target.nbytes} bytes, {'WAITED FOR' if waits else 'not waited for'}"


class FakeEvent:
    """An event of a stream, which has passed."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    def record(self, *args: Any) -> None: ...
    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        raise AssertionError("the host waits for the device")


class LoggedStreams:
    """Streams that only write down what they are asked for."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines

    def host_memory(self, size: int) -> Tensor:
        return torch.zeros(size, dtype=torch.uint8)

    def device_memory(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.uint8, device=GPU)

    def copy(self, target: Tensor, source: Tensor) -> None:
        # A stand-in for the source: real memory among tensors without numbers crashes torch.
        target.copy_(torch.empty(source.shape, dtype=source.dtype), non_blocking=True)

    def mark(self, stream: str) -> FakeEvent:
        return FakeEvent()

    def wait(self, stream: str, event: FakeEvent) -> None:
        self._lines.append(f"{stream} waits")

    def passed(self, event: FakeEvent) -> bool:
        return True

    def wait_on_host(self, event: FakeEvent) -> None:
        self._lines.append("THE HOST WAITS")


KERNELS = ("_fused_sgd_", "_fused_adamw_", "_amp_update_scale_", "_foreach_lerp_", "_foreach_copy_")
"""Kernels over many tensors, for which torch has no fake, or one that fails now and then."""


def kernel(*args: Any, **kwargs: Any) -> None:
    """Does nothing with tensors that are all on the device."""
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    assert {tensor.device.type for tensor in tensors} == {"cuda"}


@pytest.fixture
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTensorMode]:
    """A GPU without numbers."""
    monkeypatch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *args: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda *args: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "default_generators", [torch.Generator()])
    for name in KERNELS:
        monkeypatch.setattr(torch, name, kernel)
    partners.cache_clear()
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        yield mode
    partners.cache_clear()


def make_model() -> nn.Module:
    with torch.device(GPU):
        return ResNet9(CLASSES, width=4)


def make_step(recipe: Recipe, lines: list[str], folder: Path) -> Step:
    model, ranks = make_model(), Ranks(0, 1, 0, 1, GPU)
    with pytest.MonkeyPatch.context() as patch:
        # A deep copy of tensors without numbers leaves torch in a state in which it crashes.
        patch.setattr(optim.copy, "deepcopy", lambda model: make_model())
        state = TrainState.fresh(recipe, model, GPU)
    to_input = input_maker(Normalise(), GPU, recipe.channels_last, recipe.amp)
    assert isinstance(to_input, FusedInput)
    to_input.why_not_compiled = "its kernel would need a GPU"
    spans, remedies = Spans(clock_of(GPU)), Remedies(folder)
    timeline = Timeline.of(recipe, 100 * IMAGES)
    copies = transfer.Copies(LoggedStreams(lines))
    return Step(recipe, timeline, ranks, state, model, to_input, remedies, spans, transfer=copies)


def pinned(memory: BatchMemory) -> Pixels:
    """Images in real memory of the host."""
    with unset_fake_temporarily():
        return memory.take((IMAGES, SIDE, SIDE, 3))


def batch(step: Step, number: int, memory: BatchMemory) -> Loaded:
    images = pinned(memory)
    samples, epochs = np.arange(IMAGES), np.zeros(IMAGES, np.int64)
    drawn = draw_mix(step.recipe, SIDE, samples, epochs)
    place = Batch(number, number * IMAGES, IMAGES, SIDE)
    return Loaded(place, images, np.arange(IMAGES) % CLASSES, samples, epochs, drawn)


def crossings(recipe: Recipe, monkeypatch: pytest.MonkeyPatch, folder: Path) -> list[str]:
    """What crosses in the fourth step: buffers, momentum and scale exist by then."""
    lines: list[str] = []
    step = make_step(recipe, lines, folder)
    memory = step.batches.memory(3)

    def backward(loss: Tensor, *args: Any, **kwargs: Any) -> None:
        for weight in step.state.model.parameters():
            weight.grad = torch.empty_like(weight)

    def numbers(late: seam.LateNumbers) -> list[float]:
        lines.append(READ)
        return [0.0] * 4

    monkeypatch.setattr(Tensor, "backward", backward)
    monkeypatch.setattr(seam.LateNumbers, "numbers", numbers)
    for number in range(4):
        loaded = batch(step, number, memory)
        lines.clear()
        with Log(lines):
            step(loaded)
    return lines


@pytest.mark.exact
@pytest.mark.parametrize("name", RECIPES)
def test_a_step_has_one_copy_in_and_one_out(
    name: str, fake_gpu: FakeTensorMode, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"amp": "bf16", **RECIPES[name]}
    recipe = Recipe(model="resnet9", batch_size=IMAGES, image_size=SIDE, epochs=2, **settings)
    assert crossings(recipe, monkeypatch, tmp_path) == EXPECTED


@pytest.mark.exact
@pytest.mark.parametrize("name", RECIPES)
def test_fp16_with_its_scaler_neither(
    name: str, fake_gpu: FakeTensorMode, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {**RECIPES[name], "amp": "fp16"}
    recipe = Recipe(model="resnet9", batch_size=IMAGES, image_size=SIDE, epochs=2, **settings)
    # The scaler skips steps that are not finite: nobody reads their norms.
    assert crossings(recipe, monkeypatch, tmp_path) == [*STREAMS, OUT]


@pytest.mark.exact
@pytest.mark.parametrize("optimizer", ["lion", "lamb", "adam"])
def test_an_optimiser_that_cannot_skip_a_step_is_not_called_before_the_norm_is_read(
    optimizer: str, fake_gpu: FakeTensorMode, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("timm")
    settings: dict[str, Any] = {"optimizer": optimizer, "amp": "bf16", "lr": 0.001}
    recipe = Recipe(model="resnet9", batch_size=IMAGES, image_size=SIDE, epochs=2, **settings)
    lines: list[str] = []
    step = make_step(recipe, lines, tmp_path)
    assert step.late_steps == 0

    def backward(loss: Tensor, *args: Any, **kwargs: Any) -> None:
        for weight in step.state.model.parameters():
            weight.grad = torch.empty_like(weight)

    monkeypatch.setattr(Tensor, "backward", backward)
    monkeypatch.setattr(seam.LateNumbers, "numbers", lambda late: lines.append("read") or [0.0] * 4)
    monkeypatch.setattr(step.state.scaler, "step", lambda optimizer: lines.append("stepped"))
    step(batch(step, 0, step.batches.memory(3)))
    assert [line for line in lines if line in ("read", "stepped")] == ["read", "stepped"]


SLIPS: dict[str, Callable[[Tensor], object]] = {
    "a number is read": lambda norm: float(norm),
    "a truth is read": lambda norm: bool(norm > 1),
    "a tensor is fetched": lambda norm: norm.expand(2).cpu(),
    "a tensor is made on the host": lambda norm: norm + torch.ones(2).to(GPU),
}


@pytest.mark.exact
@pytest.mark.parametrize("slip", SLIPS)
def test_a_new_crossing_is_noticed(
    slip: str, fake_gpu: FakeTensorMode, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    original = optim.gradient_norm

    def with_slip(gradients: list[Tensor]) -> Tensor:
        norm = original(gradients)
        SLIPS[slip](norm)
        return norm

    monkeypatch.setattr(step_module, "gradient_norm", with_slip)
    recipe = Recipe(model="resnet9", batch_size=IMAGES, image_size=SIDE, epochs=2, amp="bf16")
    assert crossings(recipe, monkeypatch, tmp_path) != EXPECTED


class TwoBatches:
    """A loader of a split of two batches."""

    split = range(2 * IMAGES)

    def __init__(self, memory: BatchMemory) -> None:
        self._memory = memory

    def batches(self, plan: Any, waiting: Any) -> Iterator[Loaded]:
        for place in plan:
            numbers = np.arange(IMAGES)
            yield Loaded(place, pinned(self._memory), numbers % CLASSES, numbers, numbers)


@pytest.mark.exact
@pytest.mark.parametrize("amp", ["bf16", "fp16", "tf32", "off"])
def test_an_evaluation_reads_the_device_once(
    amp: str, fake_gpu: FakeTensorMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    model = make_model()
    to_input = FusedInput(Normalise(), GPU, channels_last=True, dtype=torch.bfloat16)
    to_input.why_not_compiled = "its kernel would need a GPU"
    copies = transfer.Copies(LoggedStreams(lines))
    loader: Any = TwoBatches(copies.memory(3))
    evaluator = Evaluator(loader, Ranks(0, 1, 0, 1, GPU), IMAGES, amp, copies)
    with Log(lines), pytest.raises((RuntimeError, TypeError)):
        # Numbers without a value cannot be listed: all batches are over by then.
        evaluator.run(model, SIDE, to_input)
    size = 4 * 8 + 16 * 2 * IMAGES  # three counts and the loss, and the answer for each image
    assert lines == [*STREAMS, *STREAMS, f"_to_copy device->host {size} bytes, WAITED FOR"]
