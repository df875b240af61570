"""torch DataLoader over a folder of files: what the three torchvision peers have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader

from peers.protocol import Job, counted


def epochs_of(dataset: Any, job: Job, kind: str = "uint8") -> Callable[[], int]:
    """Workers stay from epoch to epoch; one a core, as torch advises for CPU-bound decoding."""
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
