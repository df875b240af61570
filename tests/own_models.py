"""Texts of models that users wrote: one that is right, and many that are not."""

from __future__ import annotations

from pathlib import Path

NET = '''"""A small model."""

from torch import nn


class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(4, classes)

    def forward(self, x):
        return self.head(self.drop(self.body(x).mean((2, 3))))


def build(classes):
    return Net(classes)
'''
RANDOM = '''"""Draws numbers while it is imported, built and trained, by each generator."""

import random

import numpy as np
import torch
from torch import nn

SCALE = 1 + 0.1 * random.random() + 0.1 * float(np.random.rand()) + 0.1 * float(torch.rand(()))


class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.register_buffer("shift", torch.full((1,), random.random()))
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.head = nn.Linear(4, classes)

    def forward(self, x):
        features = SCALE * self.body(x).mean((2, 3)) + self.shift
        if self.training:
            features = features * (0.9 + 0.2 * random.random()) + 0.01 * float(np.random.rand())
            features = nn.functional.dropout(features, 0.2)
        return self.head(features)


def build(classes):
    return Net(classes)
'''
GLOBALS = """import os
import random
import sys

import torch
from torch import nn

torch.manual_seed(7)
random.seed(7)
os.chdir("/")
sys.path.insert(0, "/nowhere")
torch.set_grad_enabled(False)
torch.use_deterministic_algorithms(True)
torch.backends.cudnn.benchmark = True
torch.set_num_threads(3)
torch.set_float32_matmul_precision("medium")


def build(classes):
    torch.set_default_dtype(torch.float64)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, classes)).float()
"""
WRONG = """import torch
from torch import nn


def flat(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, classes))


def no_argument():
    return flat(2)


def two_arguments(classes, width):
    return flat(classes)


def raises(classes):
    widths = [1, 2]
    return widths[classes]


def speechless(classes):
    raise KeyError


def leaves(classes):
    raise SystemExit(3)


def nothing(classes):
    flat(classes)


def untrained(classes):
    return flat(classes).requires_grad_(False)


def without_weights(classes):
    return nn.Identity()


def lazy(classes):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(classes))


def wrong_shape(classes):
    return flat(7)


def wrong_size(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(5, classes))


class Idle(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.used, self.unused = flat(classes), nn.Linear(1, 1)

    def forward(self, x):
        return self.used(x)


class Backwards(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.body = flat(classes)

    def forward(self, x):
        with torch.no_grad():
            return self.body(x)


class Uncopied(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.body = flat(classes)
        self.file = open(__file__)

    def forward(self, x):
        return self.body(x)


class Remembers(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.body = flat(classes)

    def forward(self, x):
        return self.body(x)

    def get_extra_state(self):
        return {"steps": 3}

    def set_extra_state(self, state):
        pass


def narrow(classes):
    model = flat(classes)
    model.pretrained_cfg = {"mean": (0.5,), "std": (0.5,)}
    return model


constant = 3
"""


def write(folder: Path, text: str = NET, name: str = "net.py") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text)
    return path
