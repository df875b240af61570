"""Accuracy, counted exactly.

Invariants: each sample of the split is counted once, at any world size and batch size: ranks take
contiguous shares, nothing is padded or dropped, integers are summed. Of equal logits the lower
class comes first, and a logit of NaN is never right. Sums stay on the device until the end, so the
host never waits for a batch. A GPU evaluates in the arithmetic of training, a CPU in 32-bit floats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from stoker.data.loading.loader import BatchLoader
from stoker.recipe.schedule import Batch
from stoker.train.model_input import MakeInput
from stoker.train.passes import forward
from stoker.train.process_group import Ranks
from stoker.train.transfer import BatchTransfer, InPlace


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

    loader: BatchLoader
    ranks: Ranks
    batch_size: int
    amp: str = "off"
    """The precision of the model's arithmetic."""
    transfer: BatchTransfer = field(default_factory=InPlace)

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
        to_input: MakeInput,
        stop: Callable[[], bool] = lambda: False,
        waiting: Callable[[float], None] = lambda seconds: None,
    ) -> Accuracy | None:
        """Count right answers; None if `stop` came first. `waiting` gets the seconds of a delay."""
        modes = [(module, module.training) for module in model.modules()]
        model.eval()
        device = self.ranks.device
        counts = torch.zeros(3, dtype=torch.int64, device=device)
        loss = torch.zeros(1, dtype=torch.float64, device=device)
        batches = self.loader.batches(self.plan(image_size), waiting)
        try:
            # All ranks take the same number of turns, so that they vote at the same points.
            largest_share = -(-self.images // self.ranks.world)
            for _ in range(-(-largest_share // self.batch_size)):
                if stop():
                    return None
                if (loaded := next(batches, None)) is None:
                    continue
                batch = self.transfer.send(loaded)
                logits = forward(model, to_input(batch.images, None), self.amp).float()
                best, five = hits(logits, batch.labels)
                counts[0] += len(loaded.labels)
                counts[1] += best
                counts[2] += five
                loss += nn.functional.cross_entropy(logits, batch.labels, reduction="sum")
                self.transfer.release(batch)
        finally:
            for module, mode in modes:  # frozen layers have another one than the rest
                module.training = mode
            batches.close()  # type: ignore[attr-defined]
        images, top1, top5 = self.ranks.sum(counts.cpu()).tolist()
        total = self.ranks.sum(loss.cpu())
        return Accuracy(images, top1, top5, float(total) / images)
