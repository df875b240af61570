"""Sets in shards, written by the real tools: MosaicML Streaming and LitData.

    pip install mosaicml-streaming==0.13.0 litdata==0.2.76
    python tests/shard_sets.py tests/data/shards small    # the sets that are kept, and tested
    python tests/shard_sets.py FOLDER                     # one for each encoding and compression

Sample number k is picture(k % 2, k // 2), and its class is k % 2, so that tests know every pixel.
"""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

NAMES = ("cat", "dog")
SAMPLES = 8
Sample = Callable[[int, int], Any]


def pixels(label: int, number: int) -> NDArray[np.uint8]:
    """A smooth picture with a few edges: it can be compressed."""
    across, down = np.meshgrid(np.arange(16), np.arange(12))
    planes = [across * 8 + number * 5, down * 10 + label * 90, (across // 4 + down // 3) * 20]
    return np.stack(planes, axis=2).astype(np.uint8)


def encoded(label: int, number: int, kind: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels(label, number)).save(file, kind)
    return file.getvalue()


def jpeg(label: int, number: int) -> bytes:
    return encoded(label, number, "JPEG")


def png(label: int, number: int) -> bytes:
    return encoded(label, number, "PNG")


def pil(label: int, number: int) -> Image.Image:
    return Image.fromarray(pixels(label, number))


def opened(label: int, number: int) -> Image.Image:
    return Image.open(io.BytesIO(jpeg(label, number)))


def samples(sample: Sample) -> list[Any]:
    return [sample(number % 2, number // 2) for number in range(SAMPLES)]


MDS: dict[str, tuple[dict[str, str], Sample, dict[str, Any]]] = {
    "mds-imagenet": (
        {"i": "int", "x": "jpeg", "y": "int"},
        lambda label, n: {"i": n, "x": jpeg(label, n), "y": label},
        {},
    ),
    "mds-zstd": (
        {"image": "bytes", "label": "str"},
        lambda label, n: {"image": png(label, n), "label": NAMES[label]},
        {"compression": "zstd:7", "hashes": ["sha1"]},
    ),
    "mds-pil": ({"x": "pil", "y": "int"}, lambda label, n: {"x": pil(label, n), "y": label}, {}),
    "mds-gz": (
        {"image": "png", "label": "uint8"},
        lambda label, n: {"image": png(label, n), "label": np.uint8(label)},
        {"compression": "gz"},
    ),
    "mds-bz2": (
        {"image": "png", "label": "int16"},
        lambda label, n: {"image": png(label, n), "label": np.int16(label)},
        {"compression": "bz2"},
    ),
    "mds-br": (
        {"image": "png", "label": "str_int"},
        lambda label, n: {"image": png(label, n), "label": label},
        {"compression": "br:3"},
    ),
    "mds-array": (
        {"x": "jpeg_array", "y": "int"},
        lambda label, n: {"x": [jpeg(label, n)], "y": label},
        {},
    ),
    "mds-list": (
        {"x": "list[jpeg]", "y": "int"},
        lambda label, n: {"x": [opened(label, n)], "y": label},
        {},
    ),
    "mds-ndarray": (
        {"x": "ndarray:uint8", "y": "int64"},
        lambda label, n: {"x": pixels(label, n), "y": np.int64(label)},
        {},
    ),
    "mds-fixed": (
        {"x": "ndarray:uint8:12,16,3", "y": "int64"},
        lambda label, n: {"x": pixels(label, n), "y": np.int64(label)},
        {},
    ),
    "mds-json": (
        {"x": "jpeg", "y": "json"},
        lambda label, n: {"x": jpeg(label, n), "y": NAMES[label]},
        {},
    ),
    "mds-pickled": (
        {"x": "jpeg", "y": "pkl"},
        lambda label, n: {"x": jpeg(label, n), "y": {"class": label}},
        {},
    ),
}
LIT: dict[str, tuple[Sample, dict[str, Any]]] = {
    "lit-jpeg": (lambda label, n: {"image": opened(label, n), "label": label, "index": n}, {}),
    "lit-zstd": (
        lambda label, n: {"image": pil(label, n), "class": label},
        {"compression": "zstd"},
    ),
    "lit-zstd-sample": (
        lambda label, n: {"image": pil(label, n), "label": label},
        {"compression": "zstd", "compression_level": "sample"},
    ),
    "lit-zstd-chunk": (
        lambda label, n: {"image": pil(label, n), "label": label},
        {"compression": "zstd", "compression_level": "chunk"},
    ),
    "lit-tuple": (lambda label, n: (png(label, n), NAMES[label]), {}),
    "lit-numpy": (lambda label, n: {"image": pixels(label, n), "label": label}, {}),
    "lit-tensor": (lambda label, n: {"image": tensor(label, n), "label": label}, {}),
    "lit-pickled": (lambda label, n: {"image": opened(label, n), "label": {label, 2}}, {}),
}
KEPT = ("mds-imagenet", "mds-zstd", "mds-pil", "lit-jpeg", "lit-zstd", "lit-zstd-sample")
LOSSLESS = {
    name
    for name in (*MDS, *LIT)
    if name.split("-")[1] not in ("imagenet", "array", "list", "json", "jpeg", "pickled")
}


def tensor(label: int, number: int) -> Any:
    import torch

    return torch.from_numpy(pixels(label, number).transpose(2, 0, 1).copy())


def write_mds(folder: Path, name: str) -> None:
    from streaming import MDSWriter

    columns, sample, options = MDS[name]
    with MDSWriter(out=str(folder), columns=columns, size_limit=2500, **options) as writer:
        for each in samples(sample):
            writer.write(each)


def write_lit(folder: Path, name: str) -> None:
    from litdata.streaming.writer import BinaryWriter

    sample, options = LIT[name]
    writer = BinaryWriter(str(folder), chunk_bytes=2500, **options)
    for number, each in enumerate(samples(sample)):
        writer.add_item(number, each)
    writer.done()
    writer.merge(1)


def main(root: Path, names: tuple[str, ...]) -> None:
    for name in names:
        shutil.rmtree(root / name, ignore_errors=True)
        (write_mds if name in MDS else write_lit)(root / name, name)


if __name__ == "__main__":
    main(Path(sys.argv[1]), KEPT if sys.argv[2:] else (*MDS, *LIT))
