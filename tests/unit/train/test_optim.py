"""Only kernels decay, the learning rate reaches every weight, and the average trails behind."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from stoker.recipe.recipe import Recipe
from stoker.train.model.build import ResNet9
from stoker.train.optim import (
    MovingAverage,
    build_optimizer,
    clip_gradients,
    gradient_norm,
    set_learning_rate,
)

RECIPES = {
    "sgd": Recipe(optimizer="sgd", weight_decay=0.1),
    "adamw": Recipe(optimizer="adamw", weight_decay=0.1),
}


def small_model() -> nn.Module:
    torch.manual_seed(0)
    model = ResNet9(3, width=2)
    for weight in model.parameters():
        nn.init.normal_(weight)
    return model


def step_without_gradient(optimizer: Optimizer, model: nn.Module) -> None:
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    optimizer.step()


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


class TestDecay:
    @pytest.mark.parametrize("name", RECIPES)
    def test_shrinks_kernels_and_neither_biases_nor_norms(self, name: str) -> None:
        model = small_model()
        optimizer, before = build_optimizer(RECIPES[name], model), weights(model)
        set_learning_rate(optimizer, 0.5)
        step_without_gradient(optimizer, model)
        for weight, now in weights(model).items():
            if now.ndim > 1:
                assert (now.abs() < before[weight].abs()).all(), weight
            else:
                assert torch.equal(now, before[weight]), weight

    @pytest.mark.parametrize("name", RECIPES)
    def test_every_weight_has_one_place_in_the_optimiser(self, name: str) -> None:
        model = small_model()
        groups = build_optimizer(RECIPES[name], model).param_groups
        held = [id(weight) for group in groups for weight in group["params"]]
        assert sorted(held) == sorted(id(weight) for weight in model.parameters())

    def test_frozen_weights_are_left_out(self) -> None:
        model = small_model()
        for weight in model.features.parameters():  # type: ignore[union-attr]
            weight.requires_grad_(False)
        before = weights(model)
        optimizer = build_optimizer(RECIPES["sgd"], model)
        set_learning_rate(optimizer, 0.5)
        step_without_gradient(optimizer, model)
        changed = {name for name, now in weights(model).items() if (now != before[name]).any()}
        assert changed == {"head.weight"}


class TestLearningRate:
    @pytest.mark.parametrize("name", RECIPES)
    def test_zero_moves_nothing(self, name: str) -> None:
        model = small_model()
        optimizer, before = build_optimizer(RECIPES[name], model), weights(model)
        set_learning_rate(optimizer, 0.0)
        for weight in model.parameters():
            weight.grad = torch.ones_like(weight)
        optimizer.step()
        assert all(torch.equal(now, before[name]) for name, now in weights(model).items())

    def test_scales_the_step_of_every_weight(self) -> None:
        moves = []
        for rate in (0.1, 0.2):
            model = small_model().double()
            optimizer, before = build_optimizer(Recipe(weight_decay=0), model), weights(model)
            set_learning_rate(optimizer, rate)
            for weight in model.parameters():
                weight.grad = torch.ones_like(weight)
            optimizer.step()
            moves.append({name: now - before[name] for name, now in weights(model).items()})
        for name in moves[0]:
            torch.testing.assert_close(moves[1][name], 2 * moves[0][name])

    def test_momentum_none_is_plain_gradient_descent(self) -> None:
        model = small_model()
        optimizer = build_optimizer(Recipe(momentum=0.0, weight_decay=0.0), model)
        before = weights(model)
        set_learning_rate(optimizer, 0.5)
        for weight in model.parameters():
            weight.grad = torch.ones_like(weight)
        optimizer.step()
        for name, now in weights(model).items():
            torch.testing.assert_close(now, before[name] - 0.5)


@pytest.fixture
def filled_memory() -> Iterator[None]:
    """Memory that PyTorch allocates without a value is NaN, as it may be on a GPU."""
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)


def step_with_gradients(
    optimizer: Optimizer, model: nn.Module, *, skips: bool = False, without: Collection[str] = ()
) -> None:
    """A step on the same gradients each time; `skips`: as for a gradient that is not finite."""
    torch.manual_seed(1)
    for name, weight in model.named_parameters():
        gradient = torch.randn_like(weight)
        weight.grad = None if name in without else gradient
    optimizer.found_inf = torch.tensor(float(skips))  # type: ignore[attr-defined]
    optimizer.step()


FUSED = {
    "sgd": RECIPES["sgd"],
    "sgd without momentum": replace(RECIPES["sgd"], momentum=0.0),
    "adamw": RECIPES["adamw"],
}


@pytest.mark.exact
@pytest.mark.usefixtures("filled_memory")
class TestSkippedStep:
    """A step that a fused optimiser skips on the device is as if it never was."""

    @pytest.mark.parametrize("name", FUSED)
    @pytest.mark.parametrize("skipped", [{0}, {0, 1, 2}, {1}, {0, 2}])
    def test_it_leaves_no_trace(self, name: str, skipped: set[int]) -> None:
        models = []
        for numbers in (range(5), [n for n in range(5) if n not in skipped]):
            model = small_model()
            optimizer = build_optimizer(FUSED[name], model, fused=True)
            set_learning_rate(optimizer, 0.05)
            for number in numbers:
                step_with_gradients(optimizer, model, skips=number in skipped)
            models.append(weights(model))
        assert all(weight.isfinite().all() for weight in models[0].values())
        assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])

    @pytest.mark.parametrize("name", FUSED)
    def test_nor_where_some_weights_had_no_gradient(self, name: str) -> None:
        models = []
        for skips in (True, False):
            model = small_model()
            optimizer = build_optimizer(FUSED[name], model, fused=True)
            set_learning_rate(optimizer, 0.05)
            if skips:
                step_with_gradients(optimizer, model, skips=True, without=["head.weight"])
            step_with_gradients(optimizer, model, without=["head.bias"])
            step_with_gradients(optimizer, model)
            models.append(weights(model))
        assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])

    def test_the_scaler_of_fp16_skips_the_first_step(self) -> None:
        models = []
        for overflows in (True, False):
            model = small_model()
            optimizer = build_optimizer(FUSED["sgd"], model, fused=True)
            scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
            set_learning_rate(optimizer, 0.05)
            for bad in [True, False] if overflows else [False]:
                optimizer.zero_grad()
                # An input of one value everywhere: the loss is the sum of the weights.
                loss = sum(weight.sum() for weight in model.parameters())
                scaler.scale(loss * float("inf") if bad else loss).backward()
                scaler.unscale_(optimizer)
                scaler.step(optimizer)
                scaler.update()
            models.append(weights(model))
        assert all(weight.isfinite().all() for weight in models[0].values())
        assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])

    def test_momentum_lies_in_memory_as_its_weight_does(self) -> None:
        model = small_model().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimizer = build_optimizer(FUSED["sgd"], model, fused=True)
        for weight in model.parameters():
            assert optimizer.state[weight]["momentum_buffer"].stride() == weight.stride()

    def test_the_bits_are_those_of_pytorchs_own_first_step(self) -> None:
        models = []
        for ours in (True, False):
            model = small_model()
            optimizer = build_optimizer(FUSED["sgd"], model, fused=True)
            if not ours:
                optimizer.state.clear()
            set_learning_rate(optimizer, 0.05)
            for _ in range(3):
                step_with_gradients(optimizer, model)
            models.append(weights(model))
        assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])

    def test_on_a_cpu_nothing_is_filled(self) -> None:
        assert not build_optimizer(RECIPES["sgd"], small_model()).state


class TestMovingAverage:
    def test_begins_as_a_copy_of_its_own(self) -> None:
        model = small_model()
        average, before = MovingAverage(model, 0.9), weights(model)
        with torch.no_grad():
            for weight in model.parameters():
                weight.zero_()
        assert all(torch.equal(now, before[name]) for name, now in weights(average.model).items())

    @pytest.mark.parametrize(
        ("step", "decay"), [(0, 0.1), (1, 2 / 11), (40, 41 / 50), (2000, 0.99), (10**6, 0.99)]
    )
    def test_moves_faster_at_the_beginning(self, step: int, decay: float) -> None:
        model = small_model().double()
        average, old = MovingAverage(model, 0.99), weights(model)
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(torch.randn_like(weight))
        new = weights(model)
        average.update(model, step)
        for name, now in weights(average.model).items():
            torch.testing.assert_close(now, decay * old[name] + (1 - decay) * new[name])

    def test_follows_the_running_statistics_and_copies_counts(self) -> None:
        model = small_model()
        average = MovingAverage(model, 0.5)
        for _ in range(3):
            model(torch.randn(4, 3, 8, 8) + 5)
        average.update(model, step=100)
        norm, trailing = model.features[0][1], average.model.features[0][1]  # type: ignore[index]
        assert int(trailing.num_batches_tracked) == int(norm.num_batches_tracked) == 3
        torch.testing.assert_close(trailing.running_mean, norm.running_mean / 2)
        torch.testing.assert_close(trailing.running_var, (norm.running_var + 1) / 2)

    def test_leaves_the_model_alone(self) -> None:
        model = small_model()
        average, before = MovingAverage(model, 0.9), weights(model)
        average.update(model, 5)
        assert all(torch.equal(now, before[name]) for name, now in weights(model).items())
        assert model.training
        assert not average.model.training
        assert not any(weight.requires_grad for weight in average.model.parameters())


@pytest.mark.exact
@pytest.mark.parametrize("limit", [0.01, 1.0, 1e9])
def test_norm_and_clipping_are_those_of_torch_bit_for_bit(limit: float) -> None:
    torch.manual_seed(0)
    shapes = [(64, 3, 7, 7), (64,), (1,), (10, 64), (5, 5, 5)]
    ours, theirs = [], []
    for shape in shapes:
        ours.append(nn.Parameter(torch.randn(shape)))
        ours[-1].grad = torch.randn(shape) * 3
        theirs.append(nn.Parameter(ours[-1].detach().clone()))
        theirs[-1].grad = ours[-1].grad.clone()
    gradients = [weight.grad for weight in ours if weight.grad is not None]
    norm = gradient_norm(gradients)
    expected = nn.utils.get_total_norm([w.grad for w in theirs if w.grad is not None])
    assert torch.equal(norm, expected)
    clip_gradients(gradients, limit, norm)
    nn.utils.clip_grads_with_norm_(theirs, limit, expected)
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(ours, theirs, strict=True))
