"""Stoker's loader in Lightning: mid-epoch checkpoints hold the loader's position.

pip install lightning
python examples/lightning_loop.py photos-packed
"""

from __future__ import annotations

import sys
from typing import Any

import lightning
import torch
from torch import Tensor, nn

import stoker


class Classifier(lightning.LightningModule):
    def __init__(self, classes: int) -> None:
        super().__init__()
        layers = nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        self.model = nn.Sequential(*layers, nn.Linear(8, classes))

    def training_step(self, batch: tuple[Tensor, Tensor], number: int) -> Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(self.model(images), labels)

    def validation_step(self, batch: tuple[Tensor, Tensor], number: int) -> None:
        images, labels = batch
        right = (self.model(images).argmax(1) == labels).float().mean()
        self.log("top1", right, batch_size=len(labels), sync_dist=True)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def main(data: str) -> None:
    train = stoker.Loader(data, "train", 16, 32)
    val = stoker.Loader(data, "val", 16, 32)
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_progress_bar=False
    )
    trainer.fit(Classifier(len(train.classes)), train, val)
    print(f"samples {train.position}, top-1 {float(trainer.callback_metrics['top1']):.3f}")


if __name__ == "__main__":
    main(sys.argv[1])
