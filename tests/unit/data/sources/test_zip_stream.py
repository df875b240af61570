"""A zip read forward gives what a reader of its directory finds; damage is never a shorter set."""

from __future__ import annotations

import io
import struct
import subprocess
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pytest

from packing import Member, as_folder, as_zip, cuts, flipped
from stoker.data.sources.archives import images_in
from stoker.errors import StokerError

STORED, DEFLATED = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED
SMALL = [(f"cat/{number}.jpg", bytes([65 + number]) * (40 + 90 * number)) for number in range(5)]
NOISE = [
    (f"dog/{n}.jpg", bytes((n * 31 + place * place) % 251 for place in range(5000)))
    for n in range(3)
]

Outcome = list[tuple[str, bytes | None, str | None]]


def read(data: bytes, ignored: list[tuple[str, str]] | None = None) -> Outcome:
    passed_over = [] if ignored is None else ignored
    items = images_in(io.BytesIO(data), "a.zip", passed_over)
    return [(item.name, item.data, item.reason) for item in items]


def read_or_none(data: bytes) -> Outcome | None:
    try:
        return read(data)
    except StokerError as error:
        assert str(error).isprintable()
        return None


def whole(listed: list[Member]) -> Outcome:
    return [(name, data, None) for name, data in listed]


class TestEveryMake:
    @pytest.mark.parametrize("wide", [False, True])
    @pytest.mark.parametrize("piped", [False, True])
    @pytest.mark.parametrize("method", [STORED, DEFLATED])
    def test_methods_descriptors_and_sizes(self, method: int, piped: bool, wide: bool) -> None:
        listed = [*SMALL, *NOISE, ("cat/empty.jpg", b"")]
        data = as_zip(listed, method, piped=piped, wide=wide)
        assert read(data) == whole(listed)

    @pytest.mark.parametrize("wide", [False, True])
    @pytest.mark.parametrize("size", [0, 3, 65_535, 65_536, 65_540, 131_072, 200_000])
    def test_a_stored_member_of_unknown_size(self, size: int, wide: bool) -> None:
        """With what looks like the end of it inside, and beside the ends of pieces."""
        body = (b"PK\x07\x08" + b"PK\x03\x04" * 400 + bytes(61_000) + b"PK" * 20)[:size]
        body = (body * (size // max(len(body), 1) + 1))[:size]
        listed = [("a/1.jpg", body), ("a/2.jpg", as_zip(SMALL, STORED, piped=True)), *SMALL]
        assert read(as_zip(listed, STORED, piped=True, wide=wide)) == whole(listed)

    @pytest.mark.parametrize("flags", ["-0", "-9", "-0 -fd", "-9 -fz"])
    @pytest.mark.parametrize("piped", [False, True])
    def test_by_info_zip(self, tmp_path: Path, flags: str, piped: bool) -> None:
        as_folder(tmp_path, [*SMALL, *NOISE])
        names = [name for name, _ in [*SMALL, *NOISE]]
        command = ["zip", "-q", *flags.split(), "-" if piped else "made.zip", *names]
        try:
            made = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True).stdout
        except FileNotFoundError:
            pytest.skip("needs zip")
        data = made if piped else (tmp_path / "made.zip").read_bytes()
        assert read(data) == whole([*SMALL, *NOISE])

    def test_names_by_info_zip_are_those_of_the_folder(self, tmp_path: Path) -> None:
        listed = [("Köln/1.jpg", b"x"), ("漢/2.jpg", b"y")]
        as_folder(tmp_path, listed)
        command = ["zip", "-q", "made.zip", *(name for name, _ in listed)]
        try:
            subprocess.run(
                command,
                cwd=tmp_path,
                env={"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"},
                check=True,
            )
        except FileNotFoundError:
            pytest.skip("needs zip")
        assert read((tmp_path / "made.zip").read_bytes()) == whole(listed)

    def test_utf8_names(self) -> None:
        listed = [("Köln/😀.jpg", b"x"), ("漢/字.jpg", b"y")]
        assert read(as_zip(listed)) == whole(listed)

    def test_names_of_old_tools(self) -> None:
        data = as_zip([("caf?/1.jpg", b"x")]).replace(b"caf?", b"caf\x82")
        assert read(data) == whole([("café/1.jpg", b"x")])

    def test_backslashes_and_folders(self) -> None:
        data = as_zip([("cat/", b""), ("./cat//1.jpg", b"x"), ("dog\\2.jpg", b"y")])
        assert read(data) == whole([("cat/1.jpg", b"x"), ("dog/2.jpg", b"y")])

    @pytest.mark.parametrize("comment", [b"", b"hello", b"PK\x03\x04" * 1000])
    def test_comments(self, comment: bytes) -> None:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as made:
            entry = zipfile.ZipInfo("cat/1.jpg")
            entry.comment = comment
            entry.extra = b"\x99\x99\x04\x00abcd"
            made.writestr(entry, b"x")
            made.comment = comment
        assert read(file.getvalue()) == whole([("cat/1.jpg", b"x")])

    def test_an_archive_that_was_added_to(self) -> None:
        file = io.BytesIO(as_zip(SMALL))
        with zipfile.ZipFile(file, "a") as made:
            made.writestr("dog/more.jpg", b"more")
        assert read(file.getvalue()) == whole([*SMALL, ("dog/more.jpg", b"more")])

    def test_more_members_than_a_short_count_holds(self) -> None:
        listed = [(f"c/{n}.jpg", b"") for n in range(66_000)]
        assert len(read(as_zip(listed, STORED))) == 66_000

    def test_what_is_no_image_is_named_and_passed(self) -> None:
        ignored: list[tuple[str, str]] = []
        listed = [("cat/a.txt", b"long text" * 1000), *SMALL, ("__MACOSX/x.jpg", b"x")]
        for piped in (False, True):
            assert read(as_zip(listed, piped=piped), ignored) == whole(SMALL)
        assert (
            ignored
            == [
                ("cat/a.txt", "not an image by its name"),
                ("__MACOSX/x.jpg", "hidden"),
            ]
            * 2
        )

    def test_an_empty_zip_is_said(self) -> None:
        with pytest.raises(StokerError, match="without members"):
            read(as_zip([]))

    @pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
    def test_a_rare_method_is_a_reason(self, method: int) -> None:
        outcome = read(as_zip(SMALL, method))
        assert [name for name, _, _ in outcome] == [name for name, _ in SMALL]
        assert {reason for _, _, reason in outcome} == {
            f"compressed by a method that is not read ({method})"
        }


KINDS = {
    "stored": {"method": STORED},
    "stored and piped": {"method": STORED, "piped": True},
    "deflated": {"method": DEFLATED},
    "piped": {"method": DEFLATED, "piped": True},
    "wide": {"method": DEFLATED, "wide": True},
}


@pytest.mark.parametrize("kind", KINDS)
class TestDamage:
    def test_cut_at_every_97th_byte(self, kind: str) -> None:
        listed = [*SMALL, *NOISE]
        data = as_zip(listed, **KINDS[kind])  # type: ignore[arg-type]
        outcomes = [read_or_none(cut) for cut in cuts(data, 97)]
        assert all(outcome in (None, whole(listed)) for outcome in outcomes)
        assert outcomes.count(None) >= len(outcomes) - 1

    def test_cut_everywhere_near_its_end(self, kind: str) -> None:
        data = as_zip(SMALL, **KINDS[kind])  # type: ignore[arg-type]
        directory = data.index(b"PK\x01\x02")
        for end in range(directory - 40, len(data)):
            assert read_or_none(data[:end]) in (None, whole(SMALL)), end

    def test_a_lone_byte_anywhere(self, kind: str) -> None:
        """Every member comes, whole or with a reason, or there is an error."""
        data = as_zip(SMALL, **KINDS[kind])  # type: ignore[arg-type]
        expected = dict(SMALL)
        for place in range(len(data)):
            for bits in (0x01, 0x20):
                outcome = read_or_none(flipped(data, place, bits))
                if outcome is None:
                    continue
                assert [name for name, _, _ in outcome] == list(expected), (place, bits)
                for name, came, reason in outcome:
                    assert reason is not None or came == expected[name], (place, bits)

    def test_a_member_left_out(self, kind: str) -> None:
        data = as_zip(SMALL, **KINDS[kind])  # type: ignore[arg-type]
        starts = [place for place in range(len(data)) if data[place:].startswith(b"PK\x03\x04")]
        cut = data[: starts[1]] + data[starts[2] :]
        assert read_or_none(cut) is None

    def test_garbage_between_members(self, kind: str) -> None:
        data = as_zip(SMALL, **KINDS[kind])  # type: ignore[arg-type]
        second = data.index(b"PK\x03\x04", 10)
        for junk in (b"x", b"PK", b"PK\x03\x04", bytes(64)):
            assert read_or_none(data[:second] + junk + data[second:]) is None


def test_an_encrypted_member_is_a_reason() -> None:
    data = bytearray(as_zip(SMALL[:1], STORED))
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = data.index(mark) + place
        data[at : at + 2] = struct.pack("<H", 1)
    assert read(bytes(data)) == [("cat/0.jpg", None, "encrypted in the archive")]


def test_false_ends_cost_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member full of what looks like its end is summed a few times, not once for each of them."""
    body = b"PK\x07\x08" * (1 << 14)
    data = as_zip([("a/1.jpg", body)], STORED, piped=True)
    summed, plain = 0, zlib.crc32

    def counting(piece: Any, before: int = 0) -> int:
        nonlocal summed
        summed += len(piece)
        return plain(piece, before)

    monkeypatch.setattr(zlib, "crc32", counting)
    assert read(data) == whole([("a/1.jpg", body)])
    assert len(body) <= summed <= 4 * len(body)
