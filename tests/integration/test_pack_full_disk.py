"""A disk that fills up while packing: words that name it, nothing lost, the same bytes after."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from disks import small_file_system
from packing import Member, as_folder, as_tar, contents, run_pack
from samples import picture

FLAGS = ("--workers", "1", "--shard-images", "60", "--codec", "raw")
IMAGES = 600
"""Of 40 x 30 pixels: 3.4 MB as raw arrays in ten shards, as much again while they are staged."""


@pytest.fixture(scope="module")
def listed() -> list[Member]:
    made = []
    for number in range(IMAGES):
        file = io.BytesIO()
        picture(number % 3, number, (40, 30)).save(file, "JPEG")
        made.append((f"class{number % 3}/{number:04d}.jpg", file.getvalue()))
    return made


@pytest.mark.parametrize("kind", ["folder", "tar"])
def test_full_in_the_midst_and_the_same_bytes_afterwards(
    kind: str, listed: list[Member], tmp_path: Path
) -> None:
    if kind == "folder":
        source = as_folder(tmp_path / "photos", listed)
    else:
        source = tmp_path / "photos.tar"
        source.write_bytes(as_tar(listed))
    assert run_pack(source, tmp_path / "whole", *FLAGS)[0] == 0
    with small_file_system(tmp_path / "disk", "12m") as disk:
        filler, out = disk / "filler", disk / "out"
        # Room for some shards of the folder, for some chunks of the tar.
        filler.write_bytes(bytes((12 << 20) - (2 << 20)))
        code, said = run_pack(source, out, *FLAGS)
        assert code == 1, said
        assert "Traceback" not in said
        last = said.strip().splitlines()[-1]
        assert last.startswith("stoker: ")
        assert "No space left" in last
        assert str(disk) in last
        assert not (out / "dataset.json").exists()
        kept = {
            path: path.stat().st_ino
            for path in [*out.glob("train/*.tar"), *out.glob(".parts/stage/*.tar")]
        }
        assert kept
        if kind == "tar":
            # Now with room for all that is staged, but not for its shards.
            filler.write_bytes(bytes((12 << 20) - (5 << 20)))
            assert run_pack(source, out, *FLAGS)[0] == 1
            assert list(out.glob("train/*.tar"))
        filler.unlink()
        code, said = run_pack(source, out, *FLAGS)
        assert code == 0, said
        assert contents(out) == contents(tmp_path / "whole")
        if kind == "folder":
            again = {path: path.stat().st_ino for path in kept}
            assert again == kept, "finished shards were written again"
