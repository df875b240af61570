"""What a model says of files and of their packed copies, and how fast prediction is.

    python benchmarks/predictions.py IMAGES [--epochs 15] [--image-size 64] [--rounds 9]

IMAGES is a folder or tar of photographs; each is a class of its own. They are packed, a model
is trained on them, and then it is asked about the packed images, about the files, and about the
files without the JPEG that packing would store. A line for each says how many answers are right,
how many answers and probabilities differ from those for the packed images, and the CPU time of
preparing an image.

Then evaluation and prediction of the packed images take turns in one process. On a machine that is
shared, compare images a CPU second.
"""

from __future__ import annotations

import argparse
import json
import os
import tarfile
import tempfile
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from figures import spread_text
from stoker.data.dataset import Dataset
from stoker.data.loading.crops import View
from stoker.data.loading.loader import BatchLoader
from stoker.data.loading.order import InOrder
from stoker.data.packing.pack import pack
from stoker.data.sources.item import Item
from stoker.data.sources.layout import is_image
from stoker.host.limits import usable_cores
from stoker.recipe.resolve import resolve
from stoker.train.attempt.session import train
from stoker.train.evaluate import Evaluator
from stoker.train.process_group import Ranks
from stoker.use.classifier import Classifier, open_classifier
from stoker.use.image_stream import image_sources
from stoker.use.predict import NamedAnswers, Predictor
from stoker.use.prepare import Preparation

CPU = torch.device("cpu")


def one_class_each(images: Path, target: Path) -> Path:
    """FOLDER/CLASS/IMAGE of a folder or tar of images, with a class for each."""
    if images.is_dir():
        files = (
            (path.name, path.read_bytes())
            for path in sorted(images.rglob("*"))
            if is_image(path.name)
        )
    else:
        tar = tarfile.open(images)  # noqa: SIM115 - read to its end below
        files = (
            (Path(member.name).name, tar.extractfile(member).read())  # type: ignore[union-attr]
            for member in tar
            if member.isfile() and is_image(member.name)
        )
    for name, data in files:
        (target / Path(name).stem).mkdir(parents=True, exist_ok=True)
        (target / Path(name).stem / name).write_bytes(data)
    return target


def answers(classifier: Classifier, words: list[str]) -> NamedAnswers:
    with closing(Predictor(classifier, top=len(classifier.classes))) as predictor:
        parts = list(predictor.answers(image_sources(words)))
    return NamedAnswers(
        [name for part in parts for name in part.names],
        [error for part in parts for error in part.errors],
        np.concatenate([part.classes for part in parts]),
        np.concatenate([part.probabilities for part in parts]),
    )


def by_class(some: NamedAnswers) -> np.ndarray:
    """Probabilities in the order of the classes."""
    table = np.empty_like(some.probabilities)
    np.put_along_axis(table, some.classes, some.probabilities, 1)
    return table


def without_jpeg(classifier: Classifier) -> Classifier:
    """The same, for images that are shrunk to the stored size and not stored as JPEG."""
    spec = classifier.preprocessing
    raw = replace(spec.storage, codec="raw")
    return replace(classifier, preprocessing=replace(spec, storage=raw))


def prepare_ms(classifier: Classifier, files: list[str]) -> float:
    """CPU time of one thread to prepare an image, in milliseconds."""
    spec = classifier.preprocessing
    preparation = Preparation(spec.storage, spec.crop_pct)
    out = np.empty((spec.image_size, spec.image_size, 3), np.uint8)
    began = time.thread_time()
    for file in files:
        preparation.fill(Item(file, None), out)
    return 1e3 * (time.thread_time() - began) / len(files)


def compare(classifier: Classifier, photographs: Path, packed: Path) -> dict[str, dict[str, float]]:
    """NamedAnswers for files against those for their packed copies."""
    stored = answers(classifier, [str(packed)])
    labels = Dataset(packed).split("train").labels
    files = [str(photographs / name) for name in stored.names]
    figures: dict[str, dict[str, float]] = {
        "packed images": {"right": int((stored.classes[:, 0] == labels).sum())}
    }
    for name, one in {"files": classifier, "files, no JPEG": without_jpeg(classifier)}.items():
        some = answers(one, files)
        gaps = np.abs(by_class(some) - by_class(stored))
        chosen = np.take_along_axis(gaps, stored.classes[:, :1], 1)
        figures[name] = {
            "right": int((some.classes[:, 0] == labels).sum()),
            "other_answers": int((some.classes[:, 0] != stored.classes[:, 0]).sum()),
            "median_difference": float(np.median(chosen)),
            "largest_difference": float(gaps.max()),
            "prepare_ms": prepare_ms(one, files),
        }
    return figures


def speeds(classifier: Classifier, packed: Path, rounds: int) -> dict[str, list[list[float]]]:
    """Images a second, and images a CPU second, of evaluation and of prediction, by turns."""
    split, sources = Dataset(packed).split("train"), image_sources([str(packed)])
    spec, recipe = classifier.preprocessing, classifier.recipe

    def evaluate() -> None:
        # Opened anew, as prediction does: images are compared with their hashes once.
        opened = Dataset(packed).split("train")
        with closing(BatchLoader(opened, InOrder(), View(crop_pct=spec.crop_pct))) as loader:
            evaluator = Evaluator(loader, Ranks(0, 1, 0, 1, CPU), recipe.eval_batch_size)
            evaluator.run(classifier.model, spec.image_size, classifier.to_input)

    def predict() -> None:
        with closing(Predictor(classifier, top=5)) as predictor:
            for _ in predictor.answers(sources):
                pass

    evaluate()
    predict()
    rates: dict[str, list[list[float]]] = {"second": [[], []], "CPU second": [[], []]}
    for turn in range(rounds):
        for number in (0, 1) if turn % 2 else (1, 0):
            began, cpu_began = time.perf_counter(), time.process_time()
            (evaluate, predict)[number]()
            rates["second"][number].append(len(split) / (time.perf_counter() - began))
            rates["CPU second"][number].append(len(split) / (time.process_time() - cpu_began))
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("images", type=Path)
    parser.add_argument("--model", default="resnet9_w16")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--torch-threads", type=int, default=usable_cores())
    parser.add_argument("--json", type=Path)
    flags = parser.parse_args()
    # Threads of torch that wait for a busy core waste the others: give fewer on a shared machine.
    os.environ["LOCAL_WORLD_SIZE"] = str(max(usable_cores() // flags.torch_threads, 1))
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        photographs = one_class_each(flags.images, root / "photographs")
        packed = pack(photographs, root / "packed", val_share=0)
        recipe = {
            "model": flags.model,
            "epochs": flags.epochs,
            "image_size": flags.image_size,
            "batch_size": 50,
            "label_smoothing": 0.0,
            "crop": "centre",
            "hflip": False,
            "rehearse": False,
        }
        train(packed, resolve(None, recipe), root / "run")
        classifier = open_classifier(root / "run", CPU, "last")
        figures = compare(classifier, photographs, packed)
        rates = speeds(classifier, packed, flags.rounds)
    for name, row in figures.items():
        print(name, " ".join(f"{key} {value:.6g}" for key, value in row.items()), flush=True)
    ratios = {}
    for unit, (evaluation, prediction) in rates.items():
        ratios[unit] = [
            after / before for before, after in zip(evaluation, prediction, strict=True)
        ]
        print(
            f"images a {unit}: evaluation {spread_text(evaluation, 0)}, prediction "
            f"{spread_text(prediction, 0)}, ratio {spread_text(ratios[unit], 3)}"
        )
    if flags.json:
        flags.json.write_text(json.dumps({"answers": figures, "ratios": ratios}))


if __name__ == "__main__":
    main()
