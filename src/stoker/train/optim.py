"""The optimiser, its parameter groups, and the moving average of the weights."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from stoker.recipe.recipe import Recipe


def parameter_groups(recipe: Recipe, model: nn.Module) -> list[dict[str, Any]]:
    """The weights that are trained: kernels, then biases and norms, which have no weight decay."""
    kernels = [p for p in model.parameters() if p.requires_grad and p.ndim > 1]
    others = [p for p in model.parameters() if p.requires_grad and p.ndim <= 1]
    return [
        {"params": kernels, "weight_decay": recipe.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]


def build_optimizer(recipe: Recipe, model: nn.Module, fused: bool | None = None) -> Optimizer:
    """SGD with Nesterov momentum, or AdamW. `fused`: None means on a GPU, where only fused
    optimisers can skip a step by a flag that is on the device."""
    groups = parameter_groups(recipe, model)
    if fused is None and any(p.is_cuda for p in model.parameters()):
        fused = True
    if recipe.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=1.0, betas=(recipe.momentum, 0.999), fused=fused)
    nesterov = recipe.momentum > 0
    sgd = torch.optim.SGD(groups, lr=1.0, momentum=recipe.momentum, nesterov=nesterov, fused=fused)
    fill_momentum(sgd)
    return sgd


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
        group["lr"] = rate


class MovingAverage:
    """A copy of the model: the moving average of its weights and statistics."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self._decay = decay

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Move towards the model. Early steps move faster, so that the first weights soon fade."""
        decay = min(self._decay, (1 + step) / (10 + step))
        trailing, leading = tensors_of(self.model), tensors_of(model)
        floats = [(a, b) for a, b in zip(trailing, leading, strict=True) if a.is_floating_point()]
        torch._foreach_lerp_([a for a, _ in floats], [b for _, b in floats], 1 - decay)
        for old, new in zip(trailing, leading, strict=True):
            if not old.is_floating_point():
                old.copy_(new)


def tensors_of(model: nn.Module) -> list[Tensor]:
    """Parameters and buffers in a fixed order."""
    return [*model.parameters(), *model.buffers()]
