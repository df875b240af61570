"""A bare PyTorch loop on Stoker's loader that survives kill -9: the same command resumes it.

python examples/bare_loop.py photos-packed saved.pt
torchrun --nproc-per-node 2 examples/bare_loop.py photos-packed saved.pt
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import stoker


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", help="a packed set")
    parser.add_argument("file", type=Path, help="where the state is saved")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16, help="of all ranks together")
    parser.add_argument("--image-size", type=int, default=32)
    options = parser.parse_args()
    if "RANK" in os.environ:
        torch.distributed.init_process_group()
    first = os.environ.get("RANK", "0") == "0"

    shape = options.batch_size, options.image_size
    train = stoker.Loader(options.data, "train", *shape)
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    model: nn.Module = nn.Sequential(*layers, nn.Linear(8, len(train.classes)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if options.file.exists():
        saved = torch.load(options.file, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        train.load_state_dict(saved["loader"])
        print(f"resumed at sample {train.position}", flush=True)
    wrapped = DistributedDataParallel(model) if "RANK" in os.environ else model

    for epoch in train.epochs(options.epochs):
        for images, labels in train:
            loss = nn.functional.cross_entropy(wrapped(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if first:
                print(f"{train.position} {loss.item()!r}", flush=True)
                save(options.file, model, optimizer, train)
        if "val" in train.dataset.description["splits"]:
            right, count = evaluate(model, stoker.Loader(options.data, "val", *shape))
            print(f"epoch {epoch}: {right} of {count} right on this rank", flush=True)


def save(
    file: Path, model: nn.Module, optimizer: torch.optim.Optimizer, train: stoker.Loader
) -> None:
    """Write everything that the loop needs to go on; a kill leaves the old file or the new one."""
    states = {"model": model, "optimizer": optimizer, "loader": train}
    partial = file.with_suffix(".partial")
    torch.save({name: one.state_dict() for name, one in states.items()}, partial)
    partial.replace(file)


@torch.no_grad()
def evaluate(model: nn.Module, loader: stoker.Loader) -> tuple[int, int]:
    model.eval()
    right = count = 0
    for images, labels in loader:
        right += int((model(images).argmax(1) == labels).sum())
        count += len(labels)
    model.train()
    return right, count


if __name__ == "__main__":
    main()
