"""Everything that training changes, in one place: what a checkpoint holds.

Invariant: (recipe, dataset, this state) decide the rest of a run; there is nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from stoker.recipe.recipe import Recipe
from stoker.survive.checkpoint import Snapshot, copy_to_cpu
from stoker.train.optim import MovingAverage, build_optimizer


@dataclass
class TrainState:
    """Network, optimiser, moving average, loss scaler, and how far the run has come."""

    model: nn.Module
    optimizer: Optimizer
    ema: MovingAverage | None
    scaler: torch.amp.GradScaler
    position: int = 0
    step: int = 0
    evaluated: int = 0
    """The position of the latest evaluation."""
    best: float = -1.0
    """The best top-1 share so far."""

    @classmethod
    def fresh(cls, recipe: Recipe, model: nn.Module, device: torch.device) -> TrainState:
        return cls(
            model,
            build_optimizer(recipe, model),
            MovingAverage(model, recipe.ema_decay) if recipe.ema else None,
            torch.amp.GradScaler(device.type, enabled=recipe.amp == "fp16"),
        )

    @property
    def evaluated_model(self) -> nn.Module:
        """The weights whose accuracy counts."""
        return self.ema.model if self.ema else self.model

    def snapshot(self, facts: dict[str, Any]) -> Snapshot:
        """A copy of the state, with what a reader must know to use it."""
        return Snapshot(
            weights=copy_to_cpu(self.model.state_dict()),
            ema=copy_to_cpu(self.ema.model.state_dict()) if self.ema else {},
            state={
                "optimizer": copy_to_cpu(self.optimizer.state_dict()),
                "scaler": self.scaler.state_dict(),
            },
            facts={
                "position": self.position,
                "step": self.step,
                "evaluated": self.evaluated,
                "best": self.best,
                **facts,
            },
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Become what a checkpoint says."""
        self.model.load_state_dict(snapshot.weights)
        if self.ema:
            self.ema.model.load_state_dict(snapshot.ema)
        # The recipe says how weights move, on this device; the checkpoint how they have moved.
        saved, kept = snapshot.state["optimizer"], ("params", "lr")
        own = [{k: g[k] for k in g.keys() - kept} for g in self.optimizer.param_groups]
        groups = [{**old, **new} for old, new in zip(saved["param_groups"], own, strict=True)]
        self.optimizer.load_state_dict({**saved, "param_groups": groups})
        if snapshot.state["scaler"]:
            self.scaler.load_state_dict(snapshot.state["scaler"])
        self.position, self.step = snapshot.facts["position"], snapshot.facts["step"]
        self.evaluated, self.best = snapshot.facts["evaluated"], snapshot.facts["best"]
