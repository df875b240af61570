"""Tars of every make give the same images; one that is cut or damaged is never a shorter set."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import subprocess
import tarfile
from pathlib import Path

import pytest

from packing import Member, as_folder, as_tar, cuts, flipped, members
from stoker.data.sources.archives import images_in, is_archive
from stoker.errors import StokerError

BLOCK = tarfile.BLOCKSIZE
SMALL = [(f"cat/{number}.jpg", bytes([65 + number]) * (100 + 300 * number)) for number in range(5)]
"""Not images: archives are read without a look at what they hold."""
COMPRESSORS = {
    "tar": bytes,
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
}


def read(data: bytes, ignored: list[tuple[str, str]] | None = None) -> list[Member]:
    """What comes out of an archive, or StokerError."""
    passed_over = [] if ignored is None else ignored
    return [
        (item.name, item.data or b"") for item in images_in(io.BytesIO(data), "a.tar", passed_over)
    ]


def read_or_none(data: bytes) -> list[Member] | None:
    try:
        return read(data)
    except StokerError as error:
        assert "\n" not in str(error)
        return None


class OneByOne(io.RawIOBase):
    """A pipe whose writer is slow: every read gives a few bytes only."""

    def __init__(self, data: bytes) -> None:
        self._data = io.BytesIO(data)

    def read(self, size: int = -1) -> bytes:
        return self._data.read(min(size, 7) if size > 0 else size)


class TestEveryMake:
    @pytest.mark.parametrize("kind", COMPRESSORS)
    def test_compressed_or_not(self, kind: str) -> None:
        assert read(COMPRESSORS[kind](as_tar(SMALL))) == SMALL

    @pytest.mark.parametrize("kind", ["gz", "bz2", "xz"])
    def test_compressed_in_several_pieces(self, kind: str) -> None:
        tar = as_tar(SMALL)
        pieces = [tar[start : start + 700] for start in range(0, len(tar), 700)]
        assert read(b"".join(map(COMPRESSORS[kind], pieces))) == SMALL

    @pytest.mark.parametrize("kind", COMPRESSORS)
    def test_from_a_slow_pipe(self, kind: str) -> None:
        data = COMPRESSORS[kind](as_tar(SMALL))
        items = images_in(OneByOne(data), "standard input", [])  # type: ignore[arg-type]
        assert [(item.name, item.data) for item in items] == SMALL

    @pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
    def test_long_names_and_any_letters(self, form: int) -> None:
        long = [
            (f"{'very/' * 60}{'long' * 50}-{letter}.jpg", letter.encode()) for letter in "aé漢😀"
        ]
        assert read(as_tar(long, form=form)) == long

    @pytest.mark.parametrize("form", ["ustar", "pax", "gnu", "v7", "oldgnu"])
    def test_by_the_systems_tar(self, tmp_path: Path, form: str) -> None:
        root = as_folder(tmp_path / "photos", SMALL)
        command = ["tar", f"--format={form}", "--sort=name", "-C", str(tmp_path), "-cf", "-"]
        made = subprocess.run([*command, root.name], capture_output=True, check=True).stdout
        assert read(made) == [(f"photos/{name}", data) for name, data in SMALL]

    @pytest.mark.parametrize("prefix", ["./", "/", ".//", "././"])
    def test_names_are_tidied(self, prefix: str) -> None:
        assert read(as_tar([(prefix + name, data) for name, data in SMALL])) == SMALL

    def test_folders_are_nothing_and_empty_files_are_files(self) -> None:
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w") as tar:
            folder = tarfile.TarInfo("cat")
            folder.type = tarfile.DIRTYPE
            tar.addfile(folder)
            tar.addfile(tarfile.TarInfo("cat/empty.jpg"))
        ignored: list[tuple[str, str]] = []
        assert read(file.getvalue(), ignored) == [("cat/empty.jpg", b"")]
        assert ignored == []

    def test_a_tar_of_tars_is_a_folder_of_folders(self) -> None:
        inner = {name: [(f"{n}.jpg", name.encode() * n) for n in (1, 2)] for name in ("n01", "n02")}
        outer = as_tar([(f"{name}.tar", as_tar(listed)) for name, listed in inner.items()])
        assert read(outer) == [
            (f"{name}/{file}", data) for name, listed in inner.items() for file, data in listed
        ]

    def test_a_tar_of_tars_with_empty_ones_and_other_things_between(self) -> None:
        listed = [("a.jpg", b"1"), ("c.tar", as_tar([])), ("d.tar", as_tar(SMALL)), ("z.jpg", b"2")]
        names = [name for name, _ in read(as_tar(listed))]
        assert names == ["a.jpg", *(f"d/{name}" for name, _ in SMALL), "z.jpg"]

    def test_what_is_no_image_is_named(self) -> None:
        listed = [
            ("cat/a.txt", b""),
            ("cat/.b.jpg", b""),
            ("__MACOSX/c.jpg", b""),
            ("../d.jpg", b""),
        ]
        ignored: list[tuple[str, str]] = []
        assert read(as_tar(listed), ignored) == []
        assert dict(ignored) == {
            "cat/a.txt": "not an image by its name",
            "cat/.b.jpg": "hidden",
            "__MACOSX/c.jpg": "hidden",
            "../d.jpg": "name leads out of the archive",
        }

    def test_names_that_are_not_utf8_come_as_the_folder_has_them(self) -> None:
        raw = as_tar([("cat/abc.jpg", b"x")], form=tarfile.GNU_FORMAT)
        header = bytearray(raw[:BLOCK])
        header[4:7] = b"\xe9\xe8\xff"
        header[148:156] = b" " * 8
        header[148:156] = b"%06o\0 " % sum(header)
        assert read(bytes(header) + raw[BLOCK:]) == [("cat/\udce9\udce8\udcff.jpg", b"x")]

    def test_archives_after_one_another_are_noted_not_read(self) -> None:
        ignored: list[tuple[str, str]] = []
        assert read(as_tar(SMALL[:1]) + as_tar(SMALL[1:]), ignored) == SMALL[:1]
        assert ignored == [("(the rest)", "data after the archive's end mark")]


class TestCut:
    """Of 4 images, a text and a tar in a tar: an error or all of it, wherever it ends."""

    MIXED: tuple[Member, ...] = (
        *SMALL[:2],
        ("cat/notes.txt", b"n" * 700),
        ("dog.tar", as_tar(SMALL[2:4])),
        (f"cat/{'long' * 40}.jpg", b"l" * 600),
    )

    @pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
    def test_at_every_509th_byte(self, form: int) -> None:
        whole = as_tar(list(self.MIXED), form=form)
        expected = read(whole)
        assert len(expected) == 5
        outcomes = [read_or_none(cut) for cut in cuts(whole, 509)]
        assert all(outcome in (None, expected) for outcome in outcomes)
        assert outcomes[0] is None

    def test_at_every_block(self) -> None:
        whole = as_tar(list(self.MIXED))
        expected = read(whole)
        outcomes = [read_or_none(cut) for cut in cuts(whole, BLOCK)]
        first_whole = outcomes.index(expected)
        assert outcomes[:first_whole] == [None] * first_whole
        assert outcomes[first_whole:] == [expected] * (len(outcomes) - first_whole)

    @pytest.mark.parametrize("kind", ["gz", "bz2", "xz"])
    def test_compressed_everywhere(self, kind: str) -> None:
        whole = COMPRESSORS[kind](as_tar(list(self.MIXED)))
        expected = read(whole)
        assert all(read_or_none(cut) in (None, expected) for cut in cuts(whole, 7))
        assert read_or_none(whole[:-1]) is None

    def test_the_words_say_what_to_do(self) -> None:
        with pytest.raises(StokerError, match=r"ended early.*get a whole copy"):
            read(as_tar(SMALL)[: BLOCK + 50])


class TestDamaged:
    def headers(self, tar: bytes) -> list[int]:
        with tarfile.open(fileobj=io.BytesIO(tar)) as opened:
            return [member.offset for member in opened.getmembers()]

    def test_a_lone_byte_in_each_header(self) -> None:
        tar = as_tar(SMALL, form=tarfile.GNU_FORMAT)
        for start in self.headers(tar):
            # Every byte of a header that says something, and some that do not.
            for place in [*range(0, 160), 257, 263, 300, 345, 400, 511]:
                outcome = read_or_none(flipped(tar, start + place))
                assert outcome in (None, SMALL), (start, place)

    def test_garbage_between_members(self) -> None:
        tar = as_tar(SMALL, form=tarfile.GNU_FORMAT)
        for start in self.headers(tar):
            for junk in (b"x" * BLOCK, b"\0" * 511 + b"x", b"x" * 100):
                assert read_or_none(tar[:start] + junk + tar[start:]) is None

    def test_an_end_mark_in_the_midst_is_noted(self) -> None:
        tar = as_tar(SMALL, form=tarfile.GNU_FORMAT)
        middle = self.headers(tar)[2]
        ignored: list[tuple[str, str]] = []
        assert read(tar[:middle] + bytes(1024) + tar[middle:], ignored) == SMALL[:2]
        assert [reason for _, reason in ignored] == ["data after the archive's end mark"]

    @pytest.mark.parametrize("kind", ["gz", "bz2", "xz"])
    def test_a_lone_byte_of_what_is_compressed(self, kind: str) -> None:
        whole = COMPRESSORS[kind](as_tar(SMALL))
        for place in range(0, len(whole), 5):
            assert read_or_none(flipped(whole, place, 0x10)) in (None, SMALL), place

    @pytest.mark.parametrize(
        "data", [b"", b"x", b"PK\x05\x06" + bytes(18), b"PK\x07\x08PK\x03\x04", b"x" * 2000]
    )
    def test_what_is_no_archive(self, data: bytes) -> None:
        with pytest.raises(StokerError):
            read(data)

    def test_an_empty_tar_is_no_error(self) -> None:
        assert read(as_tar([])) == []

    def test_zstd_is_named_with_what_to_do(self) -> None:
        with pytest.raises(StokerError, match="zstd -dc"):
            read(b"\x28\xb5\x2f\xfd" + bytes(20))


@pytest.mark.parametrize("kind", COMPRESSORS)
def test_an_archive_is_known_by_its_beginning(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "download"
    file.write_bytes(COMPRESSORS[kind](as_tar(members(images=1))))
    assert is_archive(file)


@pytest.mark.parametrize("data", [b"", b"text", b"x" * 600, b"\xff\xd8\xff" + bytes(600)])
def test_other_files_are_no_archives(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "file").write_bytes(data)
    assert not is_archive(tmp_path / "file")
