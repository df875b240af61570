"""Stoker's loader in accelerate: prepare the model and the optimiser, not the loader.

pip install accelerate
python examples/accelerate_loop.py photos-packed
"""

from __future__ import annotations

import sys

import torch
from accelerate import Accelerator
from torch import nn

import stoker


def main(data: str) -> None:
    accelerator = Accelerator()
    # The loader finds its rank by itself, and resumes with the rest: it has a state_dict.
    train = stoker.Loader(data, "train", 16, 32)
    accelerator.register_for_checkpointing(train)
    layers = nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    model = nn.Sequential(*layers, nn.Linear(8, len(train.classes)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = accelerator.prepare(model, optimizer)
    for _ in train.epochs(2):
        for images, labels in train:
            images, labels = (tensor.to(accelerator.device) for tensor in (images, labels))
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
    print(f"samples {train.position}, loss {loss.item():.3f}")


if __name__ == "__main__":
    main(sys.argv[1])
