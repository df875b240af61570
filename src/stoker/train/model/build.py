"""Models: a small one of ours for small images and slow machines, timm's, and the user's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from stoker.chance import seed_of
from stoker.data.images.pixel_ops import IMAGENET_MEAN, IMAGENET_STD
from stoker.errors import BadRequest, StokerError
from stoker.host.out_of_memory import is_out_of_memory
from stoker.recipe.model_file import is_own
from stoker.recipe.recipe import Recipe
from stoker.text import one_line, plural, shown
from stoker.train.model.names import OWN, check_model, image_sizes
from stoker.train.model.own_build import build_own, own_normalise, reason_of, where
from stoker.train.model.own_code import trusted_code
from stoker.train.model.weights import cached_weights

DROPS = {"dropout": "drop_rate", "drop_path": "drop_path_rate"}
"""Keys of the recipe that a model is built with, and what timm calls them."""
FEW = 1_000_000
"""Parameters that a model may have beside those of its weights: they take 4 MB."""


@dataclass(frozen=True)
class Normalise:
    """Mean and standard deviation of the pixels (0 to 1) that a model expects."""

    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD


def conv_block(channels_in: int, channels_out: int, *, pool: bool = False) -> nn.Sequential:
    """3x3 convolution, (pooling), BatchNorm, ReLU. Pooling before BatchNorm makes the rest four
    times cheaper and costs no accuracy."""
    convolution = nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False)
    pooling = [nn.MaxPool2d(2)] if pool else []
    return nn.Sequential(convolution, *pooling, nn.BatchNorm2d(channels_out), nn.ReLU(inplace=True))


class Residual(nn.Module):
    """Two convolutions beside a shortcut. In training they are left out for a share `drop_path` of
    the images, and count more for the others."""

    def __init__(self, channels: int, drop_path: float = 0.0) -> None:
        super().__init__()
        self.body = nn.Sequential(conv_block(channels, channels), conv_block(channels, channels))
        self.drop_path = drop_path

    def forward(self, x: Tensor) -> Tensor:
        branch: Tensor = self.body(x)
        if self.training and self.drop_path:
            kept = torch.empty(len(x), 1, 1, 1, dtype=x.dtype, device=x.device)
            branch = branch * kept.bernoulli_(1 - self.drop_path).div_(1 - self.drop_path)
        return x + branch


class ResNet9(nn.Module):
    """Nine layers for images of 32 to 128 pixels; `width` channels after the first layer."""

    def __init__(
        self, classes: int, width: int = 64, dropout: float = 0.0, drop_path: float = 0.0
    ) -> None:
        super().__init__()
        self.dropout = dropout
        self.features = nn.Sequential(
            conv_block(3, width),
            conv_block(width, 2 * width, pool=True),
            Residual(2 * width, drop_path / 2),
            conv_block(2 * width, 4 * width, pool=True),
            conv_block(4 * width, 8 * width, pool=True),
            Residual(8 * width, drop_path),
            nn.AdaptiveMaxPool2d(1),
            nn.Flatten(),
        )
        self.head = nn.Linear(8 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        features = self.features(x)
        if self.dropout:
            features = nn.functional.dropout(features, self.dropout, self.training)
        # A fixed temperature keeps early logits small: the field's usual value for this net.
        out: Tensor = 0.125 * self.head(features)
        return out


def build_model(recipe: Recipe, classes: int) -> tuple[nn.Module, Normalise]:
    """A model with weights drawn from the recipe's seed, and the input it expects: `load_start`
    loads the weights that the recipe names. Raises BadRequest for a model that does not exist. Code
    of the user's own runs if it was passed to `own_code.trust`."""
    check_model(recipe)
    if is_own(recipe.model):
        model = build_own(recipe, classes)
        expected = getattr(model, "pretrained_cfg", None)
        own_input = own_normalise(trusted_code(recipe), expected) if expected else ()
        return model, Normalise(*own_input)
    if own := OWN.fullmatch(recipe.model):
        seed_weights(recipe)
        width = int(own.group(1) or 64)
        return ResNet9(classes, width, recipe.dropout, recipe.drop_path), Normalise()
    return build_timm(recipe, classes)


@contextmanager
def parameters_at_most(most: int, reason: str) -> Iterator[None]:
    """Build a model of at most so many parameters, and FEW. Raises StokerError with the reason
    before others take memory, and where memory runs out."""
    count = 0

    def check(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
        nonlocal count
        count += parameter.numel()
        if count > most + FEW:
            raise StokerError(f"{reason}: the model has more than {most:,} parameters")

    hook = register_module_parameter_registration_hook(check)
    try:
        yield
    except Exception as error:
        if is_out_of_memory(error):
            raise StokerError(f"{reason}, or is too large for the memory here") from error
        raise
    finally:
        hook.remove()


def seed_weights(recipe: Recipe) -> None:
    torch.manual_seed(seed_of(recipe.seed, "weights"))


def build_timm(
    recipe: Recipe, classes: int, *, pretrained: bool = False
) -> tuple[nn.Module, Normalise]:
    """A model of timm; `pretrained`: with timm's weights, and a new head for another number of
    classes. Raises BadRequest where timm cannot build it, or the weights are out of reach."""
    import timm

    options: dict[str, Any] = {"pretrained": pretrained, "num_classes": classes}
    try:
        if pretrained and (file := cached_weights(recipe.model)):
            options["pretrained_cfg_overlay"] = {"file": file}
        seed_weights(recipe)
        model = timm.create_model(recipe.model, **options, **drop_options(recipe))
    except Exception as error:  # timm, the hub and its transport raise errors of many kinds
        if isinstance(error, StokerError) or is_out_of_memory(error):
            raise
        reason = one_line(str(error)) or type(error).__name__
        if refused := next((name for name in DROPS.values() if f"'{name}'" in reason), None):
            flag = next(key for key, name in DROPS.items() if name == refused)
            raise BadRequest(no_drop(recipe, flag)) from error
        raise BadRequest(f"timm cannot build '{recipe.model}': {reason}") from error
    check_drops(model, recipe)
    expected = model.pretrained_cfg
    mean, std = expected.get("mean", IMAGENET_MEAN), expected.get("std", IMAGENET_STD)
    return model, Normalise(tuple(mean), tuple(std))


def drop_options(recipe: Recipe) -> dict[str, float]:
    """What timm calls the recipe's dropout and drop-path; what is 0 is left to timm."""
    return {name: getattr(recipe, key) for key, name in DROPS.items() if getattr(recipe, key)}


def check_drops(model: nn.Module, recipe: Recipe) -> None:
    """Raise BadRequest where a model of timm has taken a rate and does nothing with it."""
    for key in (key for key in DROPS if getattr(recipe, key)):
        attributes = ("drop_prob", "drop_path_rate") if key == "drop_path" else ("p", "drop_rate")
        rates = (getattr(module, name, 0.0) for module in model.modules() for name in attributes)
        if not any(isinstance(rate, float) and rate > 0 for rate in rates):
            raise BadRequest(no_drop(recipe, key))


def no_drop(recipe: Recipe, key: str) -> str:
    flag = f"--{key.replace('_', '-')}"
    return f"{recipe.model} has no place for {flag}: drop {flag}, or choose another --model"


def check_image_sizes(model: nn.Module, recipe: Recipe, classes: int) -> None:
    """Pass two black images of each size through the model, which stays as it is. Raises BadRequest
    where it does not take them, or does not answer with a number for each class."""
    device, training = next(model.parameters()).device, model.training
    own = is_own(recipe.model)
    model.eval()
    try:
        for size in image_sizes(recipe):
            try:
                with torch.no_grad():
                    logits = model(torch.zeros(2, 3, size, size, device=device))
            except Exception as error:  # models raise errors of many kinds
                if is_out_of_memory(error):
                    raise
                raise BadRequest(wrong_size(model, recipe, size, error)) from error
            shape = tuple(getattr(logits, "shape", ()))
            if shape != (2, classes):
                advice = "return a number for each class" if own else "choose another --model"
                raise BadRequest(
                    f"{recipe.model} is no classifier: for 2 images and {plural(classes, 'class')} "
                    f"its output has the shape {shape}; {advice}"
                )
        if own:
            check_gradients(model, recipe, image_sizes(recipe)[0])
    finally:
        model.train(training)


def check_gradients(model: nn.Module, recipe: Recipe, size: int) -> None:
    """Pass two black images forward and back through a model of the user's own. Raises BadRequest
    where a parameter has no part in the output: ranks would wait for its gradient."""
    code, device = trusted_code(recipe), next(model.parameters()).device
    try:
        model(torch.zeros(2, 3, size, size, device=device)).sum().backward()
    except Exception as error:  # models raise errors of many kinds
        if is_out_of_memory(error):
            raise
        text = f"{where(code, error)}: the backward pass failed: {reason_of(error)}"
        raise BadRequest(text) from error
    idle = [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    model.zero_grad(set_to_none=True)
    if idle:
        raise BadRequest(
            f"{where(code)}: {shown(idle[0])} gets no gradient: use it in forward(), or set its "
            "requires_grad to False"
        )


def wrong_size(model: nn.Module, recipe: Recipe, size: int, error: Exception) -> str:
    """What to tell the user about a model that does not take images of this size."""
    usual = (getattr(model, "pretrained_cfg", None) or {}).get("input_size", (3, size, size))[-1]
    reason = one_line(str(error)) or type(error).__name__
    if is_own(recipe.model):
        line = where(trusted_code(recipe), error)
        return f"{line}: the model does not take images of {size} px: {reason}"
    advice = f"use --image-size {usual}" if usual != size else "choose another --model"
    if recipe.phases and usual != size:
        advice = f"give its phases image_size = {usual}"
    return f"{recipe.model} does not take images of {size} px: {advice} ({reason})"
