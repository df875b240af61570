"""Models: a small one of our own for small images and slow machines, timm for the rest."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from stoker.chance import seed_of
from stoker.errors import BadRequest
from stoker.recipe.recipe import Recipe

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


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
    """Two convolutions beside a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(conv_block(channels, channels), conv_block(channels, channels))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.body(x)
        return out


class ResNet9(nn.Module):
    """Nine layers for images of 32 to 128 pixels; `width` channels after the first layer."""

    def __init__(self, classes: int, width: int = 64) -> None:
        super().__init__()
        self.features = nn.Sequential(
            conv_block(3, width),
            conv_block(width, 2 * width, pool=True),
            Residual(2 * width),
            conv_block(2 * width, 4 * width, pool=True),
            conv_block(4 * width, 8 * width, pool=True),
            Residual(8 * width),
            nn.AdaptiveMaxPool2d(1),
            nn.Flatten(),
        )
        self.head = nn.Linear(8 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        # A fixed temperature keeps early logits small: the field's usual value for this net.
        out: Tensor = 0.125 * self.head(self.features(x))
        return out


def build_model(recipe: Recipe, classes: int) -> tuple[nn.Module, Normalise]:
    """A model with weights drawn from the recipe's seed, and the input it expects. Raises
    BadRequest for a model that does not exist or has no pre-trained weights."""
    torch.manual_seed(seed_of(recipe.seed, "weights"))
    if own := re.fullmatch(r"resnet9(?:_w([1-9]\d{0,3}))?", recipe.model):
        if recipe.pretrained:
            raise BadRequest(f"{recipe.model} has no pre-trained weights: drop --pretrained")
        return ResNet9(classes, int(own.group(1) or 64)), Normalise()
    return build_timm(recipe, classes)


def build_timm(recipe: Recipe, classes: int) -> tuple[nn.Module, Normalise]:
    try:
        import timm
    except ImportError as error:
        raise BadRequest(
            f"model '{recipe.model}' comes from timm, which is not installed: "
            "pip install 'stoker[timm]', or use --model resnet9"
        ) from error
    if not timm.is_model(recipe.model):
        near = difflib.get_close_matches(recipe.model, timm.list_models(), n=5)
        hint = f"; close names: {', '.join(near)}" if near else ""
        raise BadRequest(f"timm has no model called '{recipe.model}'{hint}")
    model = timm.create_model(recipe.model, pretrained=recipe.pretrained, num_classes=classes)
    expected = model.pretrained_cfg
    mean, std = expected.get("mean", IMAGENET_MEAN), expected.get("std", IMAGENET_STD)
    return model, Normalise(tuple(mean), tuple(std))
