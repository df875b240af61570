"""Names become splits and classes: each image once, and the same for a folder and its archive."""

from __future__ import annotations

import os
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stoker.data.sources.folder import list_folder
from stoker.data.sources.layout import (
    SPLIT_NAMES,
    Listing,
    arrange,
    by_layout,
    hold_out,
    in_number_order,
)
from stoker.text import shown

WORDS = st.sampled_from(["cat", "dog", "Eel", "a b", "é", "10", "9", "train", "val", "Test", "x"])
NAMES = st.lists(
    st.lists(WORDS, min_size=0, max_size=4).flatmap(
        lambda folders: st.integers(0, 30).map(lambda n: "/".join([*folders, f"{n}.jpg"]))
    ),
    unique=True,
    max_size=40,
)
CLASSES = st.dictionaries(
    st.text("abé\\ 01", min_size=1, max_size=3), st.integers(0, 12), min_size=1, max_size=6
)
FAST = settings(max_examples=60, deadline=None)


def placed(found: dict[str, dict[str, list[int]]]) -> list[int]:
    return [row for labelled in found.values() for rows in labelled.values() for row in rows]


def told(listing: Listing, names: list[str] | None = None) -> dict[str, list[tuple[str, str]]]:
    """Images with their class names, split by split, in storage order."""
    return {
        name: [
            (names[image] if names else image, listing.classes[label])
            for image, label in zip(split.images, split.labels, strict=True)
        ]
        for name, split in listing.splits.items()
    }


class TestByLayout:
    @FAST
    @given(NAMES)
    def test_every_image_lands_once_or_is_passed_over_with_a_reason(self, names: list[str]) -> None:
        ignored: list[tuple[str, str]] = []
        rows = placed(by_layout(names, ignored))
        assert len(rows) == len(set(rows))
        assert Counter([*(shown(names[row]) for row in rows), *(path for path, _ in ignored)]) == (
            Counter(map(shown, names))
        )
        assert all(reason for _, reason in ignored)

    @FAST
    @given(NAMES, st.sampled_from(["photos/", "a/b/", "a/b/c/"]))
    def test_folders_that_all_share_do_not_matter(self, names: list[str], above: str) -> None:
        if len({name.split("/")[0] for name in names if "/" in name}) < 2:
            return  # then what they share is not the prefix alone
        plain = by_layout(names, [])
        deep = [above + name for name in names]
        if all("/" in name for name in names):
            assert by_layout(deep, []) == plain

    @pytest.mark.parametrize("name", SPLIT_NAMES)
    @pytest.mark.parametrize("above", ["", "photos/"])
    def test_usual_names_of_splits_are_known(self, name: str, above: str) -> None:
        train = [f"{above}TRAIN/cat/{n}.jpg" for n in range(3)]
        found = by_layout([*train, f"{above}{name.title()}/dog/1.jpg"], [])
        assert found["train"]["cat"] == [0, 1, 2]
        assert found[SPLIT_NAMES[name]]["dog"] == [3]

    def test_train_alone_is_a_split(self) -> None:
        found = by_layout(["photos/train/cat/1.jpg", "photos/train/dog/1.jpg"], [])
        assert found == {"train": {"cat": [0], "dog": [1]}}

    def test_a_val_without_a_train_is_a_class(self) -> None:
        assert set(by_layout(["val/1.jpg", "cat/1.jpg"], [])["train"]) == {"val", "cat"}

    def test_what_lies_beside_the_splits_is_named(self) -> None:
        ignored: list[tuple[str, str]] = []
        found = by_layout(["train/cat/1.jpg", "extra/cat/2.jpg", "train/3.jpg", "4.jpg"], ignored)
        assert placed(found) == [0]
        assert dict(ignored) == {
            "extra/cat/2.jpg": "not a split: expected train, val or test",
            "train/3.jpg": "not inside a class folder",
            "4.jpg": "not a split: expected train, val or test",
        }

    @pytest.mark.parametrize("above", ["photos/", "a/photos/"])
    def test_a_stray_image_does_not_make_one_class_of_all(self, above: str) -> None:
        ignored: list[tuple[str, str]] = []
        names = ["cat/1.jpg", "dog/2.jpg", "preview.jpg"]
        found = by_layout([above + name for name in names], ignored)
        assert found == {"train": {"cat": [0], "dog": [1]}}
        assert ignored == [(f"{above}preview.jpg", "not inside a class folder")]

    def test_a_stray_image_does_not_mix_the_splits(self) -> None:
        ignored: list[tuple[str, str]] = []
        names = ["train/cat/1.jpg", "val/cat/2.jpg", "preview.jpg"]
        found = by_layout([f"photos/{name}" for name in names], ignored)
        assert found == {"train": {"cat": [0]}, "val": {"cat": [1]}}
        assert [path for path, _ in ignored] == ["photos/preview.jpg"]

    def test_nothing_is_nothing(self) -> None:
        assert by_layout([], []) == {}


class TestLikeTheFolder:
    @settings(
        max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
    )
    @given(
        files=st.sets(
            st.tuples(
                st.sampled_from(["cat", "dog", "é", "z"]),
                st.sampled_from(["", "more/", "more.d/"]),
                st.integers(0, 15),
            ),
            min_size=4,
            max_size=40,
        ),
        splits=st.booleans(),
        share=st.sampled_from([0.0, 0.1, 0.5]),
    )
    def test_the_same_splits_labels_and_order(
        self,
        tmp_path_factory: pytest.TempPathFactory,
        files: set[tuple[str, str, int]],
        splits: bool,
        share: float,
    ) -> None:
        chosen = ["train/", "train/", "val/", "test/"] if splits else [""]
        names = [
            f"{chosen[n % len(chosen)]}{label}/{below}{n}.jpg"
            for label, below, n in sorted(files, key=str)
        ]
        tops = {tuple(name.split("/")[:2] if splits else name.split("/")[:1]) for name in names}
        if not {top[0] for top in tops} >= ({"train", "val"} if splits else set()) or len(tops) < 2:
            return
        root = tmp_path_factory.mktemp("photos")
        for name in names:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).touch()
        folder = list_folder(str(root), share)
        for given_names in (names, names[::-1]):
            ignored: list[tuple[str, str]] = []
            archive = arrange("a tar", by_layout(given_names, ignored), ignored, share)
            assert told(archive, given_names) == told(folder)
            assert list(archive.splits) == list(folder.splits)
            assert archive.classes == folder.classes
            assert archive.held_out == folder.held_out


class TestArrange:
    @FAST
    @given(CLASSES, st.sampled_from([0.0, 0.1, 0.3, 0.9]))
    def test_each_image_is_stored_once_with_its_class(
        self, sizes: dict[str, int], share: float
    ) -> None:
        found = {
            "train": {label: [f"{label}/{n}" for n in range(size)] for label, size in sizes.items()}
        }
        listing = arrange("there", found, [], share)
        everything = [pair for pairs in told(listing).values() for pair in pairs]
        expected = [
            (f"{label}/{n}", shown(label)) for label, size in sizes.items() for n in range(size)
        ]
        assert Counter(everything) == Counter(expected)
        empty = {shown(f"train/{label}") for label, size in sizes.items() if not size}
        assert {path for path, _ in listing.ignored} == empty

    @FAST
    @given(CLASSES, st.floats(0.01, 0.99))
    def test_holding_out_leaves_every_class_an_image(
        self, sizes: dict[str, int], share: float
    ) -> None:
        classes = {label: list(range(size)) for label, size in sizes.items() if size}
        kept, held = hold_out(classes, share)
        for label, images in classes.items():
            assert kept[label]
            assert sorted([*kept[label], *held.get(label, [])]) == images
            assert kept[label] == sorted(kept[label])
            assert bool(held.get(label)) == (len(images) > 1)

    def test_a_source_may_bring_its_own_order_of_classes(self) -> None:
        found = {"train": {"b": [0], "a": [1]}}
        listing = arrange("there", found, [], 0.0, ("z", "b", "a"))
        assert listing.classes == ("z", "b", "a")
        images = listing.splits["train"]
        assert dict(zip(images.images, images.labels, strict=True)) == {0: 1, 1: 2}

    def test_a_val_folder_keeps_all_of_train(self) -> None:
        found = {"train": {"a": list(range(20))}, "val": {"a": [20]}}
        listing = arrange("there", found, [], 0.5)
        assert len(listing.splits["train"].images) == 20
        assert listing.held_out == 0


class TestClassOrder:
    def test_numbers_are_sorted_as_numbers(self) -> None:
        assert in_number_order({"10", "9", "2"}) == ("2", "9", "10")

    def test_one_word_among_them_and_all_are_words(self) -> None:
        assert in_number_order({"10", "9", "x"}) == ("10", "9", "x")

    def test_the_same_number_spelt_twice_has_an_order(self) -> None:
        assert in_number_order({"01", "1", "001"}) == ("001", "01", "1")

    @FAST
    @given(st.sets(st.text(max_size=4)))
    def test_whatever_the_names(self, names: set[str]) -> None:
        ordered = in_number_order(names)
        assert sorted(ordered) == sorted(names)
        assert ordered == in_number_order(set(ordered))


@FAST
@given(st.lists(st.binary(min_size=1, max_size=6), min_size=2, max_size=2, unique=True))
def test_no_two_names_are_shown_alike_and_all_are_printable(names: list[bytes]) -> None:
    one, two = (shown(os.fsdecode(name)) for name in names)
    assert one != two
    assert one.isprintable()
    one.encode()
