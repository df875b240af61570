"""Logs of other programs, written from runs of which every step is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean

Step = tuple[float, float]
"""Seconds a step took, and seconds of them it waited for its batch."""
Writer = Callable[..., str]

WARMUP: Step = (6.0, 2.5)
BATCH = 128


def simulate(kind: str, steps: int, seed: int = 0, work_s: float = 0.15) -> list[Step]:
    """A run of one epoch, its first step slow as first steps are."""
    chance = Random(seed)

    def wait_s(number: int) -> float:
        if kind == "compute":
            return 0.0005
        if kind == "steady":
            return 0.1 * chance.uniform(0.8, 1.2)
        if kind == "bursts":
            return 0.5 * chance.uniform(0.8, 1.2) if number % 9 == 8 else 0.0004
        if kind == "stalls":
            return 4.0 if number % 100 in (53, 57) else 0.0004
        raise ValueError(kind)

    waits = [wait_s(number) for number in range(1, steps)]
    return [WARMUP] + [(work_s * chance.uniform(0.95, 1.05) + wait, wait) for wait in waits]


@dataclass(frozen=True)
class LoggedStep:
    """A step, with the means that a program prints at it."""

    number: int
    steps: Sequence[Step]

    def latest(self, part: int) -> float:
        return self.steps[self.number][part]

    def mean(self, part: int) -> float:
        return fmean(step[part] for step in self.steps[: self.number + 1])

    def window(self, part: int) -> float:
        return fmean(step[part] for step in self.steps[max(self.number - 19, 0) : self.number + 1])


def logged(steps: Sequence[Step], every: int) -> Iterator[LoggedStep]:
    return (LoggedStep(number, steps) for number in range(0, len(steps), every))


def accuracy(number: int) -> float:
    return 100 * ((number * 7) % 100 + 1) / BATCH


def examples_old(epoch: int, steps: Sequence[Step], every: int = 10) -> str:
    return "".join(
        f"Epoch: [{epoch}][{at.number}/{len(steps)}]\tTime {at.latest(0):.3f} ({at.mean(0):.3f})\t"
        f"Data {at.latest(1):.3f} ({at.mean(1):.3f})\tLoss 6.9 (7.0)\t"
        f"Prec@1 {accuracy(at.number):.3f} (0.1)\tPrec@5 {accuracy(at.number + 3):.3f} (0.5)\n"
        for at in logged(steps, every)
        if at.number > 0
    )


def _examples(epoch: int, steps: Sequence[Step], every: int, counted_from: int) -> str:
    width = len(str(len(steps)))
    return "".join(
        f"Epoch: [{epoch}][{at.number + counted_from:{width}d}/{len(steps)}]\t"
        f"Time {at.latest(0):6.3f} ({at.mean(0):6.3f})\t"
        f"Data {at.latest(1):6.3f} ({at.mean(1):6.3f})\tLoss 6.9e+00 (7.0e+00)\t"
        f"Acc@1 {accuracy(at.number):6.2f} (  0.10)\tAcc@5 {accuracy(at.number + 3):6.2f} ( 0.5)\n"
        for at in logged(steps, every)
    )


def examples_wide(epoch: int, steps: Sequence[Step], every: int = 10) -> str:
    return _examples(epoch, steps, every, 0)


def examples_new(epoch: int, steps: Sequence[Step], every: int = 10) -> str:
    return _examples(epoch, steps, every, 1)


def timm(epoch: int, steps: Sequence[Step], every: int = 10, with_mean: bool = True) -> str:
    lines = []
    for at in logged(steps, every):
        mean = f"({at.mean(0):.3f}s, {BATCH / at.mean(0):>7.2f}/s)  " if with_mean else ""
        share = 100 * at.number / (len(steps) - 1)
        lines.append(
            f"Train: {epoch} [{at.number:>4d}/{len(steps)} ({share:>3.0f}%)]  "
            f"Loss: 6.95 (6.95)  "
            f"Time: {at.latest(0):.3f}s, {BATCH / at.latest(0):>7.2f}/s  {mean}"
            f"LR: 1.000e-01  Data: {at.latest(1):.3f} ({at.mean(1):.3f})\n"
        )
    return "".join(lines)


def torchvision(epoch: int, steps: Sequence[Step], every: int = 10) -> str:
    width = len(str(len(steps)))
    return "".join(
        f"Epoch: [{epoch}]  [{at.number:{width}d}/{len(steps)}]  eta: 1:02:03  lr: 0.1  "
        f"img/s: {BATCH / (at.latest(0) - at.latest(1)):.3f}  loss: 6.9 (7.0)  "
        f"acc1: {accuracy(at.number):.4f} (0.1)  time: {at.window(0):.4f}  "
        f"data: {at.window(1):.4f}  max mem: 3000\n"
        for at in logged(steps, every)
    )


WRITERS: dict[str, tuple[str, Writer]] = {
    "examples_old": ("pytorch/examples", examples_old),
    "examples_wide": ("pytorch/examples", examples_wide),
    "examples_new": ("pytorch/examples", examples_new),
    "timm": ("timm", timm),
    "torchvision": ("torchvision references", torchvision),
}
