from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from memory_objects import Fault, MemoryObjects
from stoker.commit import sha256_of
from stoker.stores import commit_folder
from stoker.stores.commit_folder import delete_folder, download_folder, upload_folder
from stoker.stores.objects import Missing, StoreError
from stoker.survive.manifest import MARKER, check_hashes, problem_of

PREFIX = "checkpoints/000000012-0123456789abcdef"
FILES = {"weights.safetensors": b"w" * 1000, "state.pt": b"s" * 300}
HOSTILE = [
    "../../outside",
    "sub/state.pt",
    ".hidden",
    "..",
    "a..b",
    "state.pt\n",
    "\x1b[2J",
    "C:\\state.pt",
    "x" * 300,
    "",
]


def nothing() -> None:
    """Nothing is to be in the store before the marker."""


def made(folder: Path) -> Path:
    """A checkpoint of two small files."""
    folder.mkdir(parents=True)
    for name, data in FILES.items():
        (folder / name).write_bytes(data)
    listed = {name: {"bytes": len(d), "sha256": sha256_of(d)} for name, d in FILES.items()}
    text = json.dumps({"step": 12, "position": 12, "files": listed}).encode()
    (folder / "manifest.json").write_bytes(text)
    (folder / MARKER).write_text(sha256_of(text))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return made(tmp_path / "saved" / "000000012")


@pytest.fixture
def uploaded(folder: Path) -> MemoryObjects:
    objects = MemoryObjects()
    upload_folder(objects, PREFIX, folder, MARKER, nothing)
    objects.requests.clear()
    return objects


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_folder_comes_back_as_it_was(folder: Path, tmp_path: Path) -> None:
    objects = MemoryObjects()
    count = upload_folder(objects, PREFIX, folder, MARKER, nothing)
    assert count == sum(len(data) for data in content(folder).values())
    target = tmp_path / "elsewhere" / "000000012"
    download_folder(objects, PREFIX, target, MARKER)
    assert content(target) == content(folder)
    assert check_hashes(target)["position"] == 12
    assert [path.name for path in target.parent.iterdir()] == [target.name]


def test_the_manifest_comes_after_the_files_and_the_marker_last(folder: Path) -> None:
    objects = MemoryObjects()
    (folder / "zeros").write_bytes(b"0")

    def write_events() -> None:
        objects.write("events/7", b"")

    upload_folder(objects, f"{PREFIX}/", folder, MARKER, write_events)
    names = [key.removeprefix(f"{PREFIX}/") for _, key in objects.requests]
    assert names == [
        "state.pt",
        "weights.safetensors",
        "zeros",
        "manifest.json",
        "events/7",
        MARKER,
    ]


def test_only_plain_files_are_uploaded(folder: Path) -> None:
    objects = MemoryObjects()
    (folder / ".state.pt.77.tmp").write_bytes(b"half")
    (folder / "link").symlink_to("/etc/passwd")
    (folder / "sub").mkdir()
    upload_folder(objects, PREFIX, folder, MARKER, nothing)
    names = {key.rpartition("/")[2] for key in objects.content}
    assert names == {*FILES, "manifest.json", MARKER}


@pytest.mark.parametrize("name", ["with space", "a..b", "é"])
def test_a_file_that_could_not_come_back_is_not_uploaded(folder: Path, name: str) -> None:
    objects = MemoryObjects()
    (folder / name).write_bytes(b"")
    with pytest.raises(StoreError):
        upload_folder(objects, PREFIX, folder, MARKER, nothing)
    assert objects.content == {}


def test_a_folder_without_a_marker_is_not_uploaded(folder: Path) -> None:
    objects = MemoryObjects()
    (folder / MARKER).unlink()
    with pytest.raises(FileNotFoundError):
        upload_folder(objects, PREFIX, folder, MARKER, nothing)
    assert objects.content == {}


@pytest.mark.parametrize("count", range(4))
def test_an_upload_that_fails_leaves_no_folder_that_counts(
    folder: Path, tmp_path: Path, count: int
) -> None:
    objects = MemoryObjects(Fault("*", after=count))
    with pytest.raises(StoreError):
        upload_folder(objects, PREFIX, folder, MARKER, nothing)
    with pytest.raises(Missing, match=MARKER):
        download_folder(objects, PREFIX, tmp_path / "target", MARKER)
    assert not (tmp_path / "target").exists()
    upload_folder(objects, PREFIX, folder, MARKER, nothing)
    download_folder(objects, PREFIX, tmp_path / "target", MARKER)
    assert not problem_of(tmp_path / "target")


def test_events_that_are_not_in_the_store_keep_the_marker_away(folder: Path) -> None:
    def fail() -> None:
        raise StoreError("the events could not be written")

    objects = MemoryObjects()
    with pytest.raises(StoreError):
        upload_folder(objects, PREFIX, folder, MARKER, fail)
    assert f"{PREFIX}/{MARKER}" not in objects.content


@pytest.mark.parametrize("count", range(4))
@pytest.mark.parametrize("there", [True, False])
def test_a_download_that_fails_leaves_the_path_as_it_was(
    uploaded: MemoryObjects, tmp_path: Path, count: int, there: bool
) -> None:
    target = tmp_path / "read" / "000000012"
    if there:
        target.mkdir(parents=True)
        (target / "state.pt").write_bytes(b"torn")
    uploaded.faults.append(Fault("read", after=count))
    with pytest.raises(StoreError):
        download_folder(uploaded, PREFIX, target, MARKER)
    assert target.exists() == there
    assert not there or content(target) == {"state.pt": b"torn"}
    assert [path.name for path in target.parent.iterdir()] == [target.name] * there
    download_folder(uploaded, PREFIX, target, MARKER)
    assert not problem_of(target)


def test_a_folder_that_is_deleted_while_it_is_read_is_missing(
    uploaded: MemoryObjects, tmp_path: Path
) -> None:
    def delete(method: str, key: str) -> None:
        if method == "read":
            uploaded.content.clear()

    uploaded.before = delete
    with pytest.raises(Missing):
        download_folder(uploaded, PREFIX, tmp_path / "target", MARKER)
    assert not (tmp_path / "target").exists()


def test_an_object_that_changes_while_it_is_read_is_not_taken(
    uploaded: MemoryObjects, tmp_path: Path
) -> None:
    def shorten(method: str, key: str) -> None:
        if method == "read":
            uploaded.content[key] = b"other"

    uploaded.before = shorten
    with pytest.raises(StoreError, match="changed"):
        download_folder(uploaded, PREFIX, tmp_path / "target", MARKER)
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_that_is_not_plain_is_refused(
    uploaded: MemoryObjects, tmp_path: Path, name: str
) -> None:
    uploaded.content[f"{PREFIX}/{name}"] = b"hostile"
    with pytest.raises(StoreError) as caught:
        download_folder(uploaded, PREFIX, tmp_path / "a" / "b" / "target", MARKER)
    assert str(caught.value).isprintable()
    assert not [method for method, _ in uploaded.requests if method == "read"]
    assert not (tmp_path / "a").exists()


def test_too_many_and_too_large_files_are_refused(
    uploaded: MemoryObjects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MOST_FILES", "MOST_BYTES"):
        with monkeypatch.context() as patch:
            patch.setattr(commit_folder, name, 3)
            with pytest.raises(StoreError):
                download_folder(uploaded, PREFIX, tmp_path / "target", MARKER)
    assert not list(tmp_path.glob("*target*"))


def test_a_folder_whose_name_begins_alike_is_another_one(
    uploaded: MemoryObjects, folder: Path, tmp_path: Path
) -> None:
    upload_folder(uploaded, f"{PREFIX}0", folder, MARKER, nothing)
    download_folder(uploaded, PREFIX, tmp_path / "target", MARKER)
    assert not problem_of(tmp_path / "target")


def test_a_mount_that_cannot_rename_gets_the_marker_last(
    uploaded: MemoryObjects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[str] = []

    def refuse(self: Path, target: Path) -> None:
        raise OSError(errno.EXDEV, "not supported")

    def copy(source: Path, target: Path) -> None:
        copied.append(target.name)
        target.write_bytes(source.read_bytes())

    monkeypatch.setattr(Path, "rename", refuse)
    monkeypatch.setattr(commit_folder.shutil, "copyfile", copy)
    download_folder(uploaded, PREFIX, tmp_path / "target", MARKER)
    assert not problem_of(tmp_path / "target")
    assert copied[-1] == MARKER
    assert [path.name for path in tmp_path.glob("*target*")] == ["target"]


def test_a_disk_that_fails_leaves_nothing_behind(
    uploaded: MemoryObjects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise OSError(errno.EIO, "the disk fails")

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(OSError, match="the disk fails"):
        download_folder(uploaded, PREFIX, tmp_path / "read" / "target", MARKER)
    assert not list((tmp_path / "read").iterdir())


@pytest.mark.parametrize("count", range(3))
def test_a_folder_is_deleted_from_its_marker_on(
    uploaded: MemoryObjects, tmp_path: Path, count: int
) -> None:
    """Whatever is left of it after a failure does not count."""
    uploaded.content["checkpoints/other/state.pt"] = b"kept"
    uploaded.faults.append(Fault("delete", after=count))
    with pytest.raises(StoreError):
        delete_folder(uploaded, PREFIX, MARKER)
    if count:
        with pytest.raises(Missing):
            download_folder(uploaded, PREFIX, tmp_path / "target", MARKER)
    delete_folder(uploaded, PREFIX, MARKER)
    assert uploaded.keys() == ["checkpoints/other/state.pt"]
