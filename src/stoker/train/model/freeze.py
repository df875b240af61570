"""Which parameters are not trained, and until when.

Invariants: whether a parameter is frozen is a function of the recipe, the model's names and the
position of a run. A frozen parameter has no gradient, so it gets no weight decay and no momentum,
and the backward pass ends where nothing before it is trained. BatchNorm layers whose parameters are
all frozen keep their running statistics, and use them to the end of the run. The optimiser knows
frozen parameters from the start, so its state has one layout for the whole run.
"""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from stoker.errors import BadRequest
from stoker.recipe.recipe import Recipe
from stoker.text import plural, shown
from stoker.train.model.layers import head_modules, is_inside, stages

BODY = "body"
_FROZEN = "_stoker_frozen"
"""Marks a parameter that would be trained, were it not frozen."""
MOST_NAMES = 4
"""Names in a message before it is cut."""


@dataclass(frozen=True)
class Freeze:
    """The frozen parameters of a run."""

    names: frozenset[str]
    epochs: float
    """Everything is trained from this epoch on; infinite for never."""
    words: str
    """What is frozen, as a message says it."""
    keeps_statistics: bool = True
    """Whether BatchNorm layers that were frozen use their statistics after the thaw, too: the head
    was trained on what they give. Not so in runs that began by the first rules."""

    def holds(self, position: int, samples: int) -> bool:
        """Whether the batch at a position trains without the frozen parameters."""
        return bool(self.names) and position < self.epochs * samples

    def apply(self, model: nn.Module) -> None:
        """Freeze the parameters, and the running statistics that belong to them."""
        for name, parameter in model.named_parameters():
            if name in self.names and parameter.requires_grad:
                parameter.requires_grad_(False)
                setattr(parameter, _FROZEN, True)
        self.hold_statistics(model)

    def hold_statistics(self, model: nn.Module) -> None:
        """Let frozen BatchNorm layers use their statistics: again after each `model.train()`."""
        for prefix, module in model.named_modules():
            own = [f"{prefix}.{name}" for name, _ in module.named_parameters(recurse=False)]
            if isinstance(module, _BatchNorm) and own and self.names.issuperset(own):
                module.eval()

    def thaw(self, model: nn.Module) -> None:
        """Train every parameter that was frozen here."""
        for parameter in model.parameters():
            if getattr(parameter, _FROZEN, False):
                parameter.requires_grad_(True)
                parameter.grad = None
                delattr(parameter, _FROZEN)

    def text(self) -> str:
        """What is frozen and until when; empty for nothing."""
        until = f"until epoch {self.epochs:g}" if math.isfinite(self.epochs) else "for the run"
        return f"frozen {until}: {self.words}" if self.names else ""


NOTHING = Freeze(frozenset(), 0.0, "")


def is_trained(parameter: nn.Parameter) -> bool:
    """Whether a parameter is trained in some part of the run: frozen ones count."""
    return parameter.requires_grad or bool(getattr(parameter, _FROZEN, False))


def plan_freeze(recipe: Recipe, model: nn.Module) -> Freeze:
    """What the recipe freezes of a model. Raises BadRequest where it names nothing of this model,
    or leaves nothing to train."""
    if not recipe.freeze:
        return NOTHING
    every = [name for name, parameter in model.named_parameters() if is_trained(parameter)]
    if recipe.freeze == BODY:
        heads = head_modules(model)
        names = [name for name in every if not is_inside(name, heads)]
        words = f"all but {listed(heads)}"
    elif recipe.freeze.isdecimal():
        names, words = first_stages(recipe, model, every)
    else:
        names = matching(recipe, model, every)
        words = f"{plural(len(names), 'tensor')} of {len(every)} ({listed(names)})"
    if len(names) == len(every):
        raise BadRequest(
            f"--freeze {shown(recipe.freeze)} leaves nothing of {shown(recipe.model)} to train: "
            "--freeze body trains the head"
        )
    return Freeze(frozenset(names), recipe.freeze_epochs or math.inf, words)


def first_stages(recipe: Recipe, model: nn.Module, every: list[str]) -> tuple[list[str], str]:
    """The parameters of the first stages, and a phrase about them."""
    numbers, heads = stages(model, coarse=True), head_modules(model)
    last = max((numbers[name] for name in every if not is_inside(name, heads)), default=0)
    count, most = int(recipe.freeze[:9]), last + 1
    if not 1 <= count <= most:
        raise BadRequest(
            f"--freeze {recipe.freeze[:9]}: {shown(recipe.model)} has {plural(most, 'stage')} "
            f"before its head: freeze 1 to {most} of them"
        )
    names = [name for name in every if numbers[name] < count and not is_inside(name, heads)]
    tops = tuple(dict.fromkeys(top_of(name) for name in names))
    return names, f"the first {count} of {plural(most, 'stage')} ({listed(tops)})"


def top_of(name: str) -> str:
    """The module of a parameter as people name it: with its number, where it has one."""
    first, _, rest = name.partition(".")
    second = rest.partition(".")[0]
    return f"{first}.{second}" if second.isdecimal() else first


def matching(recipe: Recipe, model: nn.Module, every: list[str]) -> list[str]:
    """The parameters that one of the globs matches, by their names or those of their modules."""
    chosen: set[str] = set()
    for pattern in recipe.freeze.split(","):
        own = {n for n in every if fnmatchcase(n, pattern) or fnmatchcase(n, f"{pattern}.*")}
        if not own:
            known = [*every, *(name for name, _ in model.named_modules() if name)]
            near = difflib.get_close_matches(pattern, known, n=3, cutoff=0.4) or every[:3]
            raise BadRequest(
                f"--freeze '{shown(pattern)}' matches no parameter of {shown(recipe.model)}: use "
                f"{BODY}, a number of stages, or names such as {', '.join(near)}"
            )
        chosen |= own
    return [name for name in every if name in chosen]


def listed(names: tuple[str, ...] | list[str]) -> str:
    """Some names in a message."""
    rest = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + rest
