"""A target is replaced only where it is an export and that is asked for; drafts never count."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from stoker.errors import BadRequest, StokerError
from stoker.use.export.target import draft_of, drafts_of, formats_of, require_target


def export_at(path: Path, text: str = "old") -> Path:
    path.mkdir()
    (path / "config.json").write_text('{"stoker": {}}')
    (path / "text").write_text(text)
    return path


def write(out: Path, *, overwrite: bool = False) -> None:
    with draft_of(out, overwrite=overwrite) as draft:
        (draft / "config.json").write_text('{"stoker": {}}')
        (draft / "text").write_text("new")


def hidden(folder: Path) -> list[str]:
    return [item.name for item in folder.iterdir() if item.name.startswith(".")]


@pytest.mark.parametrize("name", ["out", "deep/er/out", "out.v1"])
def test_a_new_folder_is_made(tmp_path: Path, name: str) -> None:
    write(tmp_path / name)
    assert (tmp_path / name / "text").read_text() == "new"
    assert hidden((tmp_path / name).parent) == []


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    require_target(tmp_path / "out", overwrite=False)
    write(tmp_path / "out")
    assert (tmp_path / "out" / "text").read_text() == "new"


def test_a_link_to_a_folder_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    write(tmp_path / "link")
    assert (tmp_path / "real" / "text").read_text() == "new"
    assert (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("kind", ["folder", "other model", "file", "dangling link"])
def test_nothing_else_is_replaced(tmp_path: Path, kind: str, overwrite: bool) -> None:
    out = tmp_path / "out"
    if kind == "file":
        out.write_text("mine")
    elif kind == "dangling link":
        out.symlink_to("nowhere")
    else:
        out.mkdir()
        (out / "mine").write_text("mine")
        if kind == "other model":
            (out / "config.json").write_text('{"architecture": "resnet18"}')
    with pytest.raises(BadRequest):
        require_target(out, overwrite=overwrite)


def test_an_export_is_replaced_on_request(tmp_path: Path) -> None:
    out = export_at(tmp_path / "out")
    with pytest.raises(BadRequest, match="--overwrite"):
        write(out)
    assert (out / "text").read_text() == "old"
    write(out, overwrite=True)
    assert (out / "text").read_text() == "new"
    assert hidden(tmp_path) == []


def test_a_folder_that_appears_in_between_stays(tmp_path: Path) -> None:
    with pytest.raises(BadRequest), draft_of(tmp_path / "out", overwrite=True):
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "mine").write_text("mine")
    assert (tmp_path / "out" / "mine").read_text() == "mine"
    assert hidden(tmp_path) == []


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, StokerError])
def test_a_failure_leaves_what_was_there(tmp_path: Path, error: type[BaseException]) -> None:
    out = export_at(tmp_path / "out")
    with pytest.raises(error), draft_of(out, overwrite=True):
        raise error
    assert (out / "text").read_text() == "old"
    assert hidden(tmp_path) == []


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_rename_puts_the_old_export_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    out, rename = export_at(tmp_path / "out"), Path.rename

    def fail(self: Path, target: Path) -> Path:
        if self.name.endswith(".tmp"):
            raise error
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises((StokerError, KeyboardInterrupt)):
        write(out, overwrite=True)
    assert (out / "text").read_text() == "old"
    assert hidden(tmp_path) == []


def test_drafts_of_killed_exports_are_removed(tmp_path: Path) -> None:
    kept = [".out.x.tmp", ".out.more.12.tmp", ".outer.12.tmp", "out.12.tmp"]
    for name in (*kept, ".out.12.tmp", ".out.13.old", ".out.14.tmp"):
        (tmp_path / name).mkdir()
    (tmp_path / ".out.15.tmp").symlink_to(".outer.12.tmp")
    handle = os.open(tmp_path / ".out.14.tmp", os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        write(tmp_path / "out")
    finally:
        os.close(handle)
    left = {item.name for item in tmp_path.iterdir()}
    assert left == {*kept, ".out.14.tmp", ".out.15.tmp", "out"}
    assert [item.name for item in drafts_of(tmp_path / "out")]


def test_two_exports_at_once_do_not_mix(tmp_path: Path) -> None:
    with draft_of(tmp_path / "out", overwrite=True) as draft:
        (draft / "config.json").write_text('{"stoker": {}}')
        assert drafts_of(tmp_path / "out") == [draft]
    assert (tmp_path / "out" / "config.json").exists()


@pytest.mark.parametrize(
    ("text", "formats"),
    [
        ("torch", ["torch"]),
        ("safetensors,torch", ["safetensors", "torch"]),
        ("torch, safetensors,torch", ["torch", "safetensors"]),
    ],
)
def test_formats(text: str, formats: list[str]) -> None:
    assert formats_of(text) == formats


@pytest.mark.parametrize("text", ["", "onnxx", "torch,", "pickle"])
def test_other_formats_are_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="the formats are"):
        formats_of(text)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.use.exported.files.find_spec", lambda name: None)
    with pytest.raises(BadRequest, match="pip install onnx"):
        formats_of("onnx")
