"""Accuracy, counted exactly.

Invariants: each sample of the split is counted once, at any world size and batch size: ranks take
contiguous shares, nothing is padded or dropped, integers are summed. Of equal logits the lower
class comes first, and a logit of NaN is never right. Sums, and the answer for each sample, stay on
the device until the end, where one copy reads them all: the host never waits for a batch. A GPU
evaluates in the arithmetic of training, a CPU in 32-bit floats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from stoker.data.loading.loader import BatchLoader
from stoker.recipe.schedule import Batch
from stoker.train.model_input import MakeInput
from stoker.train.passes import forward
from stoker.train.process_group import Ranks
from stoker.train.transfer import BatchTransfer, InPlace

MOST_KEPT = 20_000_000
"""Samples of a split whose single answers are kept, 16 bytes each; of a larger split only sums."""
NO_PREDICTION = -1
"""The predicted class of an image with a logit that is NaN."""
TOTALS = 8
"""32-bit numbers before the answers: three counts and the loss, of 64 bits each."""


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


@dataclass(frozen=True)
class Answers:
    """What the model answered for each sample of the split, in the order of the samples."""

    predicted: NDArray[np.int32]
    """The class, or NO_PREDICTION."""
    probability: NDArray[np.float32]
    """Of the predicted class; NaN without a prediction."""
    loss: NDArray[np.float32]
    ahead: NDArray[np.int32]
    """How many classes the model ranks before the label: 0 is a top-1 hit."""

    @classmethod
    def of(cls, rows: Tensor) -> Answers:
        """The answers in the rows of a `DeviceTally`."""
        columns = np.ascontiguousarray(rows.numpy().T)
        predicted, probability, loss, ahead = columns
        return cls(predicted, probability.view(np.float32), loss.view(np.float32), ahead)


def ahead_of(logits: Tensor, labels: Tensor) -> Tensor:
    """For each image, how many classes are ranked before its label."""
    own = logits.gather(1, labels[:, None])
    classes = torch.arange(logits.shape[1], device=logits.device)
    better = (logits > own) | ((logits == own) & (classes < labels[:, None])) | logits.isnan()
    return better.sum(1).masked_fill(own.isnan()[:, 0], logits.shape[1] + 5)


def hits(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The numbers of top-1 and top-5 hits."""
    ahead = ahead_of(logits, labels)
    return (ahead < 1).sum(), (ahead < 5).sum()


def predictions(logits: Tensor) -> Tensor:
    """The class with the highest logit, the lowest of equal ones; NO_PREDICTION beside a NaN."""
    highest, classes = logits.max(1)  # of a row with a NaN that is the highest
    return classes.masked_fill(highest.isnan(), NO_PREDICTION)


class DeviceTally:
    """The sums of a rank's share, and its answers from sample `first` on, in one piece of memory on
    the device."""

    def __init__(self, first: int, samples: int, device: torch.device) -> None:
        self.first, self.samples = first, samples
        self.memory = torch.zeros(TOTALS + 4 * samples, dtype=torch.int32, device=device)
        self.counts, self.loss, self.rows = views_of(self.memory)

    def add(self, logits: Tensor, labels: Tensor, position: int) -> None:
        """Count a batch that begins with sample number `position`."""
        ahead = ahead_of(logits, labels)
        logarithms = logits.log_softmax(1)
        self.counts[0] += len(labels)
        self.counts[1] += (ahead < 1).sum()
        self.counts[2] += (ahead < 5).sum()
        self.loss += nn.functional.nll_loss(logarithms, labels, reduction="sum")
        if not self.samples:
            return
        predicted = predictions(logits)
        rows = self.rows[position - self.first : position - self.first + len(labels)]
        rows[:, 0] = predicted
        chosen = logarithms.gather(1, predicted.clamp(min=0)[:, None])[:, 0].exp()
        # Beside a NaN every logarithm is NaN, and so is the probability.
        rows[:, 1] = chosen.view(torch.int32)
        rows[:, 2] = (-logarithms.gather(1, labels[:, None])[:, 0]).view(torch.int32)
        rows[:, 3] = ahead


def views_of(memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The counts (images, top-1, top-5), the loss, and a row of four numbers for each sample."""
    totals = memory[:TOTALS].view(torch.int64)
    return totals[:3], totals[3:].view(torch.float64), memory[TOTALS:].view(-1, 4)


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

    @property
    def edges(self) -> list[int]:
        """Where the ranks' shares of the split begin, and the end of the last one."""
        world = self.ranks.world
        return [self.images * rank // world for rank in range(world + 1)]

    def plan(self, image_size: int) -> Iterator[Batch]:
        """This rank's share of the split, in batches."""
        begin, end = self.edges[self.ranks.rank : self.ranks.rank + 2]
        for step, start in enumerate(range(begin, end, self.batch_size)):
            yield Batch(step, start, min(self.batch_size, end - start), image_size)

    def run(
        self,
        model: nn.Module,
        image_size: int,
        to_input: MakeInput,
        stop: Callable[[], bool] = lambda: False,
        waiting: Callable[[float], None] = lambda seconds: None,
    ) -> Accuracy | None:
        """Count right answers; None if `stop` came first. `waiting` gets the seconds of a delay."""
        evaluated = self.run_with_answers(model, image_size, to_input, stop, waiting)
        return evaluated[0] if evaluated else None

    @torch.no_grad()
    def run_with_answers(
        self,
        model: nn.Module,
        image_size: int,
        to_input: MakeInput,
        stop: Callable[[], bool] = lambda: False,
        waiting: Callable[[float], None] = lambda seconds: None,
    ) -> tuple[Accuracy, Answers | None] | None:
        """The accuracy and, on rank 0, all answers, if the split has at most MOST_KEPT samples.
        None if `stop` came first. `waiting` gets the seconds of a delay."""
        modes = [(module, module.training) for module in model.modules()]
        model.eval()
        begin, end = self.edges[self.ranks.rank : self.ranks.rank + 2]
        tally = DeviceTally(
            begin, end - begin if self.images <= MOST_KEPT else 0, self.ranks.device
        )
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
                tally.add(logits, batch.labels, loaded.batch.position)
                self.transfer.release(batch)
        finally:
            for module, mode in modes:  # frozen layers have another one than the rest
                module.training = mode
            batches.close()  # type: ignore[attr-defined]
        return self.summed(tally)

    def summed(self, tally: DeviceTally) -> tuple[Accuracy, Answers | None]:
        """The sums of all ranks and, on rank 0, the answers of all ranks in order."""
        counts, loss, rows = views_of(tally.memory.cpu())
        images, top1, top5 = self.ranks.sum(counts).tolist()
        accuracy = Accuracy(images, top1, top5, float(self.ranks.sum(loss)) / images)
        if self.images > MOST_KEPT:
            return accuracy, None
        sizes = [end - begin for begin, end in pairwise(self.edges)]
        gathered = self.ranks.gather_rows(rows, sizes)
        return accuracy, None if gathered is None else Answers.of(gathered)
