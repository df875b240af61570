from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import BadRequest
from stoker.recipe.recipe import Recipe
from stoker.recipe.resolve import resolve
from stoker.study.tickets.plan import (
    BY_LAYER,
    RANDOM_MASK,
    REINIT,
    TICKET,
    TicketDesign,
    TicketStudy,
    cell_count,
    check_design,
    parse_baselines,
    parse_keeps,
    parse_rewinds,
    parse_rounds,
    plan_tickets,
)


def recipe_at(number: int) -> Recipe:
    return resolve(None, {"epochs": 4, "seed": 10 + number}).recipe


def planned(keeps: str, rewinds: str = "0,1ep", rounds: str = "20%", **more: int) -> TicketStudy:
    shares, epochs = parse_keeps(keeps), parse_rewinds(rewinds)
    design = TicketDesign(shares, epochs, more.pop("replicates", 1), parse_rounds(rounds), **more)  # type: ignore[arg-type]
    return plan_tickets([recipe_at(n) for n in range(design.replicates)], design, "set", 1)


class TestRounds:
    @given(st.floats(1e-5, 0.999), st.floats(0.01, 0.9))
    def test_a_round_prunes_at_most_its_share_and_the_level_is_met(
        self, keep: float, a_round: float
    ) -> None:
        shares = [1.0, *TicketDesign((keep,), (0.0,), a_round=a_round).shares(keep)]
        assert shares[-1] == keep
        for before, after in pairwise(shares):
            assert before > after >= before * (1 - a_round) * (1 - 1e-9)

    def test_a_level_that_is_a_round_is_no_further_round(self) -> None:
        design = TicketDesign((0.8, 0.64), (0.0,))
        assert design.shares(0.64) == [0.8, 0.64]
        assert TicketDesign((0.05,), (0.0,), a_round=None).shares(0.05) == [0.05]

    def test_what_a_level_is_does_not_depend_on_the_others(self) -> None:
        every, alone = planned("50,20,10"), planned("10")
        assert set(alone.plan.cells) < set(every.plan.cells)
        assert {cell: every.cells[cell] for cell in alone.cells} == alone.cells

    def test_levels_share_their_rounds(self) -> None:
        rounds = {
            cell.meaning["keep"]
            for cell in planned("50,20,10", "0").plan.cells.values()
            if cell.label.startswith("run 1: ticket")
        }
        assert len(rounds) == 10 + 3  # 0.8 to 0.8 ** 10, and the levels


class TestGraph:
    def test_dense_training_is_one_chain(self) -> None:
        study = planned("20", "1ep,2ep")
        chain = [study.dense[0]]
        while parents := study.plan.cells[chain[0]].parents:
            chain.insert(0, parents[0])
        untils = [study.plan.cells[cell].meaning.get("until") for cell in chain]
        assert untils == [0.0, 1.0, 2.0, None]

    def test_every_level_has_its_controls(self) -> None:
        study = planned("40,5", "0,1ep,2ep", replicates=3)
        for keep in (0.4, 0.05):
            assert len(study.of(REINIT, keep, 0.0)) == 3
            for rewind in (0.0, 1.0, 2.0):
                assert len(study.of(TICKET, keep, rewind)) == 3
                assert len(study.of(RANDOM_MASK, keep, rewind)) == 3
        assert not study.of(BY_LAYER, 0.4, 0.0)
        seeds = [study.plan.cells[cell].meaning["values"]["seed"] for cell in study.dense]
        assert seeds == [10, 11, 12]

    def test_a_ticket_and_its_controls_are_pruned_by_the_same_weights(self) -> None:
        study = planned("40", "1ep")
        cells = [study.of(*each)[0] for each in ((TICKET, 0.4, 1.0), (RANDOM_MASK, 0.4, 1.0))]
        ticket, random = (study.plan.cells[cell] for cell in cells)
        (reinit,) = (study.plan.cells[cell] for cell in study.of(REINIT, 0.4, 0.0))
        assert ticket.parents == random.parents
        assert reinit.parents[1] == ticket.parents[1]
        assert study.plan.cells[reinit.parents[0]].meaning["until"] == 0.0
        assert reinit.meaning["weights_seed"] == 1_000_010

    def test_one_shot_prunes_by_the_dense_run(self) -> None:
        study = planned("40,5", "0", "one-shot")
        for cell in study.cells:
            assert study.plan.cells[cell].parents[1] == study.dense[0]

    def test_layers_are_compared_where_asked(self) -> None:
        study = planned("40,5", "0,1ep", by_layer=True)
        for cell in study.of(BY_LAYER, 0.05, 1.0):
            assert study.plan.cells[cell].parents[1] == study.dense[0]

    @pytest.mark.parametrize("rounds", ["one-shot", "20%", "50%"])
    def test_there_are_no_more_cells_than_counted(self, rounds: str) -> None:
        study = planned("50,20,1", "0,1ep,3ep", rounds, replicates=2, by_layer=True)
        assert 0.8 * cell_count(study.design) < len(study.plan.cells) <= cell_count(study.design)

    def test_a_plan_is_the_same_again(self) -> None:
        assert list(planned("20").plan.cells) == list(planned("20").plan.cells)
        assert planned("20").plan.to_bytes() == planned("20").plan.to_bytes()


class TestFlags:
    def test_lists_are_put_in_order(self) -> None:
        assert parse_keeps("5, 40%,5,1.5") == (0.4, 0.05, 0.015)
        assert parse_rewinds("2ep,0,0.5ep,2ep") == (0.0, 0.5, 2.0)
        assert (parse_rounds("20%"), parse_rounds("one-shot")) == (0.2, None)
        assert (parse_baselines(""), parse_baselines("layer")) == (False, True)

    @pytest.mark.parametrize("text", ["", ",", "0", "100", "-5", "101", "x", "nan", "inf", "1e-9"])
    def test_keeps_that_are_none(self, text: str) -> None:
        with pytest.raises(BadRequest, match="--keep"):
            parse_keeps(text)

    @pytest.mark.parametrize("text", ["", "1", "0,1", "-1ep", "ep", "infep", "nanep", "1it"])
    def test_rewinds_that_are_none(self, text: str) -> None:
        with pytest.raises(BadRequest, match="--rewind"):
            parse_rewinds(text)

    @pytest.mark.parametrize("text", ["", "20", "0%", "100%", "x%", "10%,20%", "oneshot", "nan%"])
    def test_rounds_that_are_none(self, text: str) -> None:
        with pytest.raises(BadRequest, match="--rounds"):
            parse_rounds(text)

    def test_another_baseline_is_refused(self) -> None:
        with pytest.raises(BadRequest, match="--baselines random: the only"):
            parse_baselines("random")


class TestRefused:
    def test_a_rewind_point_after_the_end(self) -> None:
        with pytest.raises(BadRequest, match="--rewind 4ep is not before the end"):
            check_design(TicketDesign((0.2,), (0.0, 4.0)), recipe_at(0))

    @pytest.mark.parametrize("values", [{"pretrained": True}, {"weights": "x.safetensors"}])
    def test_weights_that_are_not_random(self, values: dict[str, object]) -> None:
        recipe = resolve(None, {"epochs": 4, **values}).recipe
        design = TicketDesign((0.2,), (0.0,))
        with pytest.raises(BadRequest, match="begins with random weights"):
            check_design(design, recipe)

    def test_too_many_cells(self) -> None:
        design = TicketDesign((0.5, 1e-5), (0.0,), 1000, 0.01)
        with pytest.raises(BadRequest, match="at most 100,000"):
            check_design(design, recipe_at(0))
