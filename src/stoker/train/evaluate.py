"""Accuracy, counted exactly.

Invariants: each sample of the split is counted once, at any world and batch size: ranks take
contiguous shares, nothing is padded or dropped, whole numbers are summed. A class wins a tie by its
lower number, and a network that answers NaN is never right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from stoker.data.dataset import SplitIndex
from stoker.data.loading.crops import View
from stoker.data.loading.loader import Loader, LoaderOptions
from stoker.data.loading.order import InOrder
from stoker.data.loading.small_images import CACHE_BYTES
from stoker.recipe.schedule import Batch
from stoker.train.process_group import Ranks


@dataclass(frozen=True)
class Accuracy:
    """Right answers among `images`, and the mean loss."""

    images: int
    top1: int
    top5: int
    loss: float

    @property
    def top1_share(self) -> float:
        return self.top1 / self.images


def hits(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """How many labels are the best guess, and how many are among the five best."""
    own = logits.gather(1, labels[:, None])
    number = torch.arange(logits.shape[1], device=logits.device)
    better = (logits > own) | ((logits == own) & (number < labels[:, None])) | logits.isnan()
    ahead = better.sum(1).masked_fill(own.isnan()[:, 0], logits.shape[1] + 5)
    return (ahead < 1).sum(), (ahead < 5).sum()


class Evaluator:
    """Evaluates a network on one split."""

    def __init__(
        self,
        split: SplitIndex,
        view: View,
        ranks: Ranks,
        *,
        batch_size: int,
        threads: int = 0,
        prefetch: int = 3,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        self.ranks, self.batch_size = ranks, batch_size
        self.images = len(split)
        self._loader = Loader(
            split,
            InOrder(),
            view,
            threads=threads,
            prefetch=prefetch,
            options=LoaderOptions(cache_bytes=cache_bytes),
        )

    def close(self) -> None:
        self._loader.close()

    def plan(self, image_size: int) -> Iterator[Batch]:
        """This rank's share of the split, in batches."""
        begin = self.images * self.ranks.rank // self.ranks.world
        end = self.images * (self.ranks.rank + 1) // self.ranks.world
        for step, start in enumerate(range(begin, end, self.batch_size)):
            yield Batch(step, start, min(self.batch_size, end - start), image_size)

    @torch.no_grad()
    def run(
        self,
        model: nn.Module,
        image_size: int,
        to_input: Callable[[NDArray[np.uint8]], Tensor],
        stop: Callable[[], bool] = lambda: False,
        waiting: Callable[[float], None] = lambda seconds: None,
    ) -> Accuracy | None:
        """Count right answers; None if a stop was agreed on before the end."""
        was_training = model.training
        model.eval()
        counts = torch.zeros(3, dtype=torch.int64)
        loss = 0.0
        batches = self._loader.batches(self.plan(image_size), waiting)
        try:
            # All ranks take the same number of turns, so that they agree at the same points.
            largest_share = -(-self.images // self.ranks.world)
            for _ in range(-(-largest_share // self.batch_size)):
                if stop():
                    return None
                loaded = next(batches, None)
                if loaded is None:
                    continue
                logits = model(to_input(loaded.images)).float()
                labels = torch.from_numpy(loaded.labels).to(logits.device)
                best, five = hits(logits, labels)
                counts += torch.tensor([len(labels), int(best), int(five)])
                loss += float(nn.functional.cross_entropy(logits, labels, reduction="sum"))
        finally:
            model.train(was_training)
            batches.close()  # type: ignore[attr-defined]
        images, top1, top5 = (int(number) for number in self.ranks.sum(counts))
        total = self.ranks.sum(torch.tensor([loss], dtype=torch.float64))
        return Accuracy(images, top1, top5, float(total) / images)
