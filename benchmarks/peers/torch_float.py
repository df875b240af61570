"""torch DataLoader as in PyTorch's own ImageNet example: PIL, float, normalised."""

from __future__ import annotations

from collections.abc import Callable

from torchvision import transforms
from torchvision.datasets import ImageFolder

from peers.protocol import Job, serve
from peers.torch_workers import epochs_of


def prepare(job: Job) -> Callable[[], int]:
    # Note: batches are four times as large, and only this peer pays for normalising.
    if job.training:
        steps = [transforms.RandomResizedCrop(job.size), transforms.RandomHorizontalFlip()]
    else:
        steps = [transforms.Resize(round(job.size / 0.875)), transforms.CenterCrop(job.size)]
    normal = transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    chain = transforms.Compose([*steps, transforms.ToTensor(), normal])
    return epochs_of(ImageFolder(job.files, chain), job, "float32")


if __name__ == "__main__":
    serve(prepare)
