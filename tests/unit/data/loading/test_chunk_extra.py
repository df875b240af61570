"""One call of the compiled extra shows a chunk exactly as Python does, image by image."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from every_crop import VIEWS, seen
from samples import image_folder, picture
from stoker.data.dataset import Dataset
from stoker.data.images.encode import Storage
from stoker.data.images.jpeg import encode_jpeg
from stoker.data.loading import chunk_call, render
from stoker.data.loading.chunk_call import (
    BOX,
    COLUMNS,
    EPOCH,
    FILE,
    FLIP,
    HEIGHT,
    LENGTH,
    OFFSET,
    PLACE,
    SAMPLE,
    WIDTH,
    view_numbers,
)
from stoker.data.loading.crops import View, boxes
from stoker.data.loading.loader import BatchLoader, LoaderOptions
from stoker.data.loading.order import Order
from stoker.data.loading.render import RENDERERS, Pixels, write_crop
from stoker.data.packing.pack import pack
from stoker.errors import StokerError
from stoker.recipe.schedule import Batch

extra: Any = pytest.importorskip(
    "stoker_region", reason="the compiled extra is not installed: pip install ./extensions/region"
)
pytestmark = pytest.mark.exact
Box = tuple[int, int, int, int]
Stored = tuple[bytes, int, int, Box, bool]
"""Bytes, width, height, box, flip."""


@pytest.fixture(params=["vector code", "portable code"])
def code(request: pytest.FixtureRequest) -> Iterator[str]:
    extra._use_portable_code(request.param == "portable code")
    yield request.param
    extra._use_portable_code(False)


def call(images: list[Stored], size: int, codec: str) -> tuple:
    """Outcomes and pixels of one call; what is behind the output must stay as it is."""
    rows, place = np.zeros((len(images), COLUMNS), np.int64), 0
    for row, (data, width, height, box, flip) in zip(rows, images, strict=True):
        row[LENGTH], row[PLACE], row[WIDTH], row[HEIGHT] = len(data), place, width, height
        row[BOX], row[FLIP] = box, flip
        place += len(data)
    stored = np.frombuffer(b"".join(data for data, *_ in images), np.uint8).copy()
    spare = np.full((len(images) + 1, size, size, 3), 77, np.uint8)
    out = spare[:-1]
    outcomes, _, _ = extra.fill(rows, None, stored, None, out, size, extra.SHOW, codec == "raw")
    assert (spare[-1] == 77).all()
    return list(outcomes), out


def check(images: list[Stored], size: int, codec: str, least_shown: int = 0) -> None:
    """Compare a call with Python, which must raise ValueError for what the call refuses."""
    outcomes, out = call(images, size, codec)
    assert outcomes.count(0) >= least_shown, outcomes
    for (data, width, height, box, flip), outcome, pixels in zip(
        images, outcomes, out, strict=True
    ):
        if outcome == 0:
            expected = np.empty((size, size, 3), np.uint8)
            RENDERERS[codec](memoryview(data), width, height, list(box), flip, expected)
            np.testing.assert_array_equal(pixels, expected, f"{width} x {height}, {box}, {size}")


def noise(random: np.random.Generator, width: int, height: int) -> Pixels:
    return random.integers(0, 256, (height, width, 3), dtype=np.uint8)


def raw(random: np.random.Generator, width: int, height: int, box: Box) -> Stored:
    return (noise(random, width, height).tobytes(), width, height, box, bool(random.random() < 0.5))


class TestResize:
    """Against the installed OpenCV, to the bit."""

    def test_random_boxes(self, code: str) -> None:
        random = np.random.default_rng(1)
        for _ in range(150):
            size = int(random.integers(1, random.choice([6, 40, 260])))
            chunk = []
            for _ in range(6):
                width, height = (int(random.integers(1, most)) for most in (350, 300))
                left, top = int(random.integers(0, width)), int(random.integers(0, height))
                right, bottom = random.integers((left, top), (width, height)) + 1
                chunk.append(raw(random, width, height, (left, top, int(right), int(bottom))))
            check(chunk, size, "raw")

    def test_every_ratio_of_small_sides(self, code: str) -> None:
        random = np.random.default_rng(2)
        for size in (1, 2, 3, 5, 8, 16, 17):
            sides = [(w, h) for w in range(1, 2 * size + 3) for h in (1, 2, size, 2 * size - 1)]
            check([raw(random, w, h, (0, 0, w, h)) for w, h in sides], size, "raw", len(sides) // 3)

    @pytest.mark.parametrize("size", [224, 160, 176, 64])
    def test_sizes_of_training(self, code: str, size: int) -> None:
        random = np.random.default_rng(size)
        sides = [size, size + 1, size - 1, 2 * size - 1, size // 2, 3 * size, 1, 2, 500]
        chunk = [raw(random, w, 2 * size - 7, (0, 0, w, 2 * size - 7)) for w in sides]
        check(chunk, size, "raw", len(sides))

    def test_boxes_across_the_edges(self, code: str) -> None:
        random = np.random.default_rng(3)
        for _ in range(60):
            width, height = (int(random.integers(1, 40)) for _ in range(2))
            size = int(random.integers(1, 50))
            left, top = int(random.integers(-30, width)), int(random.integers(-30, height))
            box = (left, top, left + int(random.integers(1, 60)), top + int(random.integers(1, 60)))
            square = (left, top, left + size, top + size)
            check([raw(random, width, height, b) for b in (box, square)], size, "raw")

    def test_what_is_averaged_over_areas_is_left_to_python(self, code: str) -> None:
        random = np.random.default_rng(4)
        chunk = [raw(random, w, 64, (0, 0, w, 64)) for w in (63, 64, 200)]
        assert call(chunk, 32, "raw")[0] == [0, 1, 1]

    def test_whatever_opencv_itself_runs_on(self) -> None:
        """OpenCV chooses its code by the processor: the bytes must not depend on it."""
        test = f"{__file__}::TestResize::test_sizes_of_training"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
        done = subprocess.run(
            command,
            env=os.environ | {"OPENCV_CPU_DISABLE": "AVX512-SKX,AVX2,AVX,FP16,SSE4.1"},
            cwd=Path(__file__).parents[4],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout


def saved(pixels: Pixels, mode: str = "RGB", **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, "JPEG", **options)
    return file.getvalue()


def jpegs(width: int, height: int) -> dict[str, bytes]:
    pixels = np.asarray(picture(0, width, (width, height)))
    files = {
        sampling: simplejpeg.encode_jpeg(pixels, 90, colorsubsampling=sampling)
        for sampling in ("444", "422", "420", "440", "411")
    }
    return files | {
        "grey": saved(pixels, "L"),
        "markers": encode_jpeg(pixels, 90, 1),
        "coarse markers": encode_jpeg(pixels, 90, 3),
        "progressive": saved(pixels, progressive=True),
        "CMYK": saved(pixels, "CMYK"),
    }


class TestJpegs:
    @settings(max_examples=120, deadline=None)
    @given(
        width=st.integers(1, 200),
        height=st.integers(1, 200),
        size=st.integers(1, 100),
        outside=st.booleans(),
        data=st.data(),
    )
    def test_are_shown_as_python_shows_them(
        self, width: int, height: int, size: int, outside: bool, data: st.DataObject
    ) -> None:
        margin = 30 if outside else 0
        chunk = []
        for stored in jpegs(width, height).values():
            left = data.draw(st.integers(-margin, width - 1))
            top = data.draw(st.integers(-margin, height - 1))
            right = data.draw(st.integers(left + 1, width + margin))
            bottom = data.draw(st.integers(top + 1, height + margin))
            chunk.append((stored, width, height, (left, top, right, bottom), left % 2 == 0))
        check(chunk, size, "jpeg")

    def test_other_kinds_are_left_to_python(self) -> None:
        kinds = jpegs(90, 70)
        chunk = [(kind, 90, 70, (3, 4, 50, 60), False) for kind in kinds.values()]
        outcomes = dict(zip(kinds, call(chunk, 40, "jpeg")[0], strict=True))
        assert {kind for kind, outcome in outcomes.items() if outcome} == {"progressive", "CMYK"}

    def test_rows_above_the_box_are_not_decoded_where_a_table_says_where_they_end(self) -> None:
        data = bytearray(encode_jpeg(np.asarray(picture(1, 5, (96, 200))), 90, 1))
        first = data.index(b"\xff\xd0")
        data[first - 60 : first - 56] = b"\xff\x00\xff\x00"  # damage in the first interval
        low: Stored = (bytes(data), 96, 200, (0, 120, 96, 200), False)
        high: Stored = (bytes(data), 96, 200, (0, 0, 96, 80), False)
        whole = simplejpeg.decode_jpeg(encode_jpeg(np.asarray(picture(1, 5, (96, 200))), 90, 1))
        outcomes, out = call([low, high], 80, "jpeg")
        expected = np.empty((80, 80, 3), np.uint8)
        write_crop(whole, [0, 120, 96, 200], False, expected)
        assert outcomes[0] == 0
        np.testing.assert_array_equal(out[0], expected)

    @settings(max_examples=300, deadline=None)
    @given(st.data())
    def test_any_damage_is_shown_or_refused(self, data: st.DataObject) -> None:
        kind = data.draw(st.sampled_from(["420", "markers", "grey"]))
        hurt = bytearray(jpegs(64, 48)[kind])
        for _ in range(data.draw(st.integers(1, 4))):
            hurt[data.draw(st.integers(0, len(hurt) - 1))] = data.draw(st.integers(0, 255))
        outcomes, _ = call([(bytes(hurt), 64, 48, (4, 24, 44, 44), False)], 16, "jpeg")
        assert outcomes[0] in (0, 1, 2)

    @settings(max_examples=200, deadline=None)
    @given(
        column=st.integers(0, COLUMNS - 1),
        number=st.sampled_from([-(2**63), -(2**31), -1, 0, 1, 47, 65536, 2**31, 2**63 - 1]),
        kind=st.sampled_from(["jpeg", "raw"]),
        in_shards=st.booleans(),
    )
    def test_no_number_of_a_row_is_trusted(
        self, column: int, number: int, kind: str, in_shards: bool
    ) -> None:
        data = jpegs(64, 48)["420"] if kind == "jpeg" else bytes(64 * 48 * 3)
        rows = np.array([[0 if in_shards else -1, 0, len(data), 0, 64, 48, 0, 0, 4, 4, 44, 44, 1]])
        rows[0, column] = number
        out, stored = np.zeros((1, 16, 16, 3), np.uint8), np.frombuffer(data, np.uint8).copy()
        shards = (stored,) if in_shards else None
        call = (rows, None, stored, shards, out, 16, extra.READ | extra.SHOW, kind == "raw")
        outcomes, _, _ = extra.fill(*call)
        assert outcomes[0] in (0, 1, 2)

    def test_threads_do_not_disturb_each_other(self) -> None:
        chunks = {}
        for width in (100, 123, 160, 177):
            box = (9, 20, 80, 130)
            kinds = jpegs(width, 150)
            names = ("420", "markers", "grey")
            chunks[width] = [(kinds[kind], width, 150, box, False) for kind in names]
        expected = {width: call(chunk, 50, "jpeg") for width, chunk in chunks.items()}
        wrong: list[int] = []

        def work(width: int) -> None:
            for _ in range(40):
                outcomes, out = call(chunks[width], 50, "jpeg")
                if outcomes != [0, 0, 0] or not (out == expected[width][1]).all():
                    wrong.append(width)

        threads = [threading.Thread(target=work, args=(width,)) for width in chunks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


class TestDrawnBoxes:
    @settings(max_examples=200, deadline=None)
    @given(
        view=st.builds(
            View,
            crop=st.sampled_from(["pad", "centre", "resized"]),
            crop_scale=st.floats(0.01, 1),
            crop_pad=st.integers(0, 12),
            crop_pct=st.floats(0.01, 1),
            hflip=st.booleans(),
            seed=st.integers(-(2**63), 2**64),
        ),
        side=st.integers(1, 40),
        same=st.booleans(),
        size=st.integers(1, 60),
        portable=st.booleans(),
    )
    def test_of_small_images_are_those_of_python(
        self, view: View, side: int, same: bool, size: int, portable: bool
    ) -> None:
        random = np.random.default_rng(abs(view.seed))
        size, count = side if same else size, 9
        shards = tuple(noise(random, side * 3, side) for _ in range(2))
        rows = np.zeros((count, COLUMNS), np.int64)
        rows[:, FILE], rows[:, OFFSET] = random.integers(0, (2, side * side * 6 + 1), (count, 2)).T
        rows[:, LENGTH], rows[:, WIDTH], rows[:, HEIGHT] = side * side * 3, side, side
        rows[:, SAMPLE], rows[:, EPOCH] = random.integers(0, (2**40, 1000), (count, 2)).T
        out = np.zeros((count, size, size, 3), np.uint8)
        extra._use_portable_code(portable)
        call = (rows, view_numbers(view), bytearray(1), shards, out, size, extra.SHOW, True)
        outcomes, _, _ = extra.fill(*call)
        extra._use_portable_code(False)
        crops = boxes(view, size, *(rows[:, k] for k in (SAMPLE, EPOCH, WIDTH, HEIGHT)))
        for k, outcome in enumerate(outcomes):
            image = shards[rows[k, FILE]].ravel()[rows[k, OFFSET] :][: side * side * 3]
            expected = np.empty((size, size, 3), np.uint8)
            box = crops.edges[k].tolist()
            write_crop(image.reshape(side, side, 3), box, bool(crops.flip[k]), expected)
            assert bool(outcome) == (min(box[2] - box[0], box[3] - box[1]) >= 2 * size)
            assert outcome or np.array_equal(out[k], expected)

    def test_of_photographs_are_those_of_python(self) -> None:
        """Each pixel of a picture is its own place, so that a box can be read from its corners."""
        random = np.random.default_rng(6)
        down, across = np.mgrid[0:70, 0:90]
        picture = np.stack([across, down, across * 0], axis=2).astype(np.uint8)
        for scale in (0.08, 0.25, 0.9):
            view = View(crop="resized", crop_scale=scale, hflip=True, seed=int(random.integers(99)))
            rows = np.zeros((500, COLUMNS), np.int64)
            rows[:, LENGTH], rows[:, WIDTH], rows[:, HEIGHT] = picture.size, 90, 70
            rows[:, SAMPLE], rows[:, EPOCH] = random.integers(0, 2**40, (2, 500))
            out, stored = np.zeros((500, 64, 64, 3), np.uint8), bytearray(picture.tobytes())
            call = (rows, view_numbers(view), stored, None, out, 64, extra.SHOW, True)
            assert not any(extra.fill(*call)[0])
            crops = boxes(view, 64, *(rows[:, k] for k in (SAMPLE, EPOCH, WIDTH, HEIGHT)))
            for edges, flip, image in zip(crops.edges, crops.flip, out, strict=True):
                expected = np.empty((64, 64, 3), np.uint8)
                write_crop(picture, edges.tolist(), bool(flip), expected)
                np.testing.assert_array_equal(image, expected)

    @pytest.mark.parametrize("offset", [-1, 1, 2**62])
    @pytest.mark.parametrize("shard", [-1, 1, 2**62])
    def test_nothing_is_read_outside_a_shard(self, shard: int, offset: int) -> None:
        rows = np.array([[0, offset, 192, 0, 8, 8, 0, 0, 0, 0, 8, 8, 0]] * 2)
        rows[1, FILE], rows[1, OFFSET] = shard, 0
        out, shards = np.zeros((2, 8, 8, 3), np.uint8), (np.zeros(8 * 8 * 3, np.uint8),)
        call = (rows, None, bytearray(1), shards, out, 8, extra.SHOW, True)
        assert list(extra.fill(*call)[0]) == [1, 1]


class TestArguments:
    GOOD: tuple = (np.zeros((1, COLUMNS), np.int64), None, bytearray(1), None, bytearray(3), 1)

    @pytest.mark.parametrize(
        ("number", "value"),
        [
            (0, np.zeros((2, COLUMNS), np.int64)),
            (0, np.zeros((1, COLUMNS), np.int32)),
            (0, np.zeros(COLUMNS * 8 + 1, np.uint8)[1:]),
            (4, bytearray(4)),
            (5, 0),
            (5, -1),
            (5, 2**30),
        ],
    )
    def test_of_a_wrong_size_are_refused(self, number: int, value: Any) -> None:
        arguments = list(self.GOOD)
        arguments[number] = value
        with pytest.raises(ValueError):
            extra.fill(*arguments, extra.SHOW, False)

    @pytest.mark.parametrize("number", [2, 4])
    def test_that_cannot_be_written_are_refused(self, number: int) -> None:
        arguments = list(self.GOOD)
        arguments[number] = bytes(3)
        with pytest.raises((TypeError, BufferError)):
            extra.fill(*arguments, extra.SHOW, False)

    @pytest.mark.parametrize(
        ("number", "value"), [(1, 3), (1, (1, 2)), (1, ("a",) * 6), (3, 3), (3, (b"abc", 3))]
    )
    def test_of_a_wrong_type_are_refused(self, number: int, value: Any) -> None:
        arguments = list(self.GOOD)
        arguments[number] = value
        with pytest.raises((TypeError, SystemError)):
            extra.fill(*arguments, extra.SHOW, False)


class Counting:
    """The extra, with a count of its calls and of the images that they left out."""

    def __init__(self) -> None:
        self.calls = self.left_out = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(extra, name)

    def fill(self, *arguments: Any) -> Any:
        self.calls += 1
        result = extra.fill(*arguments)
        self.left_out += sum(map(bool, result[0]))
        return result


def use(monkeypatch: pytest.MonkeyPatch, found: Any) -> None:
    monkeypatch.setattr(chunk_call, "extra", found)
    monkeypatch.setattr(render, "decode_region", found and extra.decode_region)


@pytest.fixture(scope="module", params=["jpeg", "original", "raw", "raw, one by one"])
def packed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A set of 60 images and a loader's options for it."""
    codec = request.param.partition(",")[0]
    root = tmp_path_factory.mktemp(codec)
    size = (40, 40) if codec == "raw" else (150, 110)
    image_folder(root / "photos", images=20, size=size)
    if codec == "original":  # a kind that the extra leaves to Python
        picture(0, 7, size).save(root / "photos" / "class0" / "0007.jpg", progressive=True)
    options = LoaderOptions(cache_bytes=0) if "one" in request.param else LoaderOptions()
    settings: Any = {"storage": Storage(codec), "val_share": 0, "shard_images": 16, "workers": 1}
    out = pack(root / "photos", root / "out", **settings)
    return Dataset(out), options


def batches(dataset: Dataset, view: View, options: LoaderOptions, size: int = 40) -> list[bytes]:
    split = dataset.split("train")
    order = Order(split.shard_sizes, "set", seed=2, window=16)
    reader = BatchLoader(split, order, view, threads=2, options=options)
    plan = [Batch(step, step * 30, 30, size) for step in range(4)]
    try:
        return [loaded.images.tobytes() for loaded in reader.batches(plan)]
    finally:
        reader.close()


class TestLoader:
    @pytest.mark.parametrize("view", VIEWS, ids=lambda view: f"{view.crop} {view.seed}")
    @pytest.mark.parametrize("size", [24, 40])
    def test_batches_are_the_same(
        self, packed: Any, monkeypatch: pytest.MonkeyPatch, view: View, size: int
    ) -> None:
        counting = Counting()
        use(monkeypatch, counting)
        with_extra = batches(packed[0], view, packed[1], size)
        assert counting.calls > 0
        use(monkeypatch, None)
        assert batches(packed[0], view, packed[1], size) == with_extra

    def test_a_chunk_is_one_call_once_its_hashes_are_compared(
        self, packed: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        dataset, options = packed
        counting = Counting()
        use(monkeypatch, counting)
        split, view = dataset.split("train"), View(crop="pad", crop_pct=1.0, hflip=True)
        order = Order(split.shard_sizes, "set", seed=2)
        reader = BatchLoader(split, order, view, threads=6, options=options)  # 30 images a task
        calls = []
        for step in range(3):  # one plan each, so that no batch is made ahead
            before = counting.calls
            assert len(list(reader.batches([Batch(step, step * 60, 60, 40)]))) == 1
            calls.append(counting.calls - before)
        reader.close()
        chunks = 1 if reader._small else 2
        first = chunks if reader._small else 2 * chunks  # read, then compared, then shown
        assert calls == [first, chunks, chunks]
        assert counting.left_out == (3 if dataset.codec == "original" else 0)

    def test_a_loader_may_do_without(self, packed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        counting = Counting()
        use(monkeypatch, counting)
        view = View(crop="resized", hflip=True)
        with_extra, calls = batches(packed[0], view, packed[1]), counting.calls
        monkeypatch.setattr(render, "decode_region", None)
        without = replace(packed[1], compiled=False)
        assert batches(packed[0], view, without) == with_extra
        assert counting.calls == calls > 0

    def test_stored_bytes_from_elsewhere_are_shown_too(
        self, packed: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        dataset, _ = packed
        split = dataset.split("train")
        stored = {sample: bytes(split.bytes_of(sample)) for sample in range(len(split))}

        def read(sample: int, buffer: bytearray) -> memoryview:
            buffer[: len(stored[sample])] = stored[sample]
            return memoryview(buffer)[: len(stored[sample])]

        options, view = LoaderOptions(read=read, cache_bytes=0), View(crop="resized", hflip=True)
        counting = Counting()
        use(monkeypatch, counting)
        from_elsewhere = batches(dataset, view, options)
        assert counting.calls > 0
        use(monkeypatch, None)
        assert batches(dataset, view, packed[1]) == from_elsewhere

    @pytest.mark.parametrize("check_hashes", [True, False])
    def test_errors_are_the_same(
        self, packed: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, check_hashes: bool
    ) -> None:
        dataset, options = packed
        hurt = shutil.copytree(dataset.path, tmp_path / "hurt")
        row = pq.read_table(hurt / "train" / "index.parquet").slice(25, 1).to_pylist()[0]
        with (hurt / "train" / f"{row['shard']:05d}.tar").open("r+b") as shard:
            shard.seek(row["offset"])
            shard.write(bytes(row["length"]))
        messages = []
        options = LoaderOptions(cache_bytes=options.cache_bytes, check_hashes=check_hashes)
        for found in (extra, None):
            use(monkeypatch, found)
            try:
                batches(Dataset(hurt), View(crop="resized"), options)
                messages.append("none")
            except StokerError as error:
                messages.append(str(error))
        if not check_hashes and dataset.codec != "raw":  # in the words of two decoders
            messages = [message.partition(": ")[0] for message in messages]
        assert messages[0] == messages[1]
        assert ("sample 25" in messages[0]) == (check_hashes or dataset.codec != "raw")

    def test_a_shard_that_ends_early_is_named_in_the_same_words(
        self, packed: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        hurt = shutil.copytree(packed[0].path, tmp_path / "hurt")
        messages = []
        for found in (extra, None):
            use(monkeypatch, found)
            dataset = Dataset(hurt)
            split = dataset.split("train")
            for number in range(len(split.shards)):
                split.source.open(number)
            (hurt / "train" / "00001.tar").write_bytes(b"")
            reader = BatchLoader(split, Order(split.shard_sizes, "set", seed=2), View())
            with pytest.raises(StokerError) as error:
                list(reader.batches([Batch(0, 0, 60, 40)]))
            reader.close()
            messages.append(str(error.value))
            shutil.copy(packed[0].path / "train" / "00001.tar", hurt / "train" / "00001.tar")
        assert (
            messages[0].partition("(from")[0].partition(" at byte")[0]
            == (messages[1].partition("(from")[0].partition(" at byte")[0])
        )
        assert "ends early" in messages[0]

    def test_every_view_of_every_kind_of_file(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        folder = tmp_path / "photos" / "train"
        for number, (width, height) in enumerate(((90, 70), (33, 150), (1, 9), (500, 8))):
            for name, data in jpegs(width, height).items():
                file = folder / ("odd", "even")[number % 2] / f"{number}-{name}.jpg"
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(data)
        settings: Any = {"storage": Storage("original"), "val_share": 0, "workers": 1}
        out = pack(tmp_path / "photos", tmp_path / "out", **settings)
        use(monkeypatch, extra)
        with_extra = seen(out, (1, 8, 32))
        use(monkeypatch, None)
        assert seen(out, (1, 8, 32)) == with_extra
