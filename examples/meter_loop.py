"""What limits a PyTorch loop of your own? stoker.Meter measures its parts and says so.

python examples/meter_loop.py photos

`photos` has one folder for each class. The loop has nothing of Stoker but the meter: the images are
read with Pillow, by a DataLoader.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import stoker


class Photos(Dataset[tuple[Tensor, int]]):
    """The images of a folder with one folder for each class."""

    def __init__(self, root: Path, size: int) -> None:
        self.classes = sorted(folder.name for folder in root.iterdir() if folder.is_dir())
        self.files = [
            (file, label)
            for label, name in enumerate(self.classes)
            for file in sorted((root / name).iterdir())
        ]
        self.size = size

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        file, label = self.files[number]
        with Image.open(file) as image:
            pixels = np.asarray(image.convert("RGB").resize((self.size, self.size)))
        return torch.from_numpy(pixels / np.float32(255)).permute(2, 0, 1), label


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("photos", type=Path)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=0, help="of the DataLoader")
    options = parser.parse_args()
    photos = Photos(options.photos, options.image_size)
    loader = DataLoader(photos, options.batch_size, shuffle=True, num_workers=options.workers)
    layers = nn.Conv2d(3, 32, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    model = nn.Sequential(*layers, nn.Linear(32, len(photos.classes)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    meter = stoker.Meter(model)
    for epoch in range(options.epochs):
        for images, labels in meter.batches(loader):
            with meter("forward"):
                loss = nn.functional.cross_entropy(model(images), labels)
            with meter("backward"):
                optimizer.zero_grad()
                loss.backward()
            with meter("optimiser"):
                optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}")

    verdict = meter.verdict()  # None before the fourth step
    print(*(verdict.lines() if verdict else ["too few steps to tell"]), sep="\n")


if __name__ == "__main__":
    main()
