"""Trouble is met the way the recipe wants, so many times, and the run remembers it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import StokerError
from stoker.recipe.recipe import Recipe
from stoker.survive.remedies import (
    CUT,
    EXPLODING,
    HIGH,
    MEMORY,
    NOT_FINITE,
    Remedies,
    Remedy,
    Trouble,
    keep_evidence,
)
from stoker.text import plural

RECIPE = Recipe()


@pytest.fixture
def remedies(tmp_path: Path) -> Remedies:
    return Remedies(tmp_path)


def trouble(kind: str = NOT_FINITE, step: int = 12) -> Trouble:
    return Trouble(kind, step, "seen")


def choose(remedies: Remedies, kind: str, recipe: Recipe = RECIPE, holds: int = 64) -> Remedy:
    return remedies.choose(
        trouble(kind), recipe, position=768, resume_position=640, micro_batch=holds
    )


def starve(remedies: Remedies, recipe: Recipe, share: int) -> int:
    """Run out of memory once; what a rank holds at once from then on."""
    holds = remedies.micro_batch(recipe) or share
    remedies.take(choose(remedies, MEMORY, recipe, holds))
    return remedies.micro_batch(recipe)


class TestChoice:
    @pytest.mark.parametrize(
        ("kind", "policy", "remedy", "position"),
        [
            (NOT_FINITE, "skip", "skip", 768),
            (NOT_FINITE, "cut", "cut", 640),
            (EXPLODING, "skip", "cut", 640),
            (EXPLODING, "cut", "cut", 640),
            (MEMORY, "skip", "micro_batch", 768),
            (MEMORY, "cut", "micro_batch", 768),
            (MEMORY, "stop", "micro_batch", 768),
            (MEMORY, "off", "micro_batch", 768),
        ],
    )
    def test_each_trouble_has_its_remedy(
        self, remedies: Remedies, kind: str, policy: str, remedy: str, position: int
    ) -> None:
        chosen = choose(remedies, kind, Recipe(on_divergence=policy))
        assert (chosen.kind, chosen.position) == (remedy, position)
        assert chosen.trouble == f"{kind} at step 12: seen"

    @pytest.mark.parametrize("kind", [NOT_FINITE, EXPLODING])
    def test_stop_means_stop_and_says_where_the_evidence_is(
        self, remedies: Remedies, kind: str
    ) -> None:
        with pytest.raises(StokerError, match=rf"^{kind} at step 12: seen; .*/trouble/12$"):
            choose(remedies, kind, Recipe(on_divergence="stop"))

    @pytest.mark.parametrize("policy", ["skip", "cut", "stop"])
    def test_no_roll_back_helps_a_loss_that_began_high(
        self, remedies: Remedies, policy: str
    ) -> None:
        with pytest.raises(StokerError, match="before any weight changed"):
            choose(remedies, HIGH, Recipe(on_divergence=policy))

    def test_choosing_leaves_no_trace(self, remedies: Remedies) -> None:
        choose(remedies, NOT_FINITE)
        assert remedies.taken == []
        assert list(remedies.path.iterdir()) == []


class TestRetries:
    @pytest.mark.parametrize("retries", [0, 1, 3])
    def test_so_many_roll_backs_and_no_more(self, remedies: Remedies, retries: int) -> None:
        recipe = Recipe(divergence_retries=retries)
        for kind in [NOT_FINITE, EXPLODING, NOT_FINITE][:retries]:
            remedies.take(choose(remedies, kind, recipe))
        with pytest.raises(
            StokerError, match=f"after {plural(retries, 'roll-back')}; .*trouble/12"
        ):
            choose(remedies, NOT_FINITE, recipe)

    def test_another_recipe_starts_with_a_clean_sheet(self, remedies: Remedies) -> None:
        for _ in range(3):
            remedies.take(choose(remedies, EXPLODING))
        with pytest.raises(StokerError, match="after 3 roll-backs"):
            choose(remedies, EXPLODING)
        assert choose(remedies, EXPLODING, Recipe(lr=0.01)).kind == "cut"

    def test_other_threads_or_machines_do_not(self, remedies: Remedies) -> None:
        for _ in range(3):
            remedies.take(choose(remedies, NOT_FINITE))
        with pytest.raises(StokerError, match="after 3 roll-backs"):
            choose(remedies, NOT_FINITE, Recipe(threads=7, keep_checkpoints=9))

    def test_lack_of_memory_is_no_roll_back(self, remedies: Remedies) -> None:
        for _ in range(4):
            remedies.take(choose(remedies, MEMORY))
        assert choose(remedies, NOT_FINITE).kind == "skip"
        for _ in range(3):
            remedies.take(choose(remedies, NOT_FINITE))
        assert choose(remedies, MEMORY).kind == "micro_batch"


class TestPosition:
    def test_a_fresh_run_has_no_remedies(self, remedies: Remedies) -> None:
        assert remedies.taken == []
        assert (remedies.skips(0), remedies.lr_factor(0), remedies.micro_batch(RECIPE)) == (
            False,
            1,
            0,
        )

    def test_a_batch_is_skipped_where_it_starts_and_nowhere_else(self, remedies: Remedies) -> None:
        remedies.take(choose(remedies, NOT_FINITE))
        assert [at for at in range(0, 1024, 64) if remedies.skips(at)] == [768]
        assert remedies.lr_factor(10_000) == 1

    def test_a_cut_counts_from_its_position_on_and_skips_nothing(self, remedies: Remedies) -> None:
        remedies.take(choose(remedies, EXPLODING))
        assert [remedies.lr_factor(at) for at in (0, 639, 640, 9999)] == [1, 1, CUT, CUT]
        assert not any(remedies.skips(at) for at in range(1024))

    @given(
        st.lists(
            st.tuples(st.sampled_from(["skip", "cut", "micro_batch"]), st.integers(0, 50)),
            max_size=8,
        ),
        st.randoms(),
        st.integers(0, 60),
    )
    def test_rate_and_skips_do_not_depend_on_the_order_of_what_was_done(
        self, rows: list[tuple[str, int]], random, at: int
    ) -> None:
        one, other = Remedies(Path("nowhere")), Remedies(Path("nowhere"))
        one.taken = [Remedy(kind, position, "digest", "seen") for kind, position in rows]
        other.taken = random.sample(one.taken, len(one.taken))
        cut = [position for kind, position in rows if kind == "cut" and position <= at]
        assert one.lr_factor(at) == other.lr_factor(at) == CUT ** len(cut)
        assert one.skips(at) == other.skips(at) == (("skip", at) in rows)


class TestMemory:
    @pytest.mark.parametrize(("holds", "after"), [(64, 32), (50, 25), (5, 2), (4, 2), (3, 2)])
    def test_half_as_many_are_held_but_two_at_least(
        self, remedies: Remedies, holds: int, after: int
    ) -> None:
        chosen = choose(remedies, MEMORY, holds=holds)
        assert (chosen.before, chosen.after) == (holds, after)

    @pytest.mark.parametrize("holds", [1, 2])
    def test_where_two_do_not_fit_the_images_are_too_large(
        self, remedies: Remedies, holds: int
    ) -> None:
        images = "1 image" if holds == 1 else "2 images"
        with pytest.raises(
            StokerError, match=f"even {images} at once is too much; lower --image-size"
        ):
            choose(remedies, MEMORY, holds=holds)

    def test_a_whole_share_is_halved_again_and_again(self, remedies: Remedies) -> None:
        assert [starve(remedies, RECIPE, 64) for _ in range(5)] == [32, 16, 8, 4, 2]
        with pytest.raises(StokerError, match="even 2 images at once"):
            starve(remedies, RECIPE, 64)

    def test_a_given_size_is_halved(self, remedies: Remedies) -> None:
        assert starve(remedies, Recipe(micro_batch=64), 256) == 32

    def test_a_size_that_never_failed_is_believed(self, remedies: Remedies) -> None:
        starve(remedies, RECIPE, 64)
        assert remedies.micro_batch(Recipe(micro_batch=8)) == 8
        assert remedies.micro_batch(Recipe(micro_batch=48)) == 48


class TestRecord:
    def test_the_next_attempt_reads_what_was_done(self, remedies: Remedies) -> None:
        for kind in (NOT_FINITE, EXPLODING, MEMORY):
            remedies.take(choose(remedies, kind))
            assert Remedies(remedies.path).taken == remedies.taken
        assert [row.kind for row in Remedies(remedies.path).taken] == ["skip", "cut", "micro_batch"]

    def test_it_is_plain_json(self, remedies: Remedies) -> None:
        remedies.take(choose(remedies, NOT_FINITE))
        (row,) = json.loads((remedies.path / "remedies.json").read_text())
        assert (row["kind"], row["position"], row["digest"]) == ("skip", 768, RECIPE.digest())

    @pytest.mark.parametrize(
        ("kind", "action"),
        [
            (NOT_FINITE, "rolled back; this batch is skipped"),
            (EXPLODING, "the learning rate is multiplied by 0.5"),
            (MEMORY, "a rank now trains on 32 images at once, not 64"),
        ],
    )
    def test_the_text_says_what_happened_and_what_was_done(
        self, remedies: Remedies, kind: str, action: str
    ) -> None:
        text = choose(remedies, kind).text()
        assert text.startswith(f"{kind} at step 12: seen: ")
        assert action in text


def test_evidence_is_a_file_a_rank_under_its_step(tmp_path: Path) -> None:
    for rank in (0, 3):
        keep_evidence(tmp_path, 12, rank, {"lr": 0.1, "losses": [(1, 2.5)], "rank": rank})
    found = sorted((tmp_path / "trouble" / "12").iterdir())
    assert [path.name for path in found] == ["rank0.json", "rank3.json"]
    assert json.loads(found[1].read_text()) == {"lr": 0.1, "losses": [[1, 2.5]], "rank": 3}
    keep_evidence(tmp_path, 12, 0, {"second": True})
    assert json.loads(found[0].read_text()) == {"second": True}


def test_a_remedy_for_smaller_shares_counts_for_a_larger_micro_batch_too(tmp_path: Path) -> None:
    remedies = Remedies(tmp_path)
    recipe = Recipe(micro_batch=64)
    trouble = Trouble(MEMORY, 3, "on rank 0")
    for holds, left in ((32, 16), (16, 8)):
        remedies.take(
            remedies.choose(trouble, recipe, position=0, resume_position=0, micro_batch=holds)
        )
        assert remedies.micro_batch(recipe) == left
