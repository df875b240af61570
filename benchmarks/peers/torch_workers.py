"""torch DataLoader over a folder of files: shared by the three torchvision peers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader

from peers.protocol import Job, counted


def epochs_of(dataset: Any, job: Job, kind: str = "uint8") -> Callable[[], int]:
    """A function that runs one epoch. Workers are kept from epoch to epoch; there is one a core, as
    torch advises for CPU-bound decoding."""
    torch.set_num_threads(1)
    loader = DataLoader(
        dataset,
        batch_size=job.batch,
        shuffle=job.training,
        drop_last=job.training,
        num_workers=job.cores,
        persistent_workers=True,
    )
    return lambda: sum(counted(images, job, kind) for images, _ in loader)
