"""Whatever an archive holds or claims: it is packed or refused in one line, in little memory, and
nothing is written anywhere but into the set."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from bounded import Ended, contents, stoker
from every_crop import seen
from hostile_archives import ALL, BY_PIPE, EARLY, PACKED, Archive
from stoker.data.dataset import Dataset
from stoker.data.loading.crops import View

PEAK_MIB = 1024
FLAGS = ("--workers", "1", "--spot-notice", "off", "--val-share", "0")


def pack_archive(archive: Archive, way: str, root: Path) -> Ended:
    """Pack it as a file or from standard input, with bystanders around it."""
    inside = root / "a" / "b"
    inside.mkdir(parents=True)
    path = inside / archive.name
    path.write_bytes(archive.make())
    (root / "evil.jpg").write_text("not to be touched")
    (inside / "photos").mkdir()
    before = contents(root, but=inside / "out")
    if way == "file":
        ended = stoker("pack", path, inside / "out", *FLAGS, cwd=inside)
    else:
        with path.open("rb") as source:
            ended = stoker("pack", "-", inside / "out", *FLAGS, cwd=inside, stdin=source)
    assert contents(root, but=inside / "out") == before
    assert not Path("/tmp/stoker-evil").exists()
    return ended


CASES = [(archive, "file") for archive in ALL]
CASES += [(archive, "stdin") for archive in ALL if archive.name in BY_PIPE]


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    ("archive", "way"), CASES, ids=[f"{archive.name}-{way}" for archive, way in CASES]
)
def test_what_becomes_of_each_archive(archive: Archive, way: str, tmp_path: Path) -> None:
    ended = pack_archive(archive, way, tmp_path)
    out = tmp_path / "a" / "b" / "out"
    assert "Traceback" not in ended.stdout + ended.stderr
    assert ended.peak_mib < PEAK_MIB
    if archive.code == PACKED:
        assert ended.code == 0, ended.stderr
        check_set(archive, out)
        return
    assert ended.code in ((1,) if archive.says == EARLY else (1, 2)), ended.stdout
    assert not (out / "dataset.json").exists()
    message = ended.stderr.strip()
    assert len(message.splitlines()) == 1
    assert message.isprintable()
    assert message.startswith("stoker: ")
    assert (archive.name if way == "file" else "standard input") in message
    if archive.says:
        assert re.search(archive.says, message), message


def check_set(archive: Archive, out: Path) -> None:
    """As many images as expected, none of which fails in training; names are printable text."""
    assert Dataset(out).images("train") == archive.images
    rejected = pq.read_table(out / "rejected.parquet").to_pylist()
    assert len(rejected) == archive.rejected, rejected
    paths = pq.read_table(out / "train" / "index.parquet").column("path").to_pylist()
    assert all(path.isprintable() for path in paths)
    assert all(".." not in path.split("/") for path in paths)
    assert seen(out, (16,), [View()])


def test_a_tar_of_tars_has_a_class_for_each(tmp_path: Path) -> None:
    archive = next(archive for archive in ALL if archive.name == "of-tars.tar")
    pack_archive(archive, "file", tmp_path)
    assert Dataset(tmp_path / "a" / "b" / "out").classes == ["n01440764", "n01443537"]
