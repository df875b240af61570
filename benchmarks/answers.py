"""What keeping single answers costs an evaluation, in CPU time of one thread.

    python benchmarks/answers.py [--classes N] [--image-size N] [--rounds N]

Decoding is left out: it only makes the share smaller.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from stoker.run.evaluation import report_bytes, report_data
from stoker.train.evaluate import Accuracy, Answers, DeviceTally
from stoker.train.model.build import ResNet9
from stoker.train.records.tally import highest_losses, report_of

BATCH = 256


def seconds_of(work: Callable[[], object], rounds: int) -> float:
    """CPU seconds of a call: the median of some."""
    times = []
    for _ in range(rounds):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return statistics.median(times)


def tallying(logits: torch.Tensor, labels: torch.Tensor, kept: bool) -> Callable[[], object]:
    """Adds a batch to the sums, and keeps its answers or not."""
    tally = DeviceTally(0, len(labels) if kept else 0, torch.device("cpu"))
    return lambda: tally.add(logits, labels, 0)


def writing(count: int, classes: int) -> float:
    """CPU seconds that turning so many answers into the bytes of evaluation.json takes."""
    draw = np.random.default_rng(0)
    labels, predicted = draw.integers(0, classes, (2, count))
    losses, sure = draw.random((2, count), dtype=np.float32)
    ahead = (labels != predicted).astype(np.int32)
    answers = Answers(predicted.astype(np.int32), sure, losses, ahead)
    began = time.process_time()
    names = [f"class {number}" for number in range(classes)]
    report = report_of("val", names, labels, Accuracy(count, 0, 0, 1.0), answers)
    highest_losses(losses, 100)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "evaluation.json").write_bytes(report_bytes(report_data(report)))
    return time.process_time() - began


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--classes", type=int, default=1000)
    flags.add_argument("--image-size", type=int, default=32)
    flags.add_argument("--rounds", type=int, default=9)
    parsed = flags.parse_args()
    torch.set_num_threads(1)
    model = ResNet9(parsed.classes, width=16).eval()
    images = torch.rand(BATCH, 3, parsed.image_size, parsed.image_size)
    labels = torch.arange(BATCH) % parsed.classes
    with torch.no_grad():
        logits = model(images)
        passing = seconds_of(lambda: model(images), parsed.rounds)
        sums, kept = (
            seconds_of(tallying(logits, labels, kept), 20 * parsed.rounds) for kept in (False, True)
        )
    per_image, answer = (passing + sums) / BATCH, (kept - sums) / BATCH
    written = writing(50_000, parsed.classes) / 50_000
    print(f"resnet9_w16, {parsed.image_size} px, {parsed.classes} classes, one thread:")
    print(f"  an image without answers  {1e6 * per_image:8.1f} us")
    print(f"  keeping its answer        {1e6 * answer:8.1f} us")
    print(f"  its part of the report    {1e6 * written:8.1f} us (of 50,000 images)")
    print(f"  together                  {(answer + written) / per_image:8.2%}")


if __name__ == "__main__":
    main()
