"""torch DataLoader, ImageFolder and PIL, uint8: the most common loader, ratio 1 of the tables."""

from __future__ import annotations

from collections.abc import Callable

from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from peers.protocol import Job, serve
from peers.torch_workers import epochs_of


def prepare(job: Job) -> Callable[[], int]:
    # Note: the default of the transforms is float; PILToTensor keeps bytes.
    if job.training:
        steps = [v2.RandomResizedCrop(job.size), v2.RandomHorizontalFlip()]
    else:
        steps = [v2.Resize(round(job.size / 0.875)), v2.CenterCrop(job.size)]
    return epochs_of(ImageFolder(job.files, v2.Compose([*steps, v2.PILToTensor()])), job)


if __name__ == "__main__":
    serve(prepare)
