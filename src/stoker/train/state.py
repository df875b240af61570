"""Everything that training changes, in one place: the content of a checkpoint.

Invariant: the recipe, the dataset and this state decide the rest of a run; nothing else does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from stoker.recipe.recipe import Recipe
from stoker.survive.checkpoint import PlainCopy, Snapshot, SnapshotCopy, copy_tree
from stoker.train.device import state_copy
from stoker.train.model.masks import Masking, packed_misfit
from stoker.train.optim import (
    MovingAverage,
    build_optimizer,
    fill_momentum,
    parameter_groups,
)


@dataclass
class TrainState:
    """Model, optimiser, moving average, loss scaler, and the position of the run. `evaluated` is
    the position of the latest evaluation, `best` the best top-1 share so far, `stale` the number of
    evaluations since then. `began_high`: every loss so far was far above guessing."""

    model: nn.Module
    optimizer: Optimizer
    ema: MovingAverage | None
    scaler: torch.amp.GradScaler
    position: int = 0
    step: int = 0
    evaluated: int = 0
    best: float = -1.0
    stale: int = 0
    began_high: bool = False
    copy: SnapshotCopy = field(default_factory=PlainCopy)
    """How a snapshot is taken from the device."""
    masking: Masking | None = None
    """Keeps pruned weights at zero; a checkpoint brings it."""

    @classmethod
    def fresh(cls, recipe: Recipe, model: nn.Module, device: torch.device) -> TrainState:
        """The state at the start of a run."""
        return cls(
            model,
            build_optimizer(recipe, model),
            MovingAverage(model, recipe.ema_decay) if recipe.ema else None,
            torch.amp.GradScaler(device.type, enabled=recipe.amp == "fp16"),
            copy=state_copy(device),
        )

    @property
    def evaluated_model(self) -> nn.Module:
        """The model whose accuracy is measured: the moving average, if there is one."""
        return self.ema.model if self.ema else self.model

    def snapshot(self, facts: dict[str, Any]) -> Snapshot:
        """A copy of the state, with the facts that a reader needs to use it."""
        weights, optimizer = self.model.state_dict(), self.optimizer.state_dict()
        ema = self.ema.model.state_dict() if self.ema else {}
        progress = {"position": self.position, "step": self.step, "evaluated": self.evaluated}
        return Snapshot(
            weights=copy_tree(weights, self.copy),
            ema=copy_tree(ema, self.copy),
            state={
                "optimizer": copy_tree(optimizer, self.copy),
                "scaler": self.scaler.state_dict(),
                **({"masks": self.masking.packed} if self.masking else {}),
            },
            facts={
                **progress,
                "best": self.best,
                "stale": self.stale,
                **({"began_high": True} if self.began_high else {}),
                **facts,
            },
            ready=self.copy.end(),
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Load the state of a checkpoint."""
        self.model.load_state_dict(snapshot.weights)
        if self.ema:
            self.ema.model.load_state_dict(snapshot.ema)
        # Settings such as weight decay come from the recipe, momentum from the checkpoint.
        saved, from_checkpoint = snapshot.state["optimizer"], ("params", "lr")
        own = [{k: g[k] for k in g.keys() - from_checkpoint} for g in self.optimizer.param_groups]
        groups = [{**old, **new} for old, new in zip(saved["param_groups"], own, strict=True)]
        self.optimizer.load_state_dict({**saved, "param_groups": groups})
        fill_momentum(self.optimizer)  # a checkpoint of step 0, or one of a CPU, has none
        if snapshot.state["scaler"]:
            self.scaler.load_state_dict(snapshot.state["scaler"])
        self.position, self.step = snapshot.facts["position"], snapshot.facts["step"]
        self.evaluated, self.best = snapshot.facts["evaluated"], snapshot.facts["best"]
        self.stale = snapshot.facts.get("stale", 0)  # earlier versions did not count
        self.began_high = snapshot.facts.get("began_high") is True
        if packed := snapshot.state.get("masks"):
            self.masking = Masking.unpacked(self.model, packed)
            self.hold_pruned()

    def hold_pruned(self) -> None:
        """Set pruned weights, and all that is kept of them, to zero."""
        if self.masking:
            self.masking.hold(self.optimizer, self.ema.model if self.ema else None)


def misfit(recipe: Recipe, model: nn.Module, snapshot: Snapshot) -> str:
    """Why a checkpoint cannot be one of this model and its optimiser; empty where it can."""
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    for which in ("weights", "ema") if recipe.ema else ("weights",):
        saved = {name: tensor.shape for name, tensor in getattr(snapshot, which).items()}
        if saved != shapes:
            return f"its {which} are those of another model"
    if "masks" in snapshot.state and (reason := packed_misfit(snapshot.state["masks"], model)):
        return reason
    groups = parameter_groups(recipe, model)
    try:
        optimizer, scaler = snapshot.state["optimizer"], snapshot.state["scaler"]
        numbers = [list(group["params"]) for group in optimizer["param_groups"]]
        pairs = [
            (optimizer["state"].get(number, {}), parameter)
            for group, saved_numbers in zip(groups, numbers, strict=True)
            for parameter, number in zip(group["params"], saved_numbers, strict=True)
        ]
        if all(has_shape_of(parameter, state) for state, parameter in pairs):
            return "" if isinstance(scaler, dict) else "it holds no state of a loss scaler"
    except (KeyError, TypeError, AttributeError, ValueError):
        pass
    return "its optimiser is not that of this run"


def has_shape_of(parameter: Tensor, state: dict[str, Any]) -> bool:
    """Whether the optimiser's state of a parameter has its shape, or that of a factor: without one
    dimension. Counters are single numbers."""
    whole = tuple(parameter.shape)
    shapes = {whole}
    for place in range(len(whole)):
        before, after = whole[:place], whole[place + 1 :]
        shapes |= {before + after, (*before, 1, *after)}
    tensors = [value for value in state.values() if isinstance(value, Tensor) and value.ndim]
    return all(tuple(tensor.shape) in shapes for tensor in tensors)
