"""What decoding only the crop brings: images per CPU-second of the loader.

    python benchmarks/regions.py IMAGES [--images 300] [--rounds 60] [--rows 1 2 4 8]

IMAGES is a folder of photographs, or a tar of them. They are stored as they are, with the longer
side at 500 pixels and with the shorter side at 256 (quality 90), without and with restart markers.
Each store is read whole, by its markers, and with the compiled extra where it is installed. Rounds
of one batch of 50 are interleaved; a ratio is taken within its round, to the store without markers
read whole; the spread is from the lower to the upper quartile. CPU time counts user and system
time of all threads.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path

import cv2
import numpy as np
import simplejpeg
from PIL import Image

from compare.sets import class_folder
from packing import cpu_s
from stoker.data.dataset import Dataset, SplitIndex
from stoker.data.images.encode import Storage
from stoker.data.images.jpeg import encode_jpeg
from stoker.data.loading import render as decode
from stoker.data.loading.crops import View
from stoker.data.loading.loader import Loader
from stoker.data.loading.order import Order
from stoker.data.packing.pack import pack
from stoker.recipe.recipe import Recipe
from stoker.recipe.schedule import Timeline

BATCH = 50
EXTRA = decode.decode_region
TRAINING = View(crop="resized", crop_scale=0.08, hflip=True)
CASES = {
    "originals, 224 px crops": ("originals", TRAINING, 224),
    "longer side 500, 224 px crops": ("longer 500", TRAINING, 224),
    "longer side 500, 160 px crops": ("longer 500", TRAINING, 160),
    "longer side 500, 224 px validation": ("longer 500", View(), 224),
    "shorter side 256, 224 px crops": ("shorter 256", TRAINING, 224),
    "shorter side 256, 160 px crops": ("shorter 256", TRAINING, 160),
    "shorter side 256, 224 px validation": ("shorter 256", View(), 224),
}
Rounds = list[float]


def shrunk(pixels: decode.Pixels, store: str) -> decode.Pixels:
    height, width = pixels.shape[:2]
    longer = store == "longer 500"
    share = 500 / max(height, width) if longer else 256 / min(height, width)
    if share >= 1:
        return pixels
    size = (round(width * share), round(height * share))
    return np.asarray(cv2.resize(pixels, size, interpolation=cv2.INTER_AREA), np.uint8)


def packed(files: list[Path], store: str, rows: int, place: Path) -> SplitIndex:
    """A set whose members are the very bytes that this store would hold."""
    folder = place / f"{store}-{rows}" / "train" / "all"
    folder.mkdir(parents=True)
    for file in files:
        data = file.read_bytes()
        if store != "originals":
            pixels = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
            data = encode_jpeg(shrunk(pixels, store), 90, rows)
        (folder / file.name).write_bytes(data)
    out = pack(
        folder.parents[1],
        place / f"packed-{store}-{rows}",
        storage=Storage(codec="original"),
        val_share=0,
    )
    return Dataset(out).split("train")


def batches(split: SplitIndex, view: View, size: int, extra: object) -> Callable[[], int]:
    """Reads one more batch each time it is called: the same samples and crops for each reader."""
    order = Order(split.shard_sizes, "benchmark", seed=0)
    plan = Timeline.of(Recipe(epochs=1000, batch_size=BATCH, image_size=size), len(split)).batches()
    loader = Loader(split, order, view, threads=1)

    def batch() -> int:
        decode.decode_region = extra
        return sum(len(loaded.images) for loaded in loader.batches(islice(plan, 1)))

    return batch


def race(runners: dict[str, Callable[[], int]], rounds: int) -> dict[str, dict[str, object]]:
    """Images per CPU-second of each, and its ratio to the first within each round."""
    rates: dict[str, Rounds] = {name: [] for name in runners}
    names = list(runners)
    for number in range(rounds + 1):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            began = cpu_s()
            images = runners[name]()
            if number:  # the first round warms caches
                rates[name].append(images / (cpu_s() - began))
    return {name: summary(rates[name], rates[names[0]]) for name in names}


def summary(rates: Rounds, reference: Rounds) -> dict[str, object]:
    ratios = [rate / other for rate, other in zip(rates, reference, strict=True)]
    lower, _, upper = statistics.quantiles(ratios)
    return {
        "images_per_cpu_s": round(statistics.median(rates)),
        "ratio": round(statistics.median(ratios), 3),
        "spread": [round(lower, 3), round(upper, 3)],
    }


def readers(splits: dict[int, SplitIndex], view: View, size: int) -> dict[str, Callable[[], int]]:
    made = {}
    for rows, split in splits.items():
        store = f"markers each {rows}" if rows else "no markers"
        made[store] = batches(split, view, size, None)
        if EXTRA is not None:
            made[f"{store}, extra"] = batches(split, view, size, EXTRA)
    return made


def whole_decodes(splits: dict[int, SplitIndex]) -> dict[str, Callable[[], int]]:
    def reader(split: SplitIndex) -> Callable[[], int]:
        samples = cycle(range(len(split)))

        def run() -> int:
            for sample in islice(samples, BATCH):
                simplejpeg.decode_jpeg(split.bytes_of(sample), buffer=decode.scratch(1 << 22))
            return BATCH

        return run

    return {f"markers each {rows}": reader(split) for rows, split in splits.items()}


def encodings(files: list[Path], rows: list[int]) -> dict[str, Callable[[], int]]:
    pictures = [
        shrunk(np.asarray(Image.open(file).convert("RGB")), "longer 500") for file in files[:BATCH]
    ]

    def writer(each: int) -> Callable[[], int]:
        return lambda: len([encode_jpeg(pixels, 90, each) for pixels in pictures])

    return {f"markers each {each}": writer(each) for each in rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("images", type=Path)
    parser.add_argument("--images", dest="most", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8])
    given = parser.parse_args()
    began = time.monotonic()
    rows = [0, *given.rows]
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        files = sorted((class_folder(given.images, place) / "train" / "all").iterdir())
        files = files[: given.most // BATCH * BATCH]
        stores = {"originals": {0: packed(files, "originals", 0, place)}}
        for store in ("longer 500", "shorter 256"):
            stores[store] = {each: packed(files, store, each, place) for each in rows}
        for case, (store, view, size) in CASES.items():
            show(case, race(readers(stores[store], view, size), given.rounds))
        for store in ("longer 500", "shorter 256"):
            show(f"{store}, whole decode", race(whole_decodes(stores[store]), given.rounds))
            sizes = {each: int(split.length.mean()) for each, split in stores[store].items()}
            print(f"{store}, bytes an image by rows a marker: {json.dumps(sizes)}", flush=True)
        show("encoding, longer side 500", race(encodings(files, rows), given.rounds // 6))
    print(f"took {time.monotonic() - began:.0f} s")


def show(case: str, table: dict[str, dict[str, object]]) -> None:
    print(case)
    for name, row in table.items():
        print(f"  {name:24} {json.dumps(row)}", flush=True)


if __name__ == "__main__":
    main()
