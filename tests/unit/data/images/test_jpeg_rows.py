"""Rows cut out of a JPEG show what the whole JPEG shows, and odd bytes never do worse than that."""

from __future__ import annotations

import contextlib
import io
import struct

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from stoker.data.images.jpeg_rows import NAME, TABLE, TABLE_AT, add_table, cut_rows
from stoker.data.loading import render as decode
from stoker.data.loading.render import Pixels, decode_whole

SAMPLINGS = ["4:4:4", "4:2:2", "4:2:0", "grey"]


def picture(width: int, height: int) -> Pixels:
    """Colours that change every few pixels: a wrong neighbour shows."""
    random = np.random.default_rng([width, height])
    coarse = random.integers(0, 256, (height // 4 + 1, width // 4 + 1, 3))
    fine = coarse.repeat(4, axis=0).repeat(4, axis=1)[:height, :width]
    return np.clip(fine + random.integers(-40, 40, fine.shape), 0, 255).astype(np.uint8)


def marked(width: int, height: int, rows: int = 1, sampling: str = "4:2:0") -> bytes:
    """A JPEG with a marker each so many rows of blocks, and no table yet."""
    image, file = Image.fromarray(picture(width, height)), io.BytesIO()
    options = {"subsampling": sampling} if sampling != "grey" else {}
    image = image.convert("L") if sampling == "grey" else image
    image.save(file, "JPEG", quality=90, restart_marker_rows=rows, **options)
    return file.getvalue()


@pytest.fixture(autouse=True)
def no_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "decode_region", None)


class TestTable:
    @pytest.mark.parametrize("sampling", SAMPLINGS)
    def test_other_readers_do_not_see_it(self, sampling: str) -> None:
        plain = marked(90, 150, 1, sampling)
        tabled = add_table(plain)
        assert len(plain) < len(tabled) < len(plain) + 150
        np.testing.assert_array_equal(simplejpeg.decode_jpeg(tabled), simplejpeg.decode_jpeg(plain))
        shown = [np.asarray(Image.open(io.BytesIO(data))) for data in (tabled, plain)]
        np.testing.assert_array_equal(*shown)

    def test_says_where_each_interval_begins(self) -> None:
        data = add_table(marked(90, 150, 2))
        *_, frame, scan, step = TABLE.unpack_from(data, TABLE_AT)
        begins = struct.unpack_from(">5I", data, TABLE_AT + TABLE.size)
        assert step == 32
        assert struct.unpack_from(">HH", data, frame) == (150, 90)
        assert begins[0] == scan
        assert [data[begin - 2 : begin] for begin in begins[1:]] == [
            bytes((0xFF, 0xD0 + number)) for number in range(4)
        ]

    def test_there_is_none_without_markers(self) -> None:
        plain = simplejpeg.encode_jpeg(picture(90, 150), colorsubsampling="420")
        assert add_table(plain) == plain
        assert cut_rows(plain, 150, 60, 80) is None

    def test_a_jpeg_without_a_table_is_not_searched(self) -> None:
        assert cut_rows(marked(90, 150), 150, 60, 80) is None


class TestCut:
    @settings(max_examples=150, deadline=None)
    @given(
        width=st.integers(8, 90),
        height=st.integers(8, 200),
        rows=st.integers(1, 5),
        sampling=st.sampled_from(SAMPLINGS),
        scale=st.sampled_from([1, 2, 4, 8]),
        data=st.data(),
    )
    def test_rows_are_those_of_the_whole_image(
        self, width: int, height: int, rows: int, sampling: str, scale: int, data: st.DataObject
    ) -> None:
        jpeg = memoryview(add_table(marked(width, height, rows, sampling)))
        top = data.draw(st.integers(0, height - 1))
        bottom = data.draw(st.integers(top + 1, height))
        cut = cut_rows(jpeg, height, top, bottom)
        if cut is None:
            return
        part, high, first = cut
        assert first <= top < bottom <= first + high
        assert len(part) < len(jpeg)
        whole = decode_whole(jpeg, width, height, scale).copy()
        shown = decode_whole(part, width, high, scale)
        begin, end = top // scale, -(-bottom // scale)
        offset = first // scale
        np.testing.assert_array_equal(shown[begin - offset : end - offset], whole[begin:end])

    @settings(max_examples=100, deadline=None)
    @given(size=st.integers(5, 100), flip=st.booleans(), data=st.data())
    def test_a_box_shows_the_same_with_and_without_a_table(
        self, size: int, flip: bool, data: st.DataObject
    ) -> None:
        plain = marked(181, 243)
        left, top = data.draw(st.integers(0, 180)), data.draw(st.integers(0, 242))
        right = data.draw(st.integers(left + 1, 181))
        bottom = data.draw(st.integers(top + 1, 243))
        shown = np.empty((2, size, size, 3), np.uint8)
        for jpeg, out in zip((plain, add_table(plain)), shown, strict=True):
            decode.render_jpeg(memoryview(jpeg), 181, 243, [left, top, right, bottom], flip, out)
        np.testing.assert_array_equal(*shown)

    def test_most_of_an_image_is_left_out_for_a_few_rows(self) -> None:
        jpeg = add_table(marked(160, 800))
        cut = cut_rows(jpeg, 800, 400, 420)
        assert cut is not None
        part, high, first = cut
        assert (high, first) == (64, 384)
        assert len(part) < len(jpeg) // 5

    def test_nothing_is_cut_where_all_rows_are_needed(self) -> None:
        assert cut_rows(add_table(marked(90, 150)), 150, 0, 150) is None
        assert cut_rows(add_table(marked(90, 30)), 30, 0, 10) is None

    def test_a_box_that_reaches_outside_sees_the_whole_image(self) -> None:
        plain, shown = marked(64, 64), np.empty((2, 64, 64, 3), np.uint8)
        for jpeg, out in zip((plain, add_table(plain)), shown, strict=True):
            decode.render_jpeg(memoryview(jpeg), 64, 64, [-40, -40, 24, 24], False, out)
        np.testing.assert_array_equal(*shown)


def outcome(jpeg: bytes, height: int, top: int, bottom: int) -> None:
    """Anything but pixels of the right shape or a ValueError fails the test."""
    out = np.empty((20, 20, 3), np.uint8)
    with contextlib.suppress(ValueError):
        decode.render_jpeg(memoryview(jpeg), 64, height, [5, top, 60, bottom], False, out)


class TestDamage:
    JPEG = add_table(marked(64, 320))
    TABLE_END = TABLE_AT + TABLE.size + 4 * 20

    @settings(max_examples=400, deadline=None)
    @given(
        at=st.integers(0, 700),
        byte=st.integers(0, 255),
        top=st.integers(0, 300),
        down=st.integers(1, 20),
    )
    def test_any_byte_of_the_header(self, at: int, byte: int, top: int, down: int) -> None:
        hurt = bytearray(self.JPEG)
        hurt[at] = byte
        outcome(bytes(hurt), 320, top, top + down)

    @settings(max_examples=200, deadline=None)
    @given(
        numbers=st.lists(st.integers(0, (1 << 32) - 1), min_size=20, max_size=20),
        top=st.integers(0, 300),
    )
    def test_a_table_of_anything_counts_as_none(self, numbers: list[int], top: int) -> None:
        hurt = bytearray(self.JPEG)
        struct.pack_into(">20I", hurt, TABLE_AT + TABLE.size, *numbers)
        assert cut_rows(hurt, 320, top, top + 10) is None

    @settings(max_examples=200, deadline=None)
    @given(
        frame=st.integers(0, (1 << 32) - 1),
        scan=st.integers(0, (1 << 32) - 1),
        step=st.integers(0, 0xFFFF),
        size=st.integers(0, 0xFFFF),
    )
    def test_a_head_of_anything(self, frame: int, scan: int, step: int, size: int) -> None:
        hurt = bytearray(self.JPEG)
        TABLE.pack_into(hurt, TABLE_AT, b"\xff\xef", size, NAME, frame, scan, step)
        assert cut_rows(hurt, 320, 100, 140) is None

    @pytest.mark.parametrize("shift", [-5, -1, 1, 2, 200])
    def test_a_table_that_is_off_counts_as_none(self, shift: int) -> None:
        hurt, place = bytearray(self.JPEG), TABLE_AT + TABLE.size
        begins = struct.unpack_from(">20I", hurt, place)
        struct.pack_into(">20I", hurt, place, *(begin + shift for begin in begins))
        for top in range(40, 280, 16):
            assert cut_rows(hurt, 320, top, top + 10) is None

    @pytest.mark.parametrize("length", [0, 1, 19, 20, 30, 41, 42, 60, 122, 123, 400, 630, 900])
    def test_a_cut_off_file(self, length: int) -> None:
        outcome(self.JPEG[:length], 320, 100, 140)

    def test_a_cut_off_file_at_every_interval(self) -> None:
        begins = struct.unpack_from(">20I", self.JPEG, TABLE_AT + TABLE.size)
        for begin in begins:
            for length in range(begin - 3, begin + 3):
                outcome(self.JPEG[:length], 320, 200, 319)

    def test_another_height_than_the_index_says(self) -> None:
        for height in (302, 304, 321, 640):
            with pytest.raises(ValueError):
                decode.render_jpeg(
                    memoryview(self.JPEG),
                    64,
                    height,
                    [5, 100, 60, 140],
                    False,
                    np.empty((20, 20, 3), np.uint8),
                )

    def test_markers_that_were_overwritten(self) -> None:
        begins = struct.unpack_from(">20I", self.JPEG, TABLE_AT + TABLE.size)
        for begin in begins[5:9]:
            for byte in (0x00, 0xD9, 0xC4):
                hurt = bytearray(self.JPEG)
                hurt[begin - 1] = byte
                assert cut_rows(hurt, 320, 80, 144) is None
