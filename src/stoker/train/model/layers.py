"""The layers of a model in their order, and its head: which parameters belong together.

Invariants: everything here is a function of the names of a model's parameters and modules, so it
is the same on every rank and in every attempt. Stage 0 is next to the image; the head comes last.
timm's models say themselves how they are grouped. Others are grouped by their top-level modules,
where those of an `nn.Sequential` count one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

HEAD = (nn.Linear, nn.Conv2d)
"""The kinds of module that a head ends with."""


def head_modules(model: nn.Module) -> tuple[str, ...]:
    """The names of the modules that turn features into a number for each class: those that timm
    names, else the last linear or convolutional one. Empty for a model without any."""
    named = (getattr(model, "pretrained_cfg", None) or {}).get("classifier") or ()
    modules = dict(model.named_modules())
    names = (named,) if isinstance(named, str) else tuple(named)
    heads = tuple(name for name in names if has_parameters(modules.get(name)))
    if heads:
        return heads
    return tuple(name for name, module in modules.items() if isinstance(module, HEAD))[-1:]


def last_layers(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters of the last linear or convolutional layer of each head, by name."""
    for head in head_modules(model):
        inner = model.get_submodule(head).named_modules(prefix=head)
        layers = [(name, module) for name, module in inner if isinstance(module, HEAD)]
        for name, module in layers[-1:]:
            yield from module.named_parameters(prefix=name)


def has_parameters(module: nn.Module | None) -> bool:
    return module is not None and next(module.parameters(), None) is not None


def is_inside(name: str, modules: tuple[str, ...]) -> bool:
    """Whether a parameter or buffer belongs to one of the modules of these names."""
    return any(name.startswith(f"{module}.") for module in modules)


def stages(model: nn.Module, *, coarse: bool) -> dict[str, int]:
    """The stage of each parameter, counted from 0. With `coarse`, a timm model's blocks are taken
    together where it has larger stages; without it, each of them is a layer."""
    if matcher := group_matcher(model):
        from timm.models import group_parameters

        groups = group_parameters(model, matcher(coarse=coarse), reverse=True)
        last = max(groups.values(), default=0)
        numbers = {name: groups.get(name, last) for name, _ in model.named_parameters()}
    else:
        numbers = {}
        for number, prefix in enumerate(top_modules(model)):
            inside = (n for n, _ in model.named_parameters() if is_inside(n, (prefix,)))
            numbers |= dict.fromkeys(inside, number)
        # Parameters of the model itself, such as a token, come before its modules.
        numbers |= {name: 0 for name, _ in model.named_parameters() if name not in numbers}
    used = {number: place for place, number in enumerate(sorted(set(numbers.values())))}
    return {name: used[number] for name, number in numbers.items()}


def group_matcher(model: nn.Module) -> Any:
    """How a model of timm groups its parameters; None for other models."""
    return getattr(model, "group_matcher", None)


def top_modules(model: nn.Module) -> list[str]:
    """The names of the top-level modules, and of those inside a top-level `nn.Sequential`."""
    names = []
    for name, module in model.named_children():
        if isinstance(module, nn.Sequential):
            names += [f"{name}.{inner}" for inner, _ in module.named_children()]
        else:
            names.append(name)
    return names


def lr_scales(model: nn.Module, head_lr_scale: float, layer_decay: float) -> dict[str, float]:
    """The factor of the learning rate of each parameter. `layer_decay`, as timm has it, is applied
    once for each layer between a parameter and the last layer."""
    layers = stages(model, coarse=False)
    last, heads = max(layers.values(), default=0), head_modules(model)
    return {
        name: layer_decay ** (last - layer) * (head_lr_scale if is_inside(name, heads) else 1.0)
        for name, layer in layers.items()
    }
