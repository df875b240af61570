"""Near duplicates: copies of photographs are found, plain surfaces and exact ones are not."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance

from stoker.data.dataset import Dataset
from stoker.data.images.encode import Storage, look
from stoker.data.packing.duplicates import MOST_BITS, TELLING_BITS, alike, ones
from stoker.data.packing.pack import pack

Pairs = set[tuple[str, str]]


def photograph(number: int, size: tuple[int, int] = (320, 240)) -> Image.Image:
    """Soft shapes of light and shade, as a photograph is at a glance, with some grain."""
    random = np.random.default_rng(number)
    coarse = random.integers(20, 235, (7, 9, 3)).astype(np.uint8)
    soft = np.asarray(Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC), np.float64)
    grain = random.normal(0, 3, soft.shape)
    return Image.fromarray(np.clip(soft + grain, 0, 255).astype(np.uint8))


COPIES = {
    "smaller": lambda image: image.resize((160, 120), Image.Resampling.LANCZOS),
    "larger": lambda image: image.resize((480, 360), Image.Resampling.BICUBIC),
    "brighter": lambda image: ImageEnhance.Brightness(image).enhance(1.05),
    "more contrast": lambda image: ImageEnhance.Contrast(image).enhance(1.05),
    "coarse": lambda image: reencoded(image, 40),
    "finer": lambda image: reencoded(image, 95),
}


def reencoded(image: Image.Image, quality: int) -> Image.Image:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return Image.open(io.BytesIO(file.getvalue()))


def bits_apart(one: Image.Image, two: Image.Image) -> int:
    return (look(np.asarray(one.convert("RGB"))) ^ look(np.asarray(two.convert("RGB")))).bit_count()


class TestLook:
    @pytest.mark.parametrize("copy", COPIES)
    def test_few_bits_change_in_a_copy(self, copy: str) -> None:
        apart = [bits_apart(photograph(n), COPIES[copy](photograph(n))) for n in range(20)]
        assert sum(bits <= MOST_BITS for bits in apart) >= 19, apart

    def test_many_bits_differ_between_two_photographs(self) -> None:
        photographs = [photograph(number) for number in range(20)]
        for one in range(20):
            for two in range(one):
                assert bits_apart(photographs[one], photographs[two]) > 2 * MOST_BITS


def brute_force(looks: np.ndarray) -> set[tuple[int, int, int]]:
    """Every image with the first of its own look, and the first ones of two looks."""
    values = [int(value) for value in looks]
    telling = [TELLING_BITS <= value.bit_count() <= 64 - TELLING_BITS for value in values]
    return {
        (one, two, (values[one] ^ values[two]).bit_count())
        for two in range(len(values))
        for one in range(two)
        if telling[one] and telling[two] and (values[one] ^ values[two]).bit_count() <= MOST_BITS
        if values.index(values[one]) == one
        if values.index(values[two]) == (one if values[one] == values[two] else two)
    }


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.integers(0, 2**64 - 1), max_size=8),
    st.lists(st.tuples(st.integers(0, 100), st.sets(st.integers(0, 63), max_size=5)), max_size=30),
)
def test_alike_finds_what_a_comparison_of_all_with_all_finds(
    bases: list[int], changes: list[tuple[int, set[int]]]
) -> None:
    values = list(bases)
    for which, flips in changes:
        if values:
            value = values[which % len(values)]
            for place in flips:
                value ^= 1 << place
            values.append(value)
    looks = np.array(values, dtype=np.uint64)
    one, two, bits = alike(looks)
    found = list(zip(one.tolist(), two.tolist(), bits.tolist(), strict=True))
    assert len(found) == len(set(found))
    assert set(found) == brute_force(looks)
    assert ones(looks).tolist() == [value.bit_count() for value in values]


def folder_of(root: Path, images: dict[str, Image.Image]) -> Path:
    for name, image in images.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        image.save(root / name)
    return root


def near(root: Path, out: Path) -> list[dict[str, object]]:
    packed = pack(root, out, storage=Storage(near_duplicates=True), workers=1, val_share=0)
    rows: list[dict[str, object]] = pq.read_table(packed / "near_duplicates.parquet").to_pylist()
    report = Dataset(packed).description["report"]["near"]
    assert report["pairs"] == len(rows)
    assert report["examples"] == rows[:5]
    return rows


def pairs(rows: list[dict[str, object]]) -> Pairs:
    return {tuple(sorted((str(row["path"]), str(row["other_path"])))) for row in rows}  # type: ignore[misc]


def in_class(number: int) -> str:
    return f"{'ab'[number // 8]}/{number:02d}.png"


class TestPacked:
    def test_copies_are_found_wherever_they_lie(self, tmp_path: Path) -> None:
        images = {f"train/a/{n}.png": photograph(n) for n in range(6)}
        images["train/b/small.png"] = COPIES["smaller"](photograph(0))
        images["val/a/bright.png"] = COPIES["brighter"](photograph(1))
        images["val/b/coarse.jpg"] = COPIES["coarse"](photograph(2))
        rows = near(folder_of(tmp_path / "photos", images), tmp_path / "out")
        assert pairs(rows) == {
            ("train/a/0.png", "train/b/small.png"),
            ("train/a/1.png", "val/a/bright.png"),
            ("train/a/2.png", "val/b/coarse.jpg"),
        }
        assert [row["bits"] for row in rows] == sorted(row["bits"] for row in rows)  # type: ignore[type-var]
        for row in rows:
            for path, split in (("path", "split"), ("other_path", "other_split")):
                assert str(row[path]).startswith(f"{row[split]}/")

    def test_plain_surfaces_are_not_all_alike(self, tmp_path: Path) -> None:
        surfaces = {f"a/{n}.png": Image.new("RGB", (60, 40), (n * 20, 90, 90)) for n in range(8)}
        ramp = np.tile(np.linspace(0, 200, 90, dtype=np.uint8)[None, :, None], (60, 1, 3))
        surfaces |= {f"b/{n}.png": Image.fromarray(ramp + np.uint8(n)) for n in range(8)}
        assert near(folder_of(tmp_path / "photos", surfaces), tmp_path / "out") == []

    def test_exact_duplicates_are_not_told_again(self, tmp_path: Path) -> None:
        images = {"a/1.png": photograph(1), "a/2.bmp": photograph(1), "b/3.png": photograph(3)}
        assert near(folder_of(tmp_path / "photos", images), tmp_path / "out") == []
        within = Dataset(tmp_path / "out").description["report"]["duplicates"]["within"]
        assert within == {"train": 1}

    def test_whatever_the_order_of_the_images(self, tmp_path: Path) -> None:
        kinds = list(COPIES)
        images = {f"{n}": photograph(n // 2) for n in range(16)}
        for n in range(1, 16, 2):
            images[f"{n}"] = COPIES[kinds[n % len(kinds)]](photograph(n // 2))
        found = []
        for turn in (0, 1):
            renamed = {in_class((int(n) * 5 + turn * 3) % 16): image for n, image in images.items()}
            back = {in_class((n * 5 + turn * 3) % 16): n for n in range(16)}
            rows = near(folder_of(tmp_path / f"{turn}", renamed), tmp_path / f"out{turn}")
            found.append({frozenset((back[one], back[two])) for one, two in pairs(rows)})
        assert found[0] == found[1]
        assert len(found[0]) >= 7

    def test_not_unless_asked_for(self, tmp_path: Path) -> None:
        images = {f"{'ab'[n % 2]}/{n}.png": photograph(n) for n in range(3)}
        out = pack(folder_of(tmp_path / "photos", images), tmp_path / "out", workers=1)
        assert not (out / "near_duplicates.parquet").exists()
        assert "look" not in pq.read_schema(out / "train" / "index.parquet").names
