"""The summary of a packed set says what is in it and what deserves a look."""

from __future__ import annotations

import re
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from golden import check_golden
from packing import as_tar, files_below
from samples import image_folder, picture
from stoker.data.dataset import Dataset
from stoker.data.images.encode import Storage
from stoker.data.packing.pack import pack
from stoker.data.packing.shard import Files, ShardTask, write_shard
from stoker.show.pack import PackProgress, summary_lines


def summary(folder: Path, out: Path, **options: object) -> str:
    with closing(PackProgress()) as progress:
        packed = pack(folder, out, workers=1, progress=progress, **options)  # type: ignore[arg-type]
    return "\n".join(summary_lines(Dataset(packed), progress.shrunk, progress.largest))


@pytest.fixture(scope="module")
def messy(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder without val, uneven, with files that cannot be used, twins and a turned photo."""
    root = tmp_path_factory.mktemp("messy")
    folder = image_folder(root / "photos", classes=3, images=10)
    for number in range(26):
        picture(2, 100 + number, (30, 20)).save(folder / "class2" / f"more{number}.jpg")
    picture(0, 900, (90, 60)).save(folder / "class0" / "large.png")
    (folder / "class0" / "empty.jpg").touch()
    (folder / "class1" / "letter.jpg").write_text("Dear aunt, here is the photo")
    (folder / "class1" / "memo.jpg").write_text("Dear uncle, so do I")
    (folder / "class1" / "notes.txt").write_text("no image by name")
    turned = picture(1, 901, (48, 40))
    exif = turned.getexif()
    exif[0x0112] = 6
    turned.save(folder / "class1" / "turned.jpg", exif=exif)
    return summary(folder, root / "out", shard_images=25)


@pytest.fixture(scope="module")
def leaking(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with all three splits; val and test each hold an image of train."""
    root = tmp_path_factory.mktemp("leaking")
    folder = image_folder(root / "photos", classes=2, images=6, val=3)
    train = folder / "train" / "class0"
    shutil.copy(train / "0000.jpg", folder / "val" / "class0" / "same-in-val.jpg")
    shutil.copy(train / "0002.jpg", train / "twin.jpg")
    (folder / "test" / "class0").mkdir(parents=True)
    shutil.copy(train / "0001.jpg", folder / "test" / "class0" / "same-in-test.jpg")
    return summary(folder, root / "out", storage=Storage(codec="raw"))


def line_with(word: str, text: str) -> str:
    (line,) = [line for line in text.splitlines() if line.startswith(f"  {word} ")]
    return line


def test_images_classes_bytes_and_shards_come_first(messy: str) -> None:
    first = messy.splitlines()[0]
    assert ": 58 images (train 52, val 6) in 3 classes, " in first
    assert first.endswith("in 4 shards (jpeg)")


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six images of 160 x 120 pixels and one of 200 x 150, and two that are small."""
    folder = image_folder(tmp_path_factory.mktemp("large"), classes=2, images=3, size=(160, 120))
    picture(0, 900, (200, 150)).save(folder / "class0" / "large.png")
    for number in (0, 1):
        picture(0, number, (40, 30)).save(folder / "class1" / f"small{number}.jpg")
    return folder


SHRUNK = {
    "longer side": Storage(max_side=100),
    "raw": Storage("raw", max_side=100),
    "shorter side": Storage(min_side=60),
    "kept": Storage(max_side=0),
    "original": Storage("original", max_side=100),
}


def as_archive(folder: Path, out: Path) -> Path:
    out.write_bytes(as_tar(files_below(folder)))
    return out


def test_shrinking_is_stated_golden(large: Path, tmp_path: Path) -> None:
    lines = []
    for name, storage in SHRUNK.items():
        text = summary(large, tmp_path / name, storage=storage, shard_images=3)
        stream = as_archive(large, tmp_path / f"{name}.tar")
        archived = summary(stream, tmp_path / f"{name}-archive", storage=storage, shard_images=3)
        shrunk = [line for line in text.splitlines() if line.startswith("  shrunk ")]
        assert shrunk == [line for line in archived.splitlines() if line.startswith("  shrunk ")]
        lines.append(f"{name}:{''.join(shrunk)}")
    check_golden("show_shrunk", lines)


def test_shrinking_is_stated_after_a_kill_too(large: Path, tmp_path: Path) -> None:
    """Shards that an earlier process has finished count as well."""
    storage = Storage(max_side=100)
    whole = summary(large, tmp_path / "out", storage=storage, shard_images=3)
    assert "7 images" in line_with("shrunk", whole)
    job = tmp_path / "job"
    paths = sorted(path.relative_to(large).as_posix() for path in large.rglob("*.*"))
    task = ShardTask(
        str(job), "train", 0, 0, Files(str(large), tuple(paths)), (0,) * len(paths), storage
    )
    reports = [write_shard(task), write_shard(task)]
    assert reports[0] == reports[1]
    assert (reports[1].shrunk, reports[1].largest) == (7, (200, 150))


def test_sizes(messy: str) -> None:
    assert line_with("sizes", messy).endswith("30x20 smallest, 48x40 median, 90x60 largest")


def test_balance_names_the_rarest_and_the_commonest_class(messy: str) -> None:
    line = line_with("balance", messy)
    assert "10 (class0) to 32 (class2) training images a class" in line
    assert line.endswith("3 times as many")


def test_what_was_held_out_and_why(messy: str) -> None:
    assert "10% of each class as val" in line_with("held out", messy)


def test_rejects_by_reason_with_an_example(messy: str) -> None:
    lines = [line for line in messy.splitlines() if line.startswith("  rejected ")]
    assert "2 images: not an image of a known kind (class1/" in lines[0]
    assert "1 image: empty file (class0/empty.jpg)" in lines[1]
    assert "rejected.parquet" in messy


def test_what_was_turned_and_what_was_passed_over(messy: str) -> None:
    assert "1 image " in line_with("rotated", messy)
    assert "1 x not an image by its name (class1/notes.txt)" in line_with("ignored", messy)


def test_an_even_set_is_called_even(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "photos", classes=2, images=4, val=1)
    text = summary(folder, tmp_path / "out")
    assert line_with("balance", text).endswith("even: 4 training images in each class")
    assert "held out" not in text


def test_a_clean_set_has_nothing_that_deserves_a_look(tmp_path: Path) -> None:
    text = summary(image_folder(tmp_path / "photos", images=4, val=1), tmp_path / "out")
    assert [line.split()[0] for line in text.splitlines()[1:]] == ["sizes", "balance"]


@pytest.mark.parametrize(
    ("split", "example"),
    [
        ("val", "val/class0/same-in-val.jpg = train/class0/0000.jpg"),
        ("test", "test/class0/same-in-test.jpg = train/class0/0001.jpg"),
    ],
)
def test_a_leak_is_shown_with_an_example_of_its_split(
    leaking: str, split: str, example: str
) -> None:
    (line,) = [line for line in leaking.splitlines() if f"of {split} also in train" in line]
    assert line.startswith("  leak ")
    assert "1 image " in line
    assert f"({example})" in line


def test_twins_within_a_split(leaking: str) -> None:
    assert "1 image of train" in line_with("repeated", leaking)


def test_a_class_without_images_in_a_split(leaking: str) -> None:
    assert "1 class without images in test: class1" in line_with("absent", leaking)


def test_the_codec_is_named(leaking: str) -> None:
    assert "(raw)" in leaking.splitlines()[0]


@pytest.fixture(scope="module")
def muddled(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Pictures under two labels, in one split and in two, and classes that are spelled twice."""
    root = tmp_path_factory.mktemp("muddled")
    folder = root / "photos"
    names = ["Cat", "cat", "cat ", "caf\u00e9", "cafe\u0301", "dog", "straße", "STRASSE"]
    for label, name in enumerate(names):
        for number in range(2):
            split = ("train", "val")[number]
            (folder / split / name).mkdir(parents=True)
            picture(label % 5, 10 * label + number, (24, 20)).save(folder / split / name / "1.png")
    for number, name in enumerate(("Cat", "dog", "cat")):
        shutil.copy(
            folder / "train" / "Cat" / "1.png", folder / "train" / name / f"same{number}.png"
        )
    shutil.copy(folder / "train" / "dog" / "1.png", folder / "val" / "cat" / "a-dog.png")
    return summary(folder, root / "out")


@pytest.mark.exact
def test_a_picture_under_several_labels_is_named_with_files_and_labels(muddled: str) -> None:
    assert "2 images with several labels" in line_with("labels", muddled)
    assert "train/dog/1.png (dog) = " in muddled or " = train/dog/1.png (dog)" in muddled
    assert "val/cat/a-dog.png (cat)" in muddled
    assert "train/dog/same1.png (dog)" in muddled


@pytest.mark.exact
def test_classes_that_differ_only_in_spelling_are_named(muddled: str) -> None:
    lines = [line for line in muddled.splitlines() if line.startswith("  classes ")]
    assert [line.partition(" differ")[0].split(maxsplit=1)[1] for line in lines] == [
        "'Cat', 'cat', 'cat '",
        "'STRASSE', 'straße'",
        "'cafe\\u0301', 'café'",
    ]


@pytest.mark.exact
@pytest.mark.parametrize("broken", [False, True])
def test_held_out_is_only_said_where_something_was(tmp_path: Path, broken: bool) -> None:
    folder = image_folder(tmp_path / "photos", classes=2, images=1)
    if broken:  # what would be held out cannot be read
        for number in range(2):
            (folder / f"class{number}" / "0001.jpg").touch()
    text = summary(folder, tmp_path / "out")
    assert ("val 0" in text) == broken
    assert "held out" not in text


def test_summary_golden(messy: str, leaking: str, muddled: str, tmp_path: Path) -> None:
    """Every line of a summary; folders and sizes in bytes depend on the machine."""
    folder = image_folder(tmp_path / "photos", classes=2, images=4, val=1)
    even = summary(folder, tmp_path / "out", storage=Storage(near_duplicates=True))
    dataset = Dataset(tmp_path / "out")
    pair = {"path": "train/a/1.jpg", "other_path": "val/a/2.jpg"}
    dataset.description["report"]["near"] = {"pairs": 2, "examples": [pair]}
    text = "\n\n".join((messy, leaking, muddled, even, "\n".join(summary_lines(dataset))))
    text = re.sub(r"/\S*/out", "SET", re.sub(r"[\d.]+ kB", "N kB", text))
    check_golden("show_pack", text.splitlines())
