"""The optimiser, its parameter groups, and the moving average of the weights.

Invariant: an optimiser either skips a step by a flag on the device (`skips_on_device`), or the host
reads the norm of the gradient before the step: a bad gradient never reaches the weights.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from stoker.recipe.recipe import SPECS, Recipe
from stoker.recipe.schedule import peak_lr
from stoker.train.model.freeze import is_trained
from stoker.train.model.layers import lr_scales
from stoker.train.model.optimizer_names import BUILT_IN, check_optimizer


def parameter_groups(recipe: Recipe, model: nn.Module) -> list[dict[str, Any]]:
    """The weights that are trained, now or after a frozen beginning: kernels, then biases and
    norms, which have no weight decay; such a pair for each factor of the learning rate."""
    if recipe.head_lr_scale == 1 and recipe.layer_decay == 1:
        return list(pair_of_groups(recipe, list(model.parameters())))
    scales = lr_scales(model, recipe.head_lr_scale, recipe.layer_decay)
    by_scale: dict[float, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        by_scale.setdefault(scales[name], []).append(parameter)
    return [
        {**group, "lr_scale": scale}
        for scale, parameters in sorted(by_scale.items())
        for group in pair_of_groups(recipe, parameters)
        if group["params"]
    ]


def pair_of_groups(recipe: Recipe, parameters: list[nn.Parameter]) -> Iterator[dict[str, Any]]:
    """The trained ones of some parameters, with and without weight decay."""
    trained = [parameter for parameter in parameters if is_trained(parameter)]
    yield {"params": [p for p in trained if p.ndim > 1], "weight_decay": recipe.weight_decay}
    yield {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0}


def build_optimizer(recipe: Recipe, model: nn.Module, fused: bool | None = None) -> Optimizer:
    """SGD with Nesterov momentum, AdamW, or an optimiser of timm. `fused`: None means on a GPU,
    where only fused optimisers can skip a step by a flag that is on the device. Raises BadRequest
    for one that does not exist."""
    groups = parameter_groups(recipe, model)
    if recipe.optimizer not in BUILT_IN:
        return build_timm_optimizer(recipe, groups)
    if fused is None and any(p.is_cuda for p in model.parameters()):
        fused = True
    if recipe.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=1.0, betas=(recipe.momentum, 0.999), fused=fused)
    nesterov = recipe.momentum > 0
    sgd = torch.optim.SGD(groups, lr=1.0, momentum=recipe.momentum, nesterov=nesterov, fused=fused)
    fill_momentum(sgd)
    return sgd


def build_timm_optimizer(recipe: Recipe, groups: list[dict[str, Any]]) -> Optimizer:
    """An optimiser of timm with timm's settings. Momentum goes where there is one; beta1 is the
    optimiser's own, unless the recipe has another momentum than the default."""
    check_optimizer(recipe)
    from timm.optim import get_optimizer_info

    info = get_optimizer_info(recipe.optimizer)
    options, known = dict(info.defaults or {}), inspect.signature(info.opt_class).parameters
    if "momentum" in known:
        options["momentum"] = recipe.momentum
        if not recipe.momentum:
            options.pop("nesterov", None)  # needs a momentum
    elif "betas" in known and recipe.momentum != SPECS["momentum"].default:
        own = options.get("betas", known["betas"].default) or ()  # Adafactor has none of its own
        options["betas"] = (recipe.momentum, *own[1:])
    # Some scale the weight decay by the share of the largest learning rate: this one.
    sizes = [phase.batch_size for phase in recipe.phases] or [recipe.batch_size]
    largest_rate = max(peak_lr(recipe, size) for size in sizes)
    optimizer: Optimizer = info.opt_class(groups, lr=largest_rate, **options)
    return optimizer


def skips_on_device(optimizer: Optimizer) -> bool:
    """Whether the optimiser leaves weights and state alone where its `found_inf` says so."""
    return all(group.get("fused") for group in optimizer.param_groups)


def fill_momentum(optimizer: Optimizer) -> None:
    """Give each weight of a fused SGD that has no momentum yet one of zero. PyTorch allocates it in
    step 1 without a value, and if that step is skipped on the device it never gets one."""
    if not isinstance(optimizer, torch.optim.SGD):
        return
    for group in optimizer.param_groups:
        for weight in group["params"] if group["fused"] and group["momentum"] else []:
            if optimizer.state[weight].get("momentum_buffer") is None:
                optimizer.state[weight]["momentum_buffer"] = torch.zeros_like(weight)


def set_learning_rate(optimizer: Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("lr_scale", 1.0)


def gradient_norm(gradients: list[Tensor]) -> Tensor:
    """The norm of all gradients together, as `torch.nn.utils.get_total_norm` computes it. That one
    sorts tensors by device and type first, which takes the host longer than the launches."""
    norms = torch.stack(torch._foreach_norm(gradients, 2.0))
    norm: Tensor = torch.linalg.vector_norm(norms, 2.0)
    return norm


def clip_gradients(gradients: list[Tensor], limit: float, norm: Tensor) -> None:
    """Scale gradients of this norm down to the limit, as `clip_grads_with_norm_` does."""
    torch._foreach_mul_(gradients, torch.clamp(limit / (norm + 1e-6), max=1.0))


class MovingAverage:
    """A copy of the model: the moving average of its weights and statistics."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self._decay = decay
        self._pairs: _Pairs | None = None

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Move towards the model. Early steps move faster, so that the first weights soon fade."""
        decay = min(self._decay, (1 + step) / (10 + step))
        # Walking through a model's modules takes longer than all launches of an update.
        if self._pairs is None or self._pairs.model is not model:
            self._pairs = _Pairs.of(self.model, model)
        pairs = self._pairs
        torch._foreach_lerp_(pairs.trailing, pairs.leading, 1 - decay)
        if pairs.counters:
            torch._foreach_copy_(pairs.counters, pairs.leading_counters)


@dataclass(frozen=True)
class _Pairs:
    """The tensors of the average and of a model, in the same order; counters are integers."""

    model: nn.Module
    trailing: list[Tensor]
    leading: list[Tensor]
    counters: list[Tensor]
    leading_counters: list[Tensor]

    @classmethod
    def of(cls, average: nn.Module, model: nn.Module) -> _Pairs:
        pairs = list(zip(tensors_of(average), tensors_of(model), strict=True))
        floats = [pair for pair in pairs if pair[0].is_floating_point()]
        others = [pair for pair in pairs if not pair[0].is_floating_point()]
        lists = [[pair[side] for pair in part] for part in (floats, others) for side in (0, 1)]
        return cls(model, *lists)


def tensors_of(model: nn.Module) -> list[Tensor]:
    """Parameters and buffers in a fixed order."""
    return [*model.parameters(), *model.buffers()]
