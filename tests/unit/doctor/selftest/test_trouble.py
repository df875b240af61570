"""The checks of trouble notice a product that is broken."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stoker.doctor.selftest import trouble
from stoker.doctor.selftest.rows import QUICK, Setup
from stoker.train import optim
from stoker.train.process_group import Ranks
from stoker.train.step import Step
from tiny_runs import one_thread_alone  # noqa: F401


@pytest.fixture
def setup() -> Setup:
    return Setup(Ranks.join(), Path("nowhere"), QUICK, 1e18, quick=True)


@pytest.mark.exact
def test_a_skipped_first_step_leaves_no_trace(setup: Setup) -> None:
    measured = trouble.measure_overflow(setup)
    assert measured.holds and measured.figures["difference"] == 0


@pytest.mark.exact
def test_momentum_without_a_value_is_noticed(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    def garbage(optimizer: torch.optim.Optimizer) -> None:
        for weight in optimizer.param_groups[0]["params"]:
            optimizer.state[weight]["momentum_buffer"] = torch.full_like(weight, 7.0)

    monkeypatch.setattr(optim, "fill_momentum", garbage)
    assert not trouble.measure_overflow(setup).holds


@pytest.mark.exact
def test_a_gradient_that_is_not_finite_is_named(setup: Setup) -> None:
    measured = trouble.measure_nan(setup)
    assert measured.holds and measured.figures["late_steps"] == 2


@pytest.mark.exact
@pytest.mark.parametrize("broken", ["not named", "weights changed"])
def test_a_step_that_misses_it_is_noticed(
    setup: Setup, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if broken == "not named":
        monkeypatch.setattr(Step, "raise_agreed_trouble", lambda self, bad: None)
    else:
        monkeypatch.setattr(Step, "guards", property(lambda self: False))
    measured = trouble.measure_nan(setup)
    assert not measured.holds
    assert measured.value == "not noticed"
