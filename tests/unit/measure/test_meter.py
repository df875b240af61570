"""Any PyTorch loop is measured like ours."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

from measured import held, measured
from stoker.measure.meter import KEPT, Meter
from stoker.measure.verdict_text import loop_actions

STEPS = 12


def loop(meter: Meter, model: nn.Module, wait_s: float = 0.0, steps: int = STEPS) -> None:
    """Ten lines of PyTorch."""

    def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for _ in range(steps):
            time.sleep(wait_s)
            yield torch.randn(4, 8), torch.randint(0, 3, (4,))

    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, labels in meter.batches(batches()):
        optimizer.zero_grad()
        with meter("forward"):
            loss = cross_entropy(model(images), labels)
        with meter("backward"):
            loss.backward()
        with meter("optimiser"):
            optimizer.step()


@pytest.fixture
def model() -> nn.Module:
    return nn.Linear(8, 3)


@measured(5)
def test_a_loop_that_waits_is_bound_by_data(model: nn.Module) -> None:
    meter = Meter(model)
    loop(meter, model, wait_s=0.04)
    verdict = meter.verdict()
    assert verdict is not None
    held(verdict.limit == "data", verdict)  # a busy machine may keep the model waiting too
    assert verdict.without_s is not None and verdict.without_s < verdict.step_s - 0.03
    assert any(line.startswith("slowed by data") for line in verdict.lines())


class Waiting(Dataset[tuple[torch.Tensor, int]]):
    """Images that take their time."""

    def __len__(self) -> int:
        return 4 * STEPS

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(0.01)
        return torch.randn(8), index % 3


def train_on(meter: Meter, model: nn.Module, loader: Iterable[list[torch.Tensor]]) -> None:
    for images, labels in meter.batches(loader):
        with meter("forward"):
            loss = cross_entropy(model(images), labels)
        with meter("backward"):
            loss.backward()


@measured(5)
@pytest.mark.parametrize("workers", [0, 1])
def test_advice_on_a_dataloader_is_about_its_workers(model: nn.Module, workers: int) -> None:
    meter = Meter(model)
    train_on(meter, model, DataLoader(Waiting(), batch_size=4, num_workers=workers))
    verdict = meter.verdict()
    assert verdict is not None
    held(verdict.limit == "data", verdict)
    advice = verdict.lines()[-1]
    assert "num_workers" in advice or f"{workers} workers" in advice
    assert "--" not in advice


@pytest.mark.parametrize("workers", [None, 0, 1, 64])
def test_no_advice_on_a_loop_of_others_names_a_flag(workers: int | None) -> None:
    for action in loop_actions(workers, cores=8).values():
        assert "--" not in action.replace("dump --pid", "")


def test_the_workers_of_a_dataloader_are_no_other_programs(model: nn.Module) -> None:
    """Their CPU time is not seen: it must not be called the work of others."""
    meter = Meter(model)
    train_on(meter, model, DataLoader(Waiting(), batch_size=4, num_workers=1))
    facts = meter.facts()
    assert facts is not None and facts.own_cores is None


def test_the_parts_of_its_steps_add_up(model: nn.Module) -> None:
    meter = Meter(model)
    began = time.perf_counter()
    loop(meter, model, wait_s=0.005)
    wall = time.perf_counter() - began
    facts = meter.facts()
    assert facts is not None and facts.steps == STEPS - 3
    parts = facts.ranks[0].parts
    assert {"data", "forward", "backward", "optimiser", "other"} == set(parts)
    assert facts.step_s * STEPS < 1.5 * wall


def test_a_few_steps_are_no_verdict(model: nn.Module) -> None:
    meter = Meter(model)
    assert meter.verdict() is None
    loop(meter, model, steps=2)
    assert meter.verdict() is None


def test_several_epochs_are_one_loop_and_memory_is_bounded(model: nn.Module) -> None:
    meter = Meter(model)
    for _ in range(3):
        loop(meter, model, steps=KEPT // 2)
    facts = meter.facts()
    assert facts is not None and facts.steps == KEPT


def test_it_is_part_of_the_python_interface() -> None:
    import stoker

    assert stoker.Meter is Meter


def test_the_words_in_its_own_docstring_are_true(model: nn.Module) -> None:
    import stoker.measure.meter as module

    assert module.__doc__ is not None
    example = module.__doc__.split("loop.\n\n")[1].split("\n\nInvariant")[0]
    names = {
        "Meter": Meter,
        "model": model,
        "loader": [(torch.randn(4, 8), torch.randint(0, 3, (4,))) for _ in range(STEPS)],
        "criterion": nn.CrossEntropyLoss(),
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "print": lambda *lines, sep: printed.extend(lines),
    }
    printed: list[str] = []
    from textwrap import dedent

    exec(dedent(example), names)
    assert printed and printed[0].startswith("slowed by")
