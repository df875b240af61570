"""What only a GPU runs, with fakes in its place: the limits, and what is switched on and off."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from stoker.doctor.selftest import device_input, loop_ratio, machine, saving, throughput
from stoker.doctor.selftest.loop_ratio import LoopTimes, measure_ratio, recipe_of
from stoker.doctor.selftest.rows import ON_GPU, QUICK, NotRun, Setup
from stoker.measure.environment import Environment, Gpu
from stoker.recipe.recipe import Recipe
from stoker.train.process_group import Ranks
from stoker.train.trials.compute import Trial
from tiny_runs import one_thread_alone  # noqa: F401

TINY = Recipe(model="resnet9_w1", image_size=8, batch_size=4, epochs=1)


class GpuSetup(Setup):
    """A setup whose CPU says that it is a GPU."""

    @property
    def on_gpu(self) -> bool:
        return True

    def finish(self) -> None:
        """There is nothing to wait for."""


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setup:
    properties = SimpleNamespace(
        total_memory=40e9, pci_domain_id=0, pci_bus_id=0x3B, pci_device_id=0
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    ranks = Ranks.join()
    return GpuSetup(ranks, tmp_path, ON_GPU, 1e18, gpus=1)


@pytest.fixture
def modes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    modes: list[str] = []
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    return modes


def test_the_machine_row_names_all_that_a_result_depends_on(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = Gpu("NVIDIA A100", 40 * 10**9, (8, 0))
    facts = Environment(
        {"python": "3.11.7", "torch": "2.15.0"},
        *("a processor", 8, 8, True, 10**10, ""),
        gpus=(gpu, gpu),
        driver="600.10",
        cuda="13.2",
        cudnn="9.1",
    )
    monkeypatch.setattr(machine, "environment_here", lambda folders: facts)
    monkeypatch.setattr(machine, "pcie_link", lambda *place: f"16.0 GT/s x16 {place}")
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 28, 3))
    measured = machine.measure_machine(setup)
    for part in ("2 GPUs: NVIDIA A100", "driver 600.10", "cuda 13.2", "cudnn 9.1", "nccl 2.28.3"):
        assert part in measured.value
    assert "capability 8.0" in measured.value and "(0, 59, 0)" in measured.value
    assert measured.figures["gpus"] == 2 and measured.figures["nccl"] == "2.28.3"


@pytest.mark.parametrize(("pinned", "holds"), [(9.0, True), (1.0, False)])
def test_pinned_copies_must_be_as_fast(
    setup: Setup, pinned: float, holds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = iter([pinned, 2.0])
    monkeypatch.setattr(machine, "COPIED_BYTES", 16)
    monkeypatch.setattr(Tensor, "pin_memory", lambda self: self)
    monkeypatch.setattr(machine, "copy_gb_per_s", lambda source, target: next(rates))
    assert machine.measure_copies(setup).holds == holds


@pytest.mark.parametrize(("our_s", "holds"), [(1.02, True), (1.04, False)])
def test_a_loop_that_is_slower_has_failed(
    setup: Setup, our_s: float, holds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = LoopTimes([(1.0, 9.0)] * 3, [(our_s, 1.0)] * 3, 1)
    monkeypatch.setattr(loop_ratio, "alternate", lambda *args: times)
    measured = measure_ratio(setup, "resnet50", 224, 256, amp="bf16")
    assert measured.holds == holds
    assert measured.figures["ratio"] == pytest.approx(1 / our_s)
    assert "at least" in measured.limit


def test_without_timm_a_gpu_trains_our_own_model(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert recipe_of(setup, "resnet50", 224, 256, amp="bf16").model == "resnet50"
    monkeypatch.setattr(loop_ratio, "find_spec", lambda name: None)
    recipe = recipe_of(setup, "resnet50", 224, 256, amp="bf16")
    assert (recipe.model, recipe.amp, recipe.batch_size) == ("resnet9_w64", "bf16", 256)


def test_quick_leaves_out_what_compiles(setup: Setup) -> None:
    setup.quick = True
    with pytest.raises(NotRun, match="compiles"):
        measure_ratio(setup, "resnet50", 224, 256, compile=True)


@pytest.mark.exact
def test_waits_are_errors_for_fifty_steps(
    setup: Setup, modes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real loop runs with each recipe; a wait in it would raise."""
    seen: list[tuple[int, str]] = []
    recipes: list[dict[str, Any]] = []
    train = device_input.train_synthetic

    def watched(recipe: Recipe, steps: int, ranks: Ranks, before: Callable[[int], None]) -> int:
        def look(number: int) -> None:
            before(number)
            seen.append((number, modes[-1] if modes else "default"))

        return train(recipe, steps, ranks, look)

    def tiny(setup: Setup, model: str, size: int, batch: int, **keys: Any) -> Recipe:
        recipes.append(keys)
        return TINY

    monkeypatch.setattr(device_input, "recipe_of", tiny)
    monkeypatch.setattr(device_input, "train_synthetic", watched)
    assert device_input.measure_syncs(setup).holds
    strict = [number for number, mode in seen if mode == "error"]
    assert strict == list(range(20, 70)) * len(recipes)
    assert {keys["amp"] for keys in recipes} == {"bf16", "fp16"} and modes[-1] == "default"


@pytest.mark.exact
def test_a_wait_is_a_failure_and_the_mode_is_put_back(
    setup: Setup, modes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def waits(recipe: Recipe, steps: int, ranks: Ranks, before: Callable[[int], None]) -> int:
        before(20)
        raise RuntimeError("called a synchronizing CUDA operation")

    monkeypatch.setattr(device_input, "recipe_of", lambda *args, **keys: TINY)
    monkeypatch.setattr(device_input, "train_synthetic", waits)
    with pytest.raises(RuntimeError, match="synchronizing"):
        device_input.measure_syncs(setup)
    assert modes == ["error", "default"]


def test_copies_are_delayed_in_their_own_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []

    class Stream:
        def __init__(self, device: object = None) -> None: ...

        def __enter__(self) -> None:
            log.append("copy stream")

        def __exit__(self, *error: object) -> None:
            log.append("out")

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: log.append("sleep"))
    streams = device_input.DelayedStreams(torch.device("cpu"), random.Random(0))
    target = torch.zeros(4)
    for _ in range(50):
        streams.copy(target, torch.ones(4))
    assert target.sum() == 4
    sleeps = [number for number, word in enumerate(log) if word == "sleep"]
    assert 5 < len(sleeps) < 30
    assert all(log[number - 1 : number + 2] == ["copy stream", "sleep", "out"] for number in sleeps)


@pytest.mark.parametrize(("together", "holds"), [(95.0, True), (80.0, False)])
def test_feeding_is_compared_with_the_slower_part(
    setup: Setup, together: float, holds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup.dataset = SimpleNamespace(classes=["a"], split=lambda name: range(64))  # type: ignore[assignment, misc]
    monkeypatch.setattr(throughput, "recipe_of", lambda *args, **keys: TINY)
    monkeypatch.setattr(throughput, "loading_rate", lambda setup, recipe: 100.0)
    rate = SimpleNamespace(images_per_s=500.0)
    monkeypatch.setattr(Trial, "measure", lambda self, seconds: rate)
    both = SimpleNamespace(images_per_s=together)
    monkeypatch.setattr(throughput, "measure_together", lambda *args: both)
    measured = throughput.measure_feeding(setup)
    assert (measured.holds, measured.figures["ratio"]) == (holds, together / 100)


@pytest.mark.parametrize(("hold_s", "holds"), [(0.004, True), (0.006, False)])
def test_of_five_saves_the_fourth_counts(
    setup: Setup, hold_s: float, holds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    saves: Iterator[tuple[float, float]] = iter([(0.1, 0.001)] * 3 + [(0.1, hold_s), (0.1, 9.0)])
    monkeypatch.setattr(saving, "recipe_of", lambda *args, **keys: TINY)
    monkeypatch.setattr(saving, "save_once", lambda state, checkpoints: next(saves))
    measured = saving.measure_saving(setup)
    assert measured.holds == holds and measured.figures["hold_ms"] == 1000 * hold_s


def test_sizes_of_a_cpu_are_small() -> None:
    assert QUICK.batch_size < ON_GPU.batch_size and ON_GPU.hashed_steps == 500
