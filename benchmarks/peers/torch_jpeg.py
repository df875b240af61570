"""torch DataLoader with torchvision's own JPEG decoder and v2 transforms on uint8 tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchvision.datasets import ImageFolder
from torchvision.io import ImageReadMode, decode_jpeg, read_file
from torchvision.transforms import v2

from peers.protocol import Job, serve
from peers.torch_workers import epochs_of


def tensor_of(path: str) -> Any:
    return decode_jpeg(read_file(path), mode=ImageReadMode.RGB)


def prepare(job: Job) -> Callable[[], int]:
    # Note: antialiasing of tensors is on by default and is kept, because PIL does it too.
    if job.training:
        steps = [v2.RandomResizedCrop(job.size), v2.RandomHorizontalFlip()]
    else:
        steps = [v2.Resize(round(job.size / 0.875)), v2.CenterCrop(job.size)]
    return epochs_of(ImageFolder(job.files, v2.Compose(steps), loader=tensor_of), job)


if __name__ == "__main__":
    serve(prepare)
