"""A folder becomes the same list every time, and everything left out is named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from samples import image_folder
from stoker.data.sources.folder import list_folder
from stoker.data.sources.layout import Listing, Split
from stoker.errors import BadRequest
from stoker.text import shown


def touch(*paths: Path) -> None:
    """Listing opens no file: empty ones do."""
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def named(root: Path, *, images: dict[str, int]) -> Path:
    """A folder with so many (empty) images in each of its sub-folders."""
    for folder, count in images.items():
        touch(*(root / folder / f"{number:03d}.jpg" for number in range(count)))
    return root


def per_class(listing: Listing, split: str) -> dict[str, int]:
    return dict(Counter(listing.classes[label] for label in listing.splits[split].labels))


def class_folders_agree(listing: Listing, split: Split) -> bool:
    """Whether each image's label is the folder it lies in (below the split's folder, if any)."""
    return all(
        listing.classes[label] in Path(path).parts[:2]
        for path, label in zip(split.images, split.labels, strict=True)
    )


class TestFlatFolder:
    def test_a_share_of_every_class_is_held_out(self, tmp_path: Path) -> None:
        listing = list_folder(str(named(tmp_path, images={"cat": 40, "dog": 20, "eel": 10})))
        assert listing.classes == ("cat", "dog", "eel")
        assert per_class(listing, "train") == {"cat": 36, "dog": 18, "eel": 9}
        assert per_class(listing, "val") == {"cat": 4, "dog": 2, "eel": 1}
        assert listing.held_out == 0.1
        assert all(class_folders_agree(listing, split) for split in listing.splits.values())

    def test_each_image_is_in_exactly_one_split(self, tmp_path: Path) -> None:
        listing = list_folder(str(image_folder(tmp_path, images=11)))
        paths = [path for split in listing.splits.values() for path in split.images]
        assert sorted(paths) == sorted(
            file.relative_to(tmp_path).as_posix() for file in tmp_path.glob("*/*.jpg")
        )

    @pytest.mark.parametrize("share", [0.1, 0.5, 0.99, 1.0])
    @pytest.mark.parametrize("images", [1, 2, 3])
    def test_a_class_is_never_held_out_whole(
        self, tmp_path: Path, images: int, share: float
    ) -> None:
        root = named(tmp_path, images={"many": 30, "few": images})
        kept = per_class(list_folder(str(root), share), "train")
        assert kept["few"] >= 1
        assert kept["many"] >= 1

    def test_a_single_image_stays_in_training(self, tmp_path: Path) -> None:
        listing = list_folder(str(named(tmp_path, images={"only": 1, "other": 5})))
        assert per_class(listing, "train") == {"only": 1, "other": 4}
        assert per_class(listing, "val") == {"other": 1}

    def test_nothing_is_held_out_when_not_asked_for(self, tmp_path: Path) -> None:
        listing = list_folder(str(named(tmp_path, images={"a": 5, "b": 5})), val_share=0)
        assert set(listing.splits) == {"train"}
        assert listing.held_out == 0

    def test_images_in_folders_inside_a_class_belong_to_it(self, tmp_path: Path) -> None:
        listing = list_folder(str(named(tmp_path, images={"a/deep/er": 3, "a": 2, "b": 2})), 0)
        assert per_class(listing, "train") == {"a": 5, "b": 2}

    def test_storage_order_mixes_the_classes(self, tmp_path: Path) -> None:
        train = list_folder(str(named(tmp_path, images={"a": 200, "b": 200})), 0).splits["train"]
        for start in range(0, 400, 100):
            assert 30 <= sum(train.labels[start : start + 100]) <= 70


class TestSplitFolders:
    def test_train_and_val_are_taken_as_they_are(self, tmp_path: Path) -> None:
        listing = list_folder(str(named(tmp_path, images={"train/a": 6, "train/b": 4, "val/a": 3})))
        assert per_class(listing, "train") == {"a": 6, "b": 4}
        assert per_class(listing, "val") == {"a": 3}
        assert listing.held_out == 0
        assert all(class_folders_agree(listing, split) for split in listing.splits.values())

    def test_train_and_test_are_taken_as_they_are(self, tmp_path: Path) -> None:
        listing = list_folder(str(named(tmp_path, images={"train/a": 6, "test/a": 3})))
        assert {split: len(s.images) for split, s in listing.splits.items()} == {
            "train": 6,
            "test": 3,
        }
        assert listing.held_out == 0

    def test_train_alone_gets_a_held_out_val(self, tmp_path: Path) -> None:
        listing = list_folder(str(named(tmp_path, images={"train/a": 20, "train/b": 20})))
        assert per_class(listing, "val") == {"a": 2, "b": 2}

    @pytest.mark.parametrize("name", ["val", "valid", "validation", "Val", "VALID"])
    def test_other_spellings_of_val(self, tmp_path: Path, name: str) -> None:
        listing = list_folder(str(named(tmp_path, images={"Train/a": 4, f"{name}/a": 2})))
        assert {split: len(s.images) for split, s in listing.splits.items()} == {
            "train": 4,
            "val": 2,
        }

    def test_the_class_map_comes_from_all_splits_together(self, tmp_path: Path) -> None:
        images = {"train/b": 2, "train/d": 2, "val/a": 2, "val/b": 2, "test/c": 2}
        listing = list_folder(str(named(tmp_path, images=images)))
        assert listing.classes == ("a", "b", "c", "d")
        assert per_class(listing, "val") == {"a": 2, "b": 2}
        assert per_class(listing, "test") == {"c": 2}

    def test_a_folder_that_is_no_split_is_named(self, tmp_path: Path) -> None:
        listing = list_folder(str(named(tmp_path, images={"train/a": 4, "extra/a": 2})))
        assert "extra" in dict(listing.ignored)
        assert sum(len(split.images) for split in listing.splits.values()) == 4

    def test_a_val_folder_without_images_counts_as_none(self, tmp_path: Path) -> None:
        root = named(tmp_path, images={"train/a": 20})
        (root / "val" / "a").mkdir(parents=True)
        assert per_class(list_folder(str(root)), "val") == {"a": 2}

    def test_a_train_folder_without_images_is_refused(self, tmp_path: Path) -> None:
        root = named(tmp_path, images={"val/a": 3})
        (root / "train" / "a").mkdir(parents=True)
        with pytest.raises(BadRequest, match="train"):
            list_folder(str(root))


IGNORED = {
    ".DS_Store": "at the top",
    "cat/.DS_Store": "in a class",
    "cat/.ipynb_checkpoints": "a notebook's copies of images",
    "__MACOSX": "an unpacked archive's leavings",
    ".hidden": "a hidden folder",
    "cat/.0001.jpg": "a hidden image",
    "cat/notes.txt": "text beside images",
    "cat/Thumbs.db": "a thumbnail cache",
    "stray.jpg": "an image outside the class folders",
    "labels.csv": "a table at the top",
}


class TestWhatIsIgnored:
    @pytest.fixture
    def littered(self, tmp_path: Path) -> Listing:
        root = named(tmp_path, images={"cat": 5, "dog": 5, "cat/.ipynb_checkpoints": 2})
        named(root, images={"__MACOSX/cat": 2, ".hidden": 3})
        (root / "empty").mkdir()
        touch(*(root / path for path in IGNORED if not (root / path).exists()))
        return list_folder(str(root), 0)

    def test_only_images_in_visible_class_folders_are_taken(self, littered: Listing) -> None:
        assert littered.classes == ("cat", "dog")
        assert per_class(littered, "train") == {"cat": 5, "dog": 5}

    @pytest.mark.parametrize("path", IGNORED, ids=IGNORED.values())
    def test_what_is_passed_over_is_named_with_a_reason(self, littered: Listing, path: str) -> None:
        assert dict(littered.ignored)[path]

    def test_an_empty_class_folder_is_named(self, littered: Listing) -> None:
        assert [reason for path, reason in littered.ignored if "empty" in path] == [
            "class folder without images"
        ]

    def test_nothing_else_is_named(self, littered: Listing) -> None:
        assert len(littered.ignored) == len(IGNORED) + 1

    def test_names_of_formats_we_do_not_read_are_kept_to_be_rejected(self, tmp_path: Path) -> None:
        touch(tmp_path / "a" / "1.HEIC", tmp_path / "a" / "2.JPG", tmp_path / "a" / "3.jpeg")
        assert len(list_folder(str(tmp_path), 0).splits["train"].images) == 3


class TestStrangeFolders:
    def test_image_names_that_are_not_utf8_are_listed(self, tmp_path: Path) -> None:
        root = named(tmp_path, images={"a": 2})
        touch(Path(os.fsdecode(os.fsencode(root / "a") + b"/caf\xe9.jpg")))
        paths = list_folder(str(root), 0).splits["train"].images
        assert b"a/caf\xe9.jpg" in [os.fsencode(path) for path in paths]

    def test_class_names_that_are_not_utf8_become_valid_text(self, tmp_path: Path) -> None:
        touch(Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9/1.jpg")))
        listing = list_folder(str(tmp_path), 0)
        assert listing.classes == ("caf\\xe9",)
        assert listing.splits["train"].labels == [0]

    @pytest.mark.parametrize(
        "name",
        [b"train/\xe9/", b"\xe9/", b"train/a/\xe9.txt", b"train/\xe9.txt", b"train/a/.\xe9"],
        ids=["empty class", "no split", "text", "stray", "hidden"],
    )
    def test_ignored_names_that_are_not_utf8_become_valid_text(
        self, tmp_path: Path, name: bytes
    ) -> None:
        root = named(tmp_path, images={"train/a": 2})
        strange = Path(os.fsdecode(os.fsencode(root) + b"/" + name))
        strange.mkdir() if name.endswith(b"/") else touch(strange)
        (ignored,) = (path for path, _ in list_folder(str(root), 0).ignored)
        assert "\\xe9" in ignored.encode().decode()

    @pytest.mark.parametrize("place", ["up", "cat/up", "cat/deep/up"])
    def test_a_link_to_a_folder_above_is_not_followed(self, tmp_path: Path, place: str) -> None:
        root = named(tmp_path, images={"cat": 3, "cat/deep": 2})
        (root / place).symlink_to(root)
        listing = list_folder(str(root), 0)
        assert per_class(listing, "train") == {"cat": 5}
        assert place in dict(listing.ignored)

    @pytest.mark.parametrize("place", ["self", "cat/self", "cat/self.jpg"])
    def test_a_link_to_itself_is_ignored_by_name(self, tmp_path: Path, place: str) -> None:
        root = named(tmp_path, images={"cat": 3})
        (root / place).symlink_to(root / place)
        listing = list_folder(str(root), 0)
        assert per_class(listing, "train") == {"cat": 3}
        assert place in dict(listing.ignored)

    def test_a_broken_link_is_ignored_by_name(self, tmp_path: Path) -> None:
        root = named(tmp_path, images={"cat": 3})
        (root / "cat" / "gone.jpg").symlink_to(root / "nowhere.jpg")
        listing = list_folder(str(root), 0)
        assert per_class(listing, "train") == {"cat": 3}
        assert "cat/gone.jpg" in dict(listing.ignored)

    def test_a_linked_image_is_an_image(self, tmp_path: Path) -> None:
        root = named(tmp_path / "set", images={"cat": 3})
        touch(tmp_path / "elsewhere.jpg")
        (root / "cat" / "linked.jpg").symlink_to(tmp_path / "elsewhere.jpg")
        assert per_class(list_folder(str(root), 0), "train") == {"cat": 4}


class TestRefusals:
    @pytest.mark.parametrize("layout", ["nothing", "empty class", "no class folders", "text"])
    def test_no_images_says_what_layout_is_expected(self, tmp_path: Path, layout: str) -> None:
        match layout:
            case "empty class":
                (tmp_path / "cat").mkdir()
            case "no class folders":
                touch(tmp_path / "1.jpg", tmp_path / "2.jpg")
            case "text":
                touch(tmp_path / "cat" / "1.txt")
        with pytest.raises(BadRequest) as refusal:
            list_folder(str(tmp_path))
        assert f"{tmp_path}/CLASS/*.jpg" in str(refusal.value)
        assert f"{tmp_path}/train/CLASS/*.jpg" in str(refusal.value)

    def test_a_folder_that_is_not_there_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(BadRequest, match="nowhere"):
            list_folder(str(tmp_path / "nowhere"))

    def test_a_file_in_place_of_a_folder_is_named(self, tmp_path: Path) -> None:
        touch(tmp_path / "file.jpg")
        with pytest.raises(BadRequest, match=r"file\.jpg"):
            list_folder(str(tmp_path / "file.jpg"))


class TestSameFolderSameListing:
    IMAGES = ("b/2", "a/10", "c/1", "a/2", "b/1", "a/1", "c/2", "c/x/1", "b/9")

    def make(self, root: Path, order: tuple[str, ...]) -> Listing:
        touch(*(root / f"{name}.jpg" for name in order), root / "a" / ".DS_Store", root / "z.txt")
        (root / "empty").mkdir()
        return list_folder(str(root), 0.3)

    def test_whatever_order_the_files_were_made_in(self, tmp_path: Path) -> None:
        one = self.make(tmp_path / "one", self.IMAGES)
        two = self.make(tmp_path / "two", tuple(reversed(self.IMAGES)))
        assert (one.classes, one.splits, one.ignored) == (two.classes, two.splits, two.ignored)

    def test_listing_twice(self, tmp_path: Path) -> None:
        assert self.make(tmp_path / "one", self.IMAGES) == list_folder(str(tmp_path / "one"), 0.3)


def test_a_name_with_control_characters_is_shown_without_them() -> None:
    assert shown("a\x1b[31mred\n") == "a\\x1b[31mred\\n"
    assert shown("höhle/größe.jpg") == "höhle/größe.jpg"


def test_a_second_start_lists_no_folder(tmp_path: Path) -> None:
    root = tmp_path / "photos"
    for name in ("cat/1.jpg", "cat/deep/2.jpg", "dog/3.png"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    (root / "empty").mkdir()
    for folder in (root, *root.rglob("*")):
        os.utime(folder, (1, 1))  # long settled
    code = (
        "import json, sys; from pathlib import Path\n"
        "from stoker.data.packing.options import PackOptions\n"
        "from stoker.data.packing.source import open_source\n"
        "listed = []\n"
        "sys.addaudithook(lambda event, given: event in ('os.scandir', 'os.listdir') "
        "and str(given[0]).startswith(sys.argv[1]) and listed.append(given[0]))\n"
        "source = open_source(sys.argv[1], Path(sys.argv[2]), PackOptions(val_share=0))\n"
        "source.remember()\n"
        "splits = source.listing.splits\n"
        "print(json.dumps([len(listed), {name: split.images for name, split in splits.items()}, "
        "source.listing.ignored]))"
    )
    words = [sys.executable, "-c", code, str(root), str(tmp_path / "walk")]
    first, second = (json.loads(subprocess.check_output(words)) for _ in range(2))
    assert first[0] >= 5
    assert second[0] == 0
    assert first[1:] == second[1:]
    (root / "dog" / "4.jpg").touch()
    assert json.loads(subprocess.check_output(words))[0] >= 5
