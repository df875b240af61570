"""What words name: in which order, what is passed over, and what is refused."""

from __future__ import annotations

import io
import os
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from samples import image_folder, picture
from stoker.data.dataset import Dataset
from stoker.data.packing.pack import pack
from stoker.data.sources.item import Item
from stoker.errors import BadRequest, StokerError
from stoker.use import image_stream
from stoker.use.image_stream import (
    IgnoredCounts,
    NamedImages,
    StoredImages,
    image_sources,
    images_below,
)

JPEG = b"not looked at here"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make(*names: str | bytes) -> None:
    for name in names:
        path = Path(os.fsdecode(name))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(JPEG)


def named(*words: str, null: bool = False) -> list[str]:
    (source,) = image_sources(words, null=null)
    assert isinstance(source, NamedImages)
    return [item.name for item in source.items()]


def piped(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard input that holds some bytes and ends."""
    file = Path("piped")
    file.write_bytes(data)
    monkeypatch.setattr("sys.stdin", file.open("rb"))


def test_words_keep_their_order_and_folders_are_sorted_by_bytes() -> None:
    make("z.jpg", "f/b.png", "f/a/2.jpg", "f/a/1.JPEG", "f/Z.gif", b"f/\xff.jpg", "f/a.jpg")
    odd = os.fsdecode(b"f/\xff.jpg")
    inside = ["f/Z.gif", "f/a/1.JPEG", "f/a/2.jpg", "f/a.jpg", "f/b.png", odd]
    assert named("z.jpg", "f", "z.jpg") == ["z.jpg", *inside, "z.jpg"]


def test_what_is_passed_over_is_counted() -> None:
    make("f/1.jpg", "f/.hidden.jpg", "f/.git/1.jpg", "f/notes.txt", "f/readme")
    Path("f/loop").symlink_to(".")
    Path("f/up").symlink_to("..")
    Path("f/itself.jpg").symlink_to("itself.jpg")
    Path("f/gone.jpg").symlink_to("nowhere")
    Path("f/linked.jpg").symlink_to("1.jpg")
    os.mkfifo("f/pipe.jpg")
    (source,) = image_sources(["f"])
    assert isinstance(source, NamedImages)
    assert [item.name for item in source.items()] == ["f/1.jpg", "f/linked.jpg"]
    assert {reason: count for reason, (count, _) in source.ignored.counts.items()} == {
        "hidden": 2,
        "not an image by its name": 2,
        "link to a folder: not followed": 2,
        "not a regular file": 3,
    }
    assert not list(source.ignored)


def test_a_folder_that_cannot_be_listed_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    make("f/a/1.jpg", "f/b/2.jpg")
    scandir: Callable[[str], Iterator[os.DirEntry[str]]] = os.scandir

    def refuse(path: str) -> Iterator[os.DirEntry[str]]:
        if path == "f/a":
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(image_stream.os, "scandir", refuse)
    ignored = IgnoredCounts()
    assert list(images_below("f", ignored)) == ["f/b/2.jpg"]
    assert ignored.counts == {"cannot list: Permission denied": (1, "f/a")}


def test_folders_may_be_very_deep() -> None:
    folders = [Path(f"deep/{'d/' * depth}") for depth in range(1201)]
    for folder in folders:
        folder.mkdir()
    image = Path(f"deep/{'d/' * 1200}1.jpg")
    image.write_bytes(JPEG)
    assert named("deep") == [str(image)]
    # Python's own removal of a tree calls itself for each folder, and fails here.
    image.unlink()
    for folder in reversed(folders):
        folder.rmdir()


def test_patterns_are_expanded_unless_the_name_exists() -> None:
    make("p/a1.jpg", "p/a2.jpg", "p/b.txt", "p/sub/a3.jpg", "p/.a4.jpg", "p/[a].jpg")
    assert named("p/a*.jpg") == ["p/a1.jpg", "p/a2.jpg"]
    assert named("p/[a].jpg") == ["p/[a].jpg"]
    assert named("p/*") == ["p/[a].jpg", "p/a1.jpg", "p/a2.jpg", "p/sub/a3.jpg"]
    assert named("p/**") == named("p/**/*.jpg") == sorted(named("p"))
    assert named("?/sub") == ["p/sub/a3.jpg"]


@pytest.mark.parametrize("word", ["no.jpg", "no*.jpg", "", "a\nb.jpg", "x" * 5000])
def test_a_word_that_names_nothing_is_refused(word: str) -> None:
    with pytest.raises(BadRequest, match=r"^no image"):
        image_sources([word])


def test_an_explicit_file_is_an_image_whatever_its_name() -> None:
    make("picture", "notes.txt")
    (source,) = image_sources(["picture", "notes.txt"])
    assert isinstance(source, NamedImages)
    assert list(source.items()) == [Item("picture", None), Item("notes.txt", None)]
    assert source.count == 2


def tar_of(names: dict[str, bytes], **options: str) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w" + options.get("mode", "")) as tar:  # type: ignore[call-overload]
        for name, content in names.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return data.getvalue()


def zip_of(names: dict[str, bytes]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, content in names.items():
            archive.writestr(name, content)
    return data.getvalue()


MEMBERS = {"cat/2.jpg": b"two", "cat/1.jpg": b"one", "notes.txt": b"x", "../../up.jpg": b"no"}
ARCHIVES = {
    "tar": tar_of(MEMBERS),
    "tar.gz": tar_of(MEMBERS, mode=":gz"),
    "tar.bz2": tar_of(MEMBERS, mode=":bz2"),
    "tar.xz": tar_of(MEMBERS, mode=":xz"),
    "zip": zip_of(MEMBERS),
}


@pytest.mark.parametrize("kind", ARCHIVES)
def test_archives_are_read_in_their_order(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Path(f"new.{kind}").write_bytes(ARCHIVES[kind])
    make("1.jpg")
    (source,) = image_sources(["1.jpg", f"new.{kind}"])
    assert isinstance(source, NamedImages)
    assert list(source.items())[1:] == [
        Item(f"new.{kind}/cat/2.jpg", b"two"),
        Item(f"new.{kind}/cat/1.jpg", b"one"),
    ]
    assert source.count == 0
    assert sum(count for count, _ in source.ignored.counts.values()) == 2
    piped(ARCHIVES[kind], monkeypatch)
    assert named("-") == ["cat/2.jpg", "cat/1.jpg"]


def test_a_damaged_archive_is_an_error_after_what_came_before() -> None:
    Path("cut.tar").write_bytes(ARCHIVES["tar"][:1200])
    (source,) = image_sources(["cut.tar"])
    assert isinstance(source, NamedImages)
    items = source.items()
    assert next(items).name == "cut.tar/cat/2.jpg"
    with pytest.raises(StokerError, match="ended early"):
        next(items)


def test_an_archive_in_a_folder_is_no_image() -> None:
    make("f/1.jpg")
    Path("f/new.tar").write_bytes(ARCHIVES["tar"])
    assert named("f") == ["f/1.jpg"]
    assert named("f/*") == ["f/1.jpg", "f/new.tar/cat/2.jpg", "f/new.tar/cat/1.jpg"]


LISTS = [
    (b"", False, []),
    (b"\n\n", False, []),
    (b"a.jpg\nb c.jpg", False, ["a.jpg", "b c.jpg"]),
    (b"a.jpg\r\n b.jpg \n", False, ["a.jpg", " b.jpg "]),
    (b"*.jpg\n-\n--null\n~\n$HOME\n", False, ["*.jpg", "-", "--null", "~", "$HOME"]),
    (b"\xff\x1b[2J.jpg\n", False, [os.fsdecode(b"\xff\x1b[2J.jpg")]),
    (b"PK.jpg\nBZh.jpg\n", False, ["PK.jpg", "BZh.jpg"]),
    (b"a\nb.jpg\0c.jpg\r\0\0d.jpg", True, ["a\nb.jpg", "c.jpg\r", "d.jpg"]),
]


@pytest.mark.parametrize(("data", "null", "names"), LISTS)
def test_a_list_of_paths(
    data: bytes, null: bool, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    piped(data, monkeypatch)
    assert named("-", null=null) == names


def test_a_list_may_arrive_in_any_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_stream, "READ_BYTES", 3)
    names = [f"folder/{number}.jpg" for number in range(50)]
    piped("\n".join(names).encode(), monkeypatch)
    assert named("-") == names


def test_a_list_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    piped(b"a.jpg\n" * 100_000, monkeypatch)
    (source,) = image_sources(["-"])
    assert isinstance(source, NamedImages)
    items = source.items()
    assert next(items) == Item("a.jpg", None)
    assert os.lseek(image_stream.sys.stdin.fileno(), 0, os.SEEK_CUR) <= image_stream.READ_BYTES


def test_a_path_that_does_not_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    piped(b"x" * 100_000, monkeypatch)
    with pytest.raises(StokerError, match="no list of paths"):
        named("-")


@pytest.mark.parametrize(
    ("words", "split", "null"),
    [(["-", "-"], "", False), (["f"], "val", False), (["f"], "", True)],
)
def test_words_that_do_not_fit_together(words: list[str], split: str, null: bool) -> None:
    make("f/1.jpg")
    with pytest.raises(BadRequest):
        image_sources(words, split, null=null)


def test_sets_stand_between_other_words() -> None:
    packed = str(pack(image_folder(Path("photos"), images=4, val=2), Path("packed"), workers=1))
    picture(0, 0, (8, 8)).save("1.jpg")
    sources = image_sources(["1.jpg", packed, "photos", "1.jpg"])
    assert [type(source) for source in sources] == [NamedImages, StoredImages, NamedImages]
    assert [source.count for source in sources] == [1, 18, 0]
    (one,) = image_sources([packed], "val")
    assert isinstance(one, StoredImages)
    assert (one.splits, one.count) == (("val",), Dataset(packed).images("val"))
    with pytest.raises(BadRequest, match="no split called 'test'"):
        image_sources([packed], "test")
