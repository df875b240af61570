"""Accuracy, counted exactly.

Invariants: each sample of the split is counted once, at any world size and batch size: ranks take
contiguous shares, nothing is padded or dropped, integers are summed. Of equal logits the lower
class comes first, and a logit of NaN is never right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from stoker.data.loading.loader import Loader
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
    """The numbers of top-1 and top-5 hits."""
    own = logits.gather(1, labels[:, None])
    classes = torch.arange(logits.shape[1], device=logits.device)
    better = (logits > own) | ((logits == own) & (classes < labels[:, None])) | logits.isnan()
    ahead = better.sum(1).masked_fill(own.isnan()[:, 0], logits.shape[1] + 5)
    return (ahead < 1).sum(), (ahead < 5).sum()


@dataclass(frozen=True)
class Evaluator:
    """Evaluates a model on one split, which `loader` loads in order."""

    loader: Loader
    ranks: Ranks
    batch_size: int

    @property
    def images(self) -> int:
        return len(self.loader.split)

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
        """Count right answers; None if `stop` came first. `waiting` gets the seconds of a delay."""
        was_training = model.training
        model.eval()
        counts, loss = torch.zeros(3, dtype=torch.int64), 0.0
        batches = self.loader.batches(self.plan(image_size), waiting)
        try:
            # All ranks take the same number of turns, so that they vote at the same points.
            largest_share = -(-self.images // self.ranks.world)
            for _ in range(-(-largest_share // self.batch_size)):
                if stop():
                    return None
                if (loaded := next(batches, None)) is None:
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
