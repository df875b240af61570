"""The same folder gives the same bytes, whatever the workers and kills; and a true report."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from golden import check_golden
from samples import image_folder, picture
from stoker.data.images.encode import Storage
from stoker.data.packing.options import PackOptions, PackSettings
from stoker.data.packing.pack import pack, refuse_missing, refuse_private
from stoker.data.packing.shard import ShardReport
from stoker.data.seal import CACHES, SOURCE_CACHE
from stoker.data.sources.http import PRIVATE_REASONS
from stoker.errors import BadRequest, StokerError
from waiting import until

SHARD_IMAGES = 20


def contents(folder: Path) -> dict[str, str]:
    """The hash of every file below a folder, hidden ones too; caches belong to no set."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in CACHES
    }


def times(folder: Path) -> dict[str, int]:
    return {name: (folder / name).stat().st_mtime_ns for name in contents(folder)}


def described(packed: Path) -> dict[str, Any]:
    return json.loads((packed / "dataset.json").read_text())


def labels_of(packed: Path, split: str) -> list[int]:
    return pq.read_table(packed / split / "index.parquet").column("label").to_pylist()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes of 40 images and three files that cannot be used."""
    root = image_folder(tmp_path_factory.mktemp("source") / "photos", images=40, size=(96, 64))
    picture(0, 900, (40, 96)).save(root / "class0" / "drawing.png")
    (root / "class1" / "empty.jpg").touch()
    (root / "class1" / "text.jpg").write_text("no image")
    (root / "class2" / "notes.txt").write_text("no image by name")
    return root


@pytest.fixture(scope="module")
def packed(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder packed without interruption."""
    return pack_small(folder, tmp_path_factory.mktemp("whole") / "packed")


def pack_small(folder: Path, out: Path, **options: Any) -> Path:
    options = {"workers": 1, "shard_images": SHARD_IMAGES, **options}
    return pack(folder, out, storage=Storage(max_side=48), **options)


class TestEndToEnd:
    def test_every_readable_image_is_in_a_shard_with_its_label(self, packed: Path) -> None:
        found = {"0": 0, "1": 0, "2": 0}
        for split in ("train", "val"):
            for shard in sorted((packed / split).glob("*.tar")):
                with tarfile.open(shard) as tar:
                    for member in tar.getmembers():
                        if member.name.endswith(".cls"):
                            found[tar.extractfile(member).read().decode()] += 1
        assert found == {"0": 41, "1": 40, "2": 40}

    def test_description_lists_splits_and_shards(self, packed: Path) -> None:
        description = described(packed)
        assert description["classes"] == ["class0", "class1", "class2"]
        assert description["held_out"] == 0.1
        assert description["storage"] == asdict(Storage(max_side=48))
        for split, facts in description["splits"].items():
            names = [shard["name"] for shard in facts["shards"]]
            assert names == sorted(path.name for path in (packed / split).glob("*.tar"))
            assert sum(shard["images"] for shard in facts["shards"]) == facts["images"]
            assert len(labels_of(packed, split)) == facts["images"]
            for shard in facts["shards"]:
                assert (packed / split / shard["name"]).stat().st_size == shard["bytes"]

    def test_nothing_but_the_set_is_left(self, packed: Path) -> None:
        names = {path.name for path in packed.rglob("*") if not path.name.endswith(".tar")}
        assert names - set(CACHES) == {
            "dataset.json",
            "rejected.parquet",
            "train",
            "val",
            "index.parquet",
        }

    def test_training_images_are_stored_mixed_over_classes(self, packed: Path) -> None:
        labels = np.array(labels_of(packed, "train"))
        changes = int((labels[1:] != labels[:-1]).sum())
        assert changes > len(labels) / 2
        for start in range(0, len(labels) - SHARD_IMAGES, SHARD_IMAGES):
            assert set(labels[start : start + SHARD_IMAGES]) == {0, 1, 2}

    def test_progress_is_told_of_every_image(self, folder: Path, tmp_path: Path) -> None:
        told: list[tuple[ShardReport, int, int]] = []
        pack_small(folder, tmp_path / "out", progress=lambda *news: told.append(news))
        counts = [done for _, done, _ in told]
        assert counts == sorted(counts)
        assert {total for _, _, total in told} == {counts[-1]} == {123}
        assert sum(report.images for report, _, _ in told) == 121

    def test_raw_images_are_arrays(self, folder: Path, tmp_path: Path) -> None:
        out = pack(folder, tmp_path / "raw", storage=Storage("raw", max_side=32), workers=1)
        with tarfile.open(out / "train" / "00000.tar") as tar:
            assert {Path(name).suffix for name in tar.getnames()} == {".npy", ".cls"}

    def test_without_a_target_it_is_packed_beside_the_caller(
        self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        pack(folder, workers=1)
        assert (tmp_path / "photos-packed" / "dataset.json").is_file()

    def test_strange_names_everywhere_do_not_stop_a_pack(self, tmp_path: Path) -> None:
        root = image_folder(tmp_path / "photos", classes=2, images=4, val=2)
        for name in (b"\xe9", b"train/\xe9", b"train/class0/\xe9"):
            Path(os.fsdecode(os.fsencode(root) + b"/" + name)).mkdir()
        image = Path(os.fsdecode(os.fsencode(root) + b"/train/class0/\xe9/caf\xe9.jpg"))
        picture(0, 0, (30, 30)).save(image, "JPEG")
        out = pack(root, tmp_path / "out", workers=1)
        assert described(out)["splits"]["train"]["images"] == 9


class TestSameBytes:
    def test_whatever_the_number_of_workers(
        self, folder: Path, packed: Path, tmp_path: Path
    ) -> None:
        assert contents(pack_small(folder, tmp_path / "two", workers=2)) == contents(packed)

    def test_wherever_the_folder_lies(self, folder: Path, packed: Path, tmp_path: Path) -> None:
        moved = shutil.copytree(folder, tmp_path / "elsewhere")
        assert contents(pack_small(moved, tmp_path / "out")) == contents(packed)

    def test_the_second_call_does_nothing(self, folder: Path, tmp_path: Path) -> None:
        out = pack_small(folder, tmp_path / "out")
        before, told = times(out), []
        pack_small(folder, out, progress=lambda *news: told.append(news))
        assert times(out) == before
        assert not told

    def test_other_images_have_another_fingerprint(self, tmp_path: Path) -> None:
        folders = [image_folder(tmp_path / str(images), images=images) for images in (4, 5)]
        one, two = (
            described(pack(root, tmp_path / f"{root.name}-out", workers=1)) for root in folders
        )
        assert one["fingerprint"] != two["fingerprint"]


PACK = """
import os, signal, sys
from stoker.data.packing.options import PackOptions, PackSettings
from stoker.data.packing.pack import pack, refuse_missing
from stoker.data.images.encode import Storage

folder, out, workers, event, nth = sys.argv[1:]
seen = 0

def die_at_the_nth(name, arguments):
    global seen
    if name == event and (out in str(arguments[0]) or ".parquet" in str(arguments[0])):
        seen += 1
        if seen == int(nth):
            os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    sys.addaudithook(die_at_the_nth)
    pack(folder, out, storage=Storage(max_side=48), shard_images=20, workers=int(workers))
"""


def packer(
    folder: Path, out: Path, *, workers: int = 1, event: str = "never", nth: int = 0
) -> subprocess.Popen[bytes]:
    """A pack in a process (group) of its own."""
    arguments = [str(folder), str(out), str(workers), event, str(nth)]
    return subprocess.Popen([sys.executable, "-c", PACK, *arguments], start_new_session=True)


def parts_done(out: Path) -> int:
    return len(list((out / ".parts").glob("[!.]*.parquet")))


KILLS = [
    # 7 shards of a tar and a part each, then two indices, the rejects and the description
    *[("os.rename", nth) for nth in (1, 2, 3, 4, 9, 14, 15, 16, 17, 18)],
    ("shutil.rmtree", 1),
    ("os.remove", 1),
    ("os.remove", 5),
]


class TestKilled:
    @pytest.mark.parametrize(("event", "nth"), KILLS)
    def test_at_any_commit_the_same_command_ends_with_the_same_bytes(
        self, folder: Path, packed: Path, tmp_path: Path, event: str, nth: int
    ) -> None:
        out = tmp_path / "out"
        killed = packer(folder, out, event=event, nth=nth)
        assert killed.wait(300) == -signal.SIGKILL
        pack_small(folder, out)
        assert contents(out) == contents(packed)
        assert not (out / ".parts").exists()

    def test_at_random_moments_the_same_command_ends_with_the_same_bytes(
        self, tmp_path: Path
    ) -> None:
        root = image_folder(tmp_path / "many", images=120)
        whole = pack_small(root, tmp_path / "whole")
        out, random = tmp_path / "out", np.random.default_rng(7)
        for parts in (1, 4, 7, 10, 14):
            kill_a_pack(root, out, parts, random.uniform(0, 0.03))
        pack_small(root, out, workers=2)
        assert contents(out) == contents(whole)

    def test_alone_its_workers_end_and_do_not_disturb_the_next_pack(self, tmp_path: Path) -> None:
        root, out = image_folder(tmp_path / "many", images=120), tmp_path / "out"
        whole = pack_small(root, tmp_path / "whole")
        workers = kill_a_pack(root, out, 1, 0, alone=True)
        assert len(workers) >= 2
        try:
            pack_small(root, out)
            until(lambda: not living(workers))
        finally:
            for worker in living(workers):
                os.kill(int(worker), signal.SIGKILL)
        assert contents(out) == contents(whole)


def kill_a_pack(
    root: Path, out: Path, parts: int, delay_s: float, *, alone: bool = False
) -> list[str]:
    """Kill a pack, alone or with its workers, soon after so many shards are done; its workers."""
    for _ in range(10):
        process = packer(root, out, workers=2)
        until(lambda process=process: parts_done(out) >= parts or process.poll() is not None)
        time.sleep(delay_s)
        workers = children_of(process.pid)
        with contextlib.suppress(ProcessLookupError):
            process.kill() if alone else os.killpg(process.pid, signal.SIGKILL)
        if process.wait(300) == -signal.SIGKILL and len(workers) >= 2:
            return workers
        # A busy machine: it, or its workers, were done before it was killed.
        assert process.returncode in (0, -signal.SIGKILL)
        shutil.rmtree(out)
    raise AssertionError("no pack was killed before it was done")


def children_of(pid: int) -> list[str]:
    found = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += children.read_text().split()
    return found


def living(pids: list[str]) -> list[str]:
    """Those processes that are neither gone nor only waiting to be counted as dead."""
    states = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            states[pid] = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return [pid for pid, state in states.items() if state != "Z"]


class TestRefused:
    def test_a_target_that_holds_another_pack(self, folder: Path, tmp_path: Path) -> None:
        other = pack(image_folder(tmp_path / "other", images=4), tmp_path / "out", workers=1)
        before = contents(other)
        with pytest.raises(BadRequest, match="another packed set"):
            pack_small(folder, tmp_path / "out")
        assert contents(other) == before

    def test_a_folder_elsewhere_with_the_same_names_is_another_set(
        self, folder: Path, tmp_path: Path
    ) -> None:
        out = pack_small(folder, tmp_path / "out")
        moved = shutil.copytree(folder, tmp_path / "moved")
        with pytest.raises(BadRequest, match="was packed from"):
            pack_small(moved, out)
        (out / SOURCE_CACHE).unlink()
        before = contents(out)
        assert contents(pack_small(moved, out)) == before

    def test_what_another_folder_left_half_done_is_not_built_upon(self, tmp_path: Path) -> None:
        one = image_folder(tmp_path / "one", images=40)
        two = shutil.copytree(one, tmp_path / "two")
        for path in sorted(two.rglob("*.jpg")):
            picture(2, 7, (33, 30)).save(path)
        killed = packer(one, tmp_path / "out", event="os.rename", nth=8)
        assert killed.wait(300) == -signal.SIGKILL
        pack_small(two, tmp_path / "out")
        assert contents(tmp_path / "out") == contents(pack_small(two, tmp_path / "whole"))

    def test_a_target_with_other_settings(self, folder: Path, tmp_path: Path) -> None:
        out = pack_small(folder, tmp_path / "out")
        with pytest.raises(BadRequest, match="other settings"):
            pack(folder, out, storage=Storage(max_side=49), shard_images=SHARD_IMAGES)

    @pytest.mark.parametrize("spelling", ["{0}", "{0}/", "{0}/class0/..", "{1}"])
    def test_the_source_itself(self, tmp_path: Path, spelling: str) -> None:
        root = image_folder(tmp_path / "photos", images=3)
        (tmp_path / "link").symlink_to(root)
        before = contents(root)
        with pytest.raises(BadRequest, match="into itself"):
            pack(root, spelling.format(root, tmp_path / "link"))
        assert contents(root) == before

    @pytest.mark.parametrize("file", ["thesis.txt", "train/cat/1.jpg", "val/notes.txt"])
    def test_a_target_with_somebody_elses_files(
        self, folder: Path, tmp_path: Path, file: str
    ) -> None:
        foreign = tmp_path / "foreign"
        (foreign / file).parent.mkdir(parents=True)
        (foreign / file).write_text("precious")
        before = contents(foreign)
        with pytest.raises(BadRequest, match=rf"holds ({file.replace('/', '|')})"):
            pack_small(folder, foreign)
        assert contents(foreign) == before

    def test_a_target_that_is_a_file(self, folder: Path, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("precious")
        with pytest.raises(BadRequest):
            pack_small(folder, tmp_path / "file")

    def test_a_target_with_a_damaged_description(self, folder: Path, tmp_path: Path) -> None:
        out = pack_small(folder, tmp_path / "out")
        (out / "dataset.json").write_text('{"format": 1, "requ')
        with pytest.raises(StokerError, match=r"dataset\.json"):
            pack_small(folder, out)

    def test_a_folder_without_one_readable_image(self, tmp_path: Path) -> None:
        for name in ("cat", "dog"):
            (tmp_path / "photos" / name).mkdir(parents=True)
            for number in range(5):
                (tmp_path / "photos" / name / f"{number}.jpg").write_text("no image")
        with pytest.raises(BadRequest, match="not one image"):
            pack(tmp_path / "photos", tmp_path / "out", workers=1)
        assert not (tmp_path / "out" / "dataset.json").exists()

    def test_images_that_were_mended_are_taken_by_the_same_command(self, tmp_path: Path) -> None:
        root = image_folder(tmp_path / "photos", images=3)
        whole = {path: path.read_bytes() for path in root.glob("*/*")}
        for path in whole:
            path.write_bytes(b"")
        with pytest.raises(BadRequest, match="not one image"):
            pack(root, tmp_path / "out", workers=1)
        for path, data in whole.items():
            path.write_bytes(data)
        assert described(pack(root, tmp_path / "out", workers=1))["report"]["rejected"] == []

    @pytest.mark.parametrize(
        ("storage", "word"),
        [
            (Storage(codec="png"), "codec"),
            (Storage(quality=0), "quality"),
            (Storage(quality=101), "quality"),
            (Storage(max_side=-1), "max_side"),
        ],
    )
    def test_storage_that_does_not_exist(
        self, folder: Path, tmp_path: Path, storage: Storage, word: str
    ) -> None:
        with pytest.raises(BadRequest, match=word):
            pack(folder, tmp_path / "out", storage=storage)
        assert not (tmp_path / "out").exists()


class TestReport:
    def test_counts(self, packed: Path) -> None:
        report = described(packed)["report"]
        held = sum(report["images"].values())
        assert held == 121
        assert report["images"] == {
            split: len(labels_of(packed, split)) for split in ("train", "val")
        }
        assert report["absent"] == {}
        assert report["duplicates"] == {"within": {}, "across": {}, "examples": {}}
        assert report["rotated"] == 0

    def test_sizes_are_those_stored(self, packed: Path) -> None:
        sizes = described(packed)["report"]["sizes"]
        assert sizes["pixels"] == [[20, 32], [48, 32], [48, 48]]
        assert sizes["bytes"] == sum(
            pq.read_table(packed / split / "index.parquet").column("length").to_numpy().sum()
            for split in ("train", "val")
        )

    def test_rejects_are_rows_with_path_reason_label_and_split(self, packed: Path) -> None:
        rows = pq.read_table(packed / "rejected.parquet").to_pylist()
        assert {row["path"]: row["reason"].split(" (")[0] for row in rows} == {
            "class1/empty.jpg": "empty file",
            "class1/text.jpg": "not an image of a known kind",
        }
        assert {row["label"] for row in rows} == {1}
        assert {row["split"] for row in rows} <= {"train", "val"}
        assert {
            (entry["reason"], entry["images"], entry["example"])
            for entry in described(packed)["report"]["rejected"]
        } == {
            ("empty file", 1, "class1/empty.jpg"),
            ("not an image of a known kind", 1, "class1/text.jpg"),
        }

    def test_no_rejects_are_an_empty_table(self, tmp_path: Path) -> None:
        out = pack(image_folder(tmp_path / "photos", images=4), tmp_path / "out", workers=1)
        assert pq.read_table(out / "rejected.parquet").num_rows == 0

    def test_what_was_passed_over_is_named(self, packed: Path) -> None:
        assert described(packed)["report"]["ignored"] == [
            {"reason": "not an image by its name", "entries": 1, "example": "class2/notes.txt"}
        ]

    def test_balance_names_the_rarest_and_the_commonest_class(self, tmp_path: Path) -> None:
        root = image_folder(tmp_path / "photos", images=6)
        for number in (3, 4, 5):
            (root / "class1" / f"{number:04d}.jpg").unlink()
        picture(2, 99, (20, 20)).save(root / "class2" / "more.jpg")
        out = pack(root, tmp_path / "out", workers=1, val_share=0)
        assert described(out)["report"]["balance"] == {
            "fewest": ["class1", 3],
            "median": 6,
            "most": ["class2", 7],
        }

    def test_turned_images_are_counted(self, tmp_path: Path) -> None:
        root = image_folder(tmp_path / "photos", images=4)
        turned = Image.Exif()
        turned[0x0112] = 8
        for number in range(2):
            picture(0, number, (30, 20)).save(root / "class0" / f"t{number}.jpg", exif=turned)
        out = pack(root, tmp_path / "out", workers=1)
        assert described(out)["report"]["rotated"] == 2

    def test_classes_of_one_split_only_are_named(self, tmp_path: Path) -> None:
        root = image_folder(tmp_path / "photos", classes=3, images=4, val=2)
        shutil.rmtree(root / "train" / "class2")
        shutil.rmtree(root / "val" / "class0")
        description = described(pack(root, tmp_path / "out", workers=1))
        assert description["classes"] == ["class0", "class1", "class2"]
        assert description["report"]["absent"] == {"train": ["class2"], "val": ["class0"]}

    def test_a_class_whose_images_are_all_rejected_is_named(self, tmp_path: Path) -> None:
        root = image_folder(tmp_path / "photos", classes=3, images=4)
        for image in (root / "class1").iterdir():
            image.write_bytes(b"")
        report = described(pack(root, tmp_path / "out", workers=1, val_share=0))["report"]
        assert report["absent"] == {"train": ["class1"]}
        assert report["images"] == {"train": 8}

    def test_duplicates_within_and_across_splits_are_found(self, tmp_path: Path) -> None:
        root = image_folder(tmp_path / "photos", classes=2, images=4, val=3, suffix="png")
        same = picture(0, 0, (48, 40))  # train/class0/0000.png
        same.save(root / "train" / "class1" / "again.bmp")
        same.save(root / "train" / "class0" / "again.png", compress_level=0)
        same.save(root / "val" / "class0" / "leak.png", compress_level=1)
        duplicates = described(pack(root, tmp_path / "out", workers=1))["report"]["duplicates"]
        assert duplicates["within"] == {"train": 2}
        assert duplicates["across"] == {"val": 1}
        ((leak, twin),) = duplicates["examples"]["val"]
        assert leak == "val/class0/leak.png"
        assert twin in (
            "train/class0/0000.png",
            "train/class0/again.png",
            "train/class1/again.bmp",
        )


def test_shards_of_another_plan_that_was_cut_short_do_not_stay(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "photos", images=10)
    for stray in ("train/00007.tar", "test/00000.tar"):
        (tmp_path / "out" / stray).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "out" / stray).write_bytes(b"left behind")
    pack(folder, tmp_path / "out", shard_images=20)
    tars = sorted(str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*.tar"))
    assert tars == ["train/00000.tar", "train/00001.tar", "val/00000.tar"]


def test_two_packs_of_one_target_at_once_agree(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "photos", images=20)
    code = "import sys; from stoker.data.packing.pack import pack; pack(*sys.argv[1:], workers=1)"
    words = [sys.executable, "-c", code, str(folder), str(tmp_path / "out")]
    both = [subprocess.Popen(words) for _ in range(2)]
    assert [one.wait(timeout=300) for one in both] == [0, 0]


def packed_into(folder: Path, out: Path, **options: Any) -> None:
    pack_small(folder, out)
    pack(folder, out, **options)


def touched(path: Path) -> Path:
    path.parent.mkdir(parents=True)
    path.touch()
    return path.parent


def one_readable(root: Path) -> Path:
    """A folder of two classes; the image of one is empty."""
    touched(root / "dog" / "1.jpg")
    return image_folder(root, classes=1, images=2)


REFUSALS: dict[str, Callable[[Path, Path], object]] = {
    "another set": lambda folder, root: packed_into(folder, root / "out", workers=1),
    "another folder": lambda folder, root: (
        pack_small(folder, root / "out"),
        pack_small(shutil.copytree(folder, root / "moved"), root / "out"),
    ),
    "into itself": lambda folder, root: pack(folder, folder),
    "a file": lambda folder, root: pack(folder, touched(root / "a" / "b") / "b"),
    "other files": lambda folder, root: pack(folder, touched(root / "out" / "thesis.tex")),
    "no image": lambda folder, root: pack(
        touched(touched(root / "photos" / "cat" / "1.jpg").parent / "dog" / "1.jpg").parent,
        root / "out",
        workers=1,
    ),
    "one class that can be read": lambda folder, root: pack(
        one_readable(root / "photos"), root / "out", workers=1
    ),
    "no source": lambda folder, root: pack(root / "nowhere", root / "out"),
    "standard input without a target": lambda folder, root: pack("-"),
    "an unwritable target": lambda folder, root: pack(folder, "/proc/out", workers=1),
    "an unknown option": lambda folder, root: pack(folder, root / "out", worker=1),
    "an option far from any": lambda folder, root: pack(folder, root / "out", zzzzzz=1),
    "a share of all": lambda folder, root: pack(folder, root / "out", val_share=1),
    "a negative share": lambda folder, root: pack(folder, root / "out", val_share=-0.1),
    "no images in a shard": lambda folder, root: pack(folder, root / "out", shard_images=0),
    "an unknown column": lambda folder, root: pack(folder, root / "out", columns={"imge": "a"}),
    "an unknown codec": lambda folder, root: pack(folder, root / "out", storage=Storage("png")),
    "a quality above 100": lambda folder, root: pack(
        folder, root / "out", storage=Storage(quality=101)
    ),
    "failed downloads": lambda folder, root: refuse_missing(FAILED_DOWNLOAD),
    "private addresses": lambda folder, root: refuse_private(REFUSED_DOWNLOAD),
}
REFUSED_DOWNLOAD = pa.table({"path": ["http://10.0.0.7/1.jpg"], "reason": PRIVATE_REASONS[:1]})
FAILED_DOWNLOAD = pa.table({"again": [True], "path": ["http://a/1.jpg"], "reason": ["HTTP 503"]})


def test_refusals_golden(folder: Path, tmp_path: Path) -> None:
    """Every sentence of a refusal; the folders are written as TMP."""
    lines = []
    for number, (name, refused) in enumerate(REFUSALS.items()):
        root = tmp_path / str(number)
        root.mkdir()
        with pytest.raises(StokerError) as refusal:
            refused(folder, root)
        text = str(refusal.value).replace(str(folder.parent), "TMP").replace(str(root), "TMP")
        lines.append(f"{name}: {text}")
    check_golden("packing_pack", lines)


def test_the_keyword_arguments_are_those_of_the_table() -> None:
    assert get_type_hints(PackSettings) == get_type_hints(PackOptions)


@pytest.mark.parametrize("name", ["worker", "Workers", "num-workers", "workres"])
def test_an_unknown_option_is_refused_with_the_nearest(
    folder: Path, tmp_path: Path, name: str
) -> None:
    with pytest.raises(BadRequest, match=f"'{name}'.*'workers'"):
        pack(folder, tmp_path / "out", **{name: 1})
    assert not (tmp_path / "out").exists()


class TestOneClass:
    """Enough to evaluate a model on, if that is asked for."""

    @pytest.fixture(params=["folder", "tar", "list", "table"])
    def source(self, request: pytest.FixtureRequest, tmp_path: Path) -> Path:
        photos = image_folder(tmp_path / "photos", classes=1, images=3, size=(8, 8), suffix="png")
        files = sorted((photos / "class0").iterdir())
        if request.param == "tar":
            return Path(shutil.make_archive(str(tmp_path / "photos"), "tar", photos))
        if request.param == "list":
            rows = [f"{file},class0" for file in files]
            (tmp_path / "list.csv").write_text("\n".join(["image,label", *rows]) + "\n")
            return tmp_path / "list.csv"
        if request.param == "table":
            images = [{"bytes": file.read_bytes()} for file in files]
            table = pa.table({"image": images, "label": ["class0"] * 3})
            pq.write_table(table, tmp_path / "table.parquet")
            return tmp_path / "table.parquet"
        return photos

    def test_it_is_packed_where_allowed_only(self, source: Path, tmp_path: Path) -> None:
        with pytest.raises(BadRequest, match="only one class"):
            pack(source, tmp_path / "set", workers=1)
        packed = pack(source, tmp_path / "set", val_share=0, allow_one_class=True, workers=1)
        assert labels_of(packed, "train") == [0, 0, 0]

    def test_no_readable_image_is_refused_all_the_same(self, tmp_path: Path) -> None:
        (tmp_path / "photos" / "cat").mkdir(parents=True)
        (tmp_path / "photos" / "cat" / "1.png").write_bytes(b"nothing")
        with pytest.raises(BadRequest, match="not one image"):
            pack(tmp_path / "photos", tmp_path / "set", allow_one_class=True, workers=1)
