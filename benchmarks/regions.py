"""The gain of decoding only the crop: images per CPU-second of the loader.

    python benchmarks/regions.py IMAGES [--images 300] [--rounds 60] [--rows 1 2 4 8]

IMAGES is a folder of photographs, or a tar of them. They are stored unchanged, with the longer side
at 500 pixels and with the shorter side at 256 (quality 90), without and with restart markers. Each
store is decoded in full, by its markers, and with the compiled extra where it is installed, which
begins at a marker where there are any. Rounds of one batch of 50 are interleaved. A ratio is
computed within its round, to full decodes of the store without markers. The spread is from the
lower to the upper quartile. CPU time is user and system time of all threads.
"""

from __future__ import annotations

import argparse
import io
import json
import tempfile
import time
from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path

import cv2
import numpy as np
import simplejpeg
from PIL import Image

from compare.sets import class_folder, files_of
from figures import quartiles, spread
from packing import cpu_s
from stoker.data.dataset import Dataset, SplitIndex
from stoker.data.images.encode import Storage
from stoker.data.images.jpeg import encode_jpeg
from stoker.data.loading import chunk_call, render
from stoker.data.loading.crops import View
from stoker.data.loading.loader import BatchLoader, LoaderOptions
from stoker.data.loading.order import Order
from stoker.data.packing.pack import pack
from stoker.recipe.recipe import Recipe
from stoker.recipe.schedule import Timeline

BATCH = 50
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
Rates = list[float]


def shrunk(pixels: render.Pixels, store: str) -> render.Pixels:
    height, width = pixels.shape[:2]
    longer = store == "longer 500"
    share = 500 / max(height, width) if longer else 256 / min(height, width)
    if share >= 1:
        return pixels
    size = (round(width * share), round(height * share))
    return np.asarray(cv2.resize(pixels, size, interpolation=cv2.INTER_AREA), np.uint8)


def packed(files: list[Path], store: str, rows: int, root: Path) -> SplitIndex:
    """A set that stores exactly these bytes: encoded here, kept by the pack."""
    folder = root / f"{store}-{rows}"
    for file in files:
        data = file.read_bytes()
        if store != "originals":
            pixels = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
            data = encode_jpeg(shrunk(pixels, store), 90, rows)
        target = folder / "train" / file.parent.name / file.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    out = pack(
        folder,
        root / f"packed-{store}-{rows}",
        storage=Storage(codec="original"),
        val_share=0,
    )
    return Dataset(out).split("train")


def batches(split: SplitIndex, view: View, size: int, compiled: bool) -> Callable[[], int]:
    """A function that reads the next batch at each call; all readers get the same samples and
    crops."""
    order = Order(split.shard_sizes, "benchmark", seed=0)
    plan = Timeline.of(Recipe(epochs=1000, batch_size=BATCH, image_size=size), len(split)).batches()
    options = LoaderOptions(compiled=compiled, check_hashes=False)
    loader = BatchLoader(split, order, view, threads=1, options=options)

    def batch() -> int:
        return sum(len(loaded.images) for loaded in loader.batches(islice(plan, 1)))

    return batch


def race(runners: dict[str, Callable[[], int]], rounds: int) -> dict[str, dict[str, object]]:
    """Images per CPU-second of each runner, and its ratio to the first within each round."""
    rates: dict[str, Rates] = {name: [] for name in runners}
    names = list(runners)
    for number in range(rounds + 1):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            began = cpu_s()
            images = runners[name]()
            if number:  # the first round fills caches
                rates[name].append(images / (cpu_s() - began))
    return {name: summary(rates[name], rates[names[0]]) for name in names}


def summary(rates: Rates, reference: Rates) -> dict[str, object]:
    ratios = [rate / other for rate, other in zip(rates, reference, strict=True)]
    quarters = quartiles(ratios, 3)
    return {
        "images_per_cpu_s": round(spread(rates)[0]),
        "ratio": quarters["median"],
        "spread": [quarters["quarter"], quarters["three_quarters"]],
    }


def readers(splits: dict[int, SplitIndex], view: View, size: int) -> dict[str, Callable[[], int]]:
    runners = {}
    for rows, split in splits.items():
        store = f"markers each {rows}" if rows else "no markers"
        runners[store] = batches(split, view, size, False)
        if chunk_call.extra is not None:
            runners[f"{store}, extra"] = batches(split, view, size, True)
    return runners


def whole_decodes(splits: dict[int, SplitIndex]) -> dict[str, Callable[[], int]]:
    def reader(split: SplitIndex) -> Callable[[], int]:
        samples = cycle(range(len(split)))

        def run() -> int:
            for sample in islice(samples, BATCH):
                simplejpeg.decode_jpeg(split.bytes_of(sample), buffer=render.scratch(1 << 22))
            return BATCH

        return run

    return {f"markers each {rows}": reader(split) for rows, split in splits.items()}


def encodings(files: list[Path], rows: list[int]) -> dict[str, Callable[[], int]]:
    pictures = [
        shrunk(np.asarray(Image.open(file).convert("RGB")), "longer 500") for file in files[:BATCH]
    ]

    def writer(count: int) -> Callable[[], int]:
        return lambda: len([encode_jpeg(pixels, 90, count) for pixels in pictures])

    return {f"markers each {count}": writer(count) for count in rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("images", type=Path)
    parser.add_argument("--images", dest="most", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8])
    flags = parser.parse_args()
    began = time.monotonic()
    rows = [0, *flags.rows]
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        files = files_of(class_folder(flags.images, root))
        files = files[: flags.most // BATCH * BATCH]
        stores = {"originals": {0: packed(files, "originals", 0, root)}}
        for store in ("longer 500", "shorter 256"):
            stores[store] = {count: packed(files, store, count, root) for count in rows}
        for case, (store, view, size) in CASES.items():
            show(case, race(readers(stores[store], view, size), flags.rounds))
        for store in ("longer 500", "shorter 256"):
            show(f"{store}, whole decode", race(whole_decodes(stores[store]), flags.rounds))
            sizes = {count: int(split.length.mean()) for count, split in stores[store].items()}
            print(f"{store}, bytes an image by rows a marker: {json.dumps(sizes)}", flush=True)
        show("encoding, longer side 500", race(encodings(files, rows), flags.rounds // 6))
    print(f"took {time.monotonic() - began:.0f} s")


def show(case: str, table: dict[str, dict[str, object]]) -> None:
    print(case)
    for name, row in table.items():
        print(f"  {name:24} {json.dumps(row)}", flush=True)


if __name__ == "__main__":
    main()
