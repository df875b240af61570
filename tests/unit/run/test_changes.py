"""A run accepts another recipe only with consent, and keeps a record of all recipes."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from priced_runs import start, step, write
from run_records import record
from stoker.commit import write_json
from stoker.errors import BadRequest
from stoker.recipe.changes import HARMLESS
from stoker.recipe.recipe import Phase, Recipe
from stoker.run.directory import Run, class_difference


@dataclass
class Images:
    """What a run records of its data set."""

    fingerprint: str = "f00d"
    classes: list[str] = field(default_factory=lambda: ["cat", "dog"])


FIRST = Recipe(lr=0.5, epochs=10, phases=(Phase(from_epoch=0, image_size=32, batch_size=16),))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run that was begun with the first recipe."""
    begun = Run(tmp_path / "run")
    images = Images()
    made = record(
        data="pets",
        fingerprint=images.fingerprint,
        classes=images.classes,
        values=FIRST.values(),
        digest=FIRST.digest(),
    )
    begun.create(made, "lr = 0.5\n")
    (begun.path / "checkpoints" / "000000010").mkdir(parents=True)
    return begun


def with_lr(lr: float) -> Recipe:
    return Recipe(lr=lr, epochs=10, phases=FIRST.phases)


class TestRecipeChanges:
    def test_the_same_recipe_and_images_go_on(self, run: Run) -> None:
        assert Run(run.path).recipe_changes(FIRST, Images()) == []

    def test_what_is_harmless_goes_on_and_is_told(self, run: Run) -> None:
        elsewhere = Recipe(lr=0.5, epochs=10, phases=FIRST.phases, threads=3)
        (found,) = run.recipe_changes(elsewhere, Images())
        assert (str(found), found.kind) == ("threads 0 -> 3", HARMLESS)

    def test_what_nobody_agreed_to_is_refused_with_the_way_on(self, run: Run) -> None:
        with pytest.raises(BadRequest, match=r"lr 0.5 -> 0.1[^$]*--allow-change lr$") as refusal:
            run.recipe_changes(with_lr(0.1), Images())
        assert str(run.path) in str(refusal.value)

    def test_what_was_agreed_on_goes_on(self, run: Run) -> None:
        (found,) = run.recipe_changes(with_lr(0.1), Images(), allowed=["lr"])
        assert (found.before, found.after) == (0.5, 0.1)

    def test_comparing_writes_nothing(self, run: Run) -> None:
        before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
        run.recipe_changes(with_lr(0.1), Images(), allowed=["lr"])
        after = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
        assert after == before

    @pytest.mark.parametrize(
        ("names", "trained"),
        [
            ([], False),
            (["000000000"], False),
            (["000000000-2", "000000000.torn", "rehearsal"], False),
            (["000000001"], True),
            (["000000000", "000000120.torn"], True),
            (["000000120.diverged"], True),
            (["1000000000"], True),
        ],
    )
    def test_before_a_step_nothing_needs_consent(
        self, run: Run, names: list[str], trained: bool
    ) -> None:
        (run.path / "checkpoints" / "000000010").rmdir()
        for name in names:
            (run.path / "checkpoints" / name).mkdir()
        write(run, 1, 0, [start()])
        assert run.has_trained == trained
        if trained:
            with pytest.raises(BadRequest, match=r"--allow-change lr$"):
                run.recipe_changes(with_lr(0.1), Images())
        else:
            (found,) = run.recipe_changes(with_lr(0.1), Images())
            assert found.name == "lr"
            with pytest.raises(BadRequest, match="no such key"):
                run.recipe_changes(with_lr(0.1), Images(), allowed=["learning_rate"])
            other_seed = Recipe(lr=0.5, epochs=10, phases=FIRST.phases, seed=3)
            with pytest.raises(BadRequest, match=r"name another --run$"):
                run.recipe_changes(other_seed, Images())

    def test_a_step_whose_checkpoint_is_lost_was_made(self, run: Run) -> None:
        (run.path / "checkpoints" / "000000010").rmdir()
        write(run, 1, 0, [start(), step(0)])
        assert run.has_trained

    def test_a_pruned_run_was_trained(self, run: Run) -> None:
        (run.path / "checkpoints" / "000000010").rename(run.path / "checkpoints" / "000000000")
        assert not run.has_trained
        write_json(run.path / "run.json", {**run.record, "masks": {"digest": "f00d", "step": 0}})
        assert run.has_trained

    def test_other_images_are_refused_whatever_was_agreed_on(self, run: Run) -> None:
        other = Images("beef", ["cat", "dog", "owl"])
        with pytest.raises(BadRequest) as refusal:
            run.recipe_changes(FIRST, other, allowed=["lr", "epochs"])
        assert str(run.path) in str(refusal.value)
        assert all(fact in str(refusal.value) for fact in ("(pets)", "3 classes", "added: owl"))

    def test_other_images_of_the_same_classes_are_refused_too(self, run: Run) -> None:
        with pytest.raises(BadRequest, match=r"other images \(pets\): name another --run$"):
            run.recipe_changes(FIRST, Images("beef"))

    def test_no_run_has_nothing_to_compare_with(self, tmp_path: Path) -> None:
        with pytest.raises(BadRequest, match="is not a run"):
            Run(tmp_path / "nowhere").recipe_changes(FIRST, Images())


class TestChangeRecipe:
    def test_from_then_on_the_new_recipe_is_in_force(self, run: Run) -> None:
        run.change_recipe(with_lr(0.1), "lr = 0.1\n", position=640, step=10)
        again = Run(run.path)
        assert again.recipe_start() == (640, 10)
        assert again.values == json.loads(json.dumps(with_lr(0.1).values()))
        assert again.recipe_changes(with_lr(0.1), Images()) == []
        with pytest.raises(BadRequest, match=r"lr 0.1 -> 0.5"):
            again.recipe_changes(FIRST, Images())

    def test_the_earlier_ones_stay_on_record(self, run: Run) -> None:
        run.change_recipe(with_lr(0.1), "lr = 0.1\n", position=640, step=10)
        run.change_recipe(with_lr(0.2), "lr = 0.2\n", position=1280, step=20)
        record = Run(run.path).record
        assert record["values"]["lr"] == 0.5
        rows = [(row["position"], row["step"], row["values"]["lr"]) for row in record["changes"]]
        assert rows == [(640, 10, 0.1), (1280, 20, 0.2)]
        assert [row["digest"] for row in record["changes"]] == [
            with_lr(0.1).digest(),
            with_lr(0.2).digest(),
        ]
        files = {path.name: path.read_text() for path in run.path.glob("recipe*.toml")}
        assert files == {
            "recipe.toml": "lr = 0.5\n",
            "recipe-2.toml": "lr = 0.1\n",
            "recipe-3.toml": "lr = 0.2\n",
        }

    def test_the_newest_counts_even_where_it_is_earlier_in_the_run(self, run: Run) -> None:
        """The checkpoint at which a recipe took over was lost: the run went back before it."""
        run.change_recipe(with_lr(0.1), "", position=1280, step=20)
        run.change_recipe(with_lr(0.1), "", position=640, step=10)
        assert run.recipe_start() == (640, 10)

    def test_everything_else_on_record_stays(self, run: Run) -> None:
        before = run.record
        run.change_recipe(with_lr(0.1), "", position=640, step=10)
        after = run.record
        assert {name: after[name] for name in before if name != "changes"} == {
            name: before[name] for name in before if name != "changes"
        }


class TestRecipeStart:
    def test_a_run_begins_at_the_beginning(self, run: Run, tmp_path: Path) -> None:
        assert run.recipe_start() == (0, 0)
        assert Run(tmp_path / "nowhere").recipe_start() == (0, 0)

    def test_before_any_change_the_first_recipe_is_in_force(self, run: Run) -> None:
        assert run.values == json.loads(json.dumps(FIRST.values()))


@pytest.mark.parametrize(
    ("before", "now", "text"),
    [
        (["a", "b"], ["a", "b"], ""),
        (["a", "b"], ["b", "a"], ""),
        (["a", "b"], ["a"], "; this set has 1 class (removed: b)"),
        (["a"], ["a", "b", "c"], "; this set has 3 classes (added: b, c)"),
        (["a", "b"], ["a", "c"], "; this set has 2 classes (removed: b; added: c)"),
        (list("abcdefg"), ["a"], "; this set has 1 class (removed: b, c, d, e, f ...)"),
        (list("abcdef"), ["a"], "; this set has 1 class (removed: b, c, d, e, f)"),
        ([], ["a"], "; this set has 1 class (added: a)"),
        (["a"], ["\x1b[31ma"], r"; this set has 1 class (removed: a; added: \x1b[31ma)"),
    ],
)
def test_removed_and_added_classes_are_named(before: list[str], now: list[str], text: str) -> None:
    assert class_difference(before, now) == text


class CountedName(str):
    """A class name that allows a limited number of comparisons."""

    __slots__ = ()
    comparisons = 0

    def __eq__(self, other: object) -> bool:
        type(self).comparisons += 1
        assert self.comparisons <= 1_000_000, "names are compared each with each"
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_many_classes_are_not_compared_each_with_each() -> None:
    before = [CountedName(f"class {number}") for number in range(100_000)]
    now = [CountedName(f"class {number}") for number in range(50_000, 150_000)]
    text = class_difference(before, now)
    assert "100,000 classes (removed: class 0, " in text
    assert "added: class 100000, " in text
