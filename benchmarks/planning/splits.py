"""What is held out together, fixed before anything was fitted.

arch-out: names of one architecture (`tv_`, `_ap`, `_ns`) leave together, in ten shares.
family-names-out: all rows with the names of one of five families leave; rows of the same blocks
under other names stay.
"""

from __future__ import annotations

import re

import numpy as np

FAMILIES = {
    "resnet, resnext, wide": r"(tv_|gluon_|ssl_|swsl_|ig_|legacy_)*(wide_)?(se)?(resnet|resnext)\d",
    "mobilenet, efficientnet": r"(tf_)?(mobilenet|efficientnet)",
    "convnext": r"convnext",
    "vit, deit, swin": r"vit_|deit|swin",
    "densenet, vgg": r"(tv_)?(densenet|vgg)",
}
SHARES = 10


def family_of(name: str) -> str:
    """The family of a model's name; empty where it is in none of the five."""
    return next((family for family, form in FAMILIES.items() if re.match(form, name)), "")


def arch_out(architectures: list[str], seed: int = 0) -> list[np.ndarray]:
    """Ten masks of rows to hold out; rows of one architecture are in one of them."""
    names = sorted(set(architectures))
    order = np.random.default_rng(seed).permutation(len(names)) % SHARES
    share = dict(zip(names, order, strict=True))
    shares = np.array([share[name] for name in architectures])
    return [shares == number for number in range(SHARES)]


def family_out(families: list[str]) -> list[np.ndarray]:
    """A mask of the rows of each family."""
    return [np.array([family == each for family in families]) for each in FAMILIES]
