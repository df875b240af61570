"""Cells on a tiny set: what is pruned, where training starts, and the bits it ends with."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from bits import same
from exports import answers_without_stoker, code_blocks
from samples import picture
from stoker import faults
from stoker.errors import BadRequest, StokerError
from stoker.fleet.grid.directory import Grid
from stoker.recipe.resolve import resolve
from stoker.run.directory import Run
from stoker.show.console import start_lines
from stoker.show.explain import explain
from stoker.study.continued import copy_run
from stoker.study.tickets.cells import QUANTILES
from stoker.study.tickets.plan import RANDOM_MASK, REINIT, TICKET, TicketDesign, TicketStudy
from stoker.study.tickets.pruned import pruned_copy, trained_kernels
from stoker.study.tickets.results import results_of
from stoker.study.tickets.size import measure_size
from stoker.survive.checkpoint import read_checkpoint, write_checkpoint
from stoker.survive.manifest import checkpoint_folder
from stoker.survive.remedies import Remedies
from stoker.train.attempt.inputs import AttemptOptions
from stoker.train.attempt.session import train
from stoker.train.model.masks import all_kept, unpack_masks
from stoker.use.export.write import ExportOptions, export_run
from studies import VALUES, recipe_of, results, run_here, run_of, tiny_study
from tiny_runs import one_thread_alone, tiny_set

__all__ = ["one_thread_alone"]
DESIGN = TicketDesign((0.5, 0.1), (0.0, 1.0), 1, 0.7)
pytestmark = pytest.mark.exact


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_set(tmp_path_factory.mktemp("tickets"))


@pytest.fixture(scope="module")
def done(data: Path) -> tuple[TicketStudy, Grid]:
    study = tiny_study(data, DESIGN)
    return study, run_here(study, data.parent / "grid", data)


def last(run: Run) -> Any:
    return read_checkpoint(checkpoint_folder(run.path, "last"))


def train_on(run: Run, data: Path, until: float | None = None) -> None:
    options = AttemptOptions(compute_threads=1, until=until)
    values = VALUES | {"seed": 3, "eval_every": 3}
    assert train(data, resolve(None, values), run.path, (), None, (), options) == "finished"


def everything(run: Run) -> list[Any]:
    snapshot = last(run)
    kept = {name: value for name, value in snapshot.state.items() if name != "masks"}
    return [snapshot.weights, snapshot.ema, kept, snapshot.facts["position"]]


def test_the_dense_chain_is_one_run(done: tuple[TicketStudy, Grid], data: Path) -> None:
    study, grid = done
    whole = Run(data.parent / "whole")
    train_on(whole, data)
    assert same(everything(run_of(grid, study.dense[0])), everything(whole))


@pytest.mark.parametrize("until", [0.0, 1.0])
def test_rewinding_and_keeping_everything_is_the_dense_run(
    done: tuple[TicketStudy, Grid], data: Path, tmp_path: Path, until: float
) -> None:
    study, grid = done
    (start,) = [c for c, cell in study.plan.cells.items() if cell.meaning.get("until") == until]
    recipe, dense = recipe_of(0), run_of(grid, study.dense[0])
    kernels, before = trained_kernels(dense, recipe)
    assert before is None
    run = pruned_copy(run_of(grid, start).path, tmp_path / "run", recipe, all_kept(kernels))
    assert same(everything(run), everything(run_of(grid, start)))
    train_on(run, data)
    assert same(everything(run), everything(dense))


def test_levels_are_met_exactly_and_what_is_pruned_is_zero(done: tuple[TicketStudy, Grid]) -> None:
    study, grid = done
    for cell, trained in study.cells.items():
        result, snapshot = grid.result(cell), last(run_of(grid, cell))
        assert result["kept"] == round(trained.keep * result["total"])
        assert result["kept"] == sum(kept for kept, _ in result["layers"].values())
        shapes = {name: snapshot.weights[name].shape for name in snapshot.state["masks"]}
        for name, mask in unpack_masks(snapshot.state["masks"], shapes).items():
            for tensors in (snapshot.weights, snapshot.ema):
                assert not tensors[name][~mask].any()
                assert not tensors[name][~mask].signbit().any()


def test_controls_prune_as_much_of_each_layer(done: tuple[TicketStudy, Grid]) -> None:
    study, grid = done
    for keep in DESIGN.keeps:
        (reinit,) = study.of(REINIT, keep, 0.0)
        (first,) = study.of(TICKET, keep, 0.0)
        assert grid.result(reinit)["masks"] == grid.result(first)["masks"]
        for rewind in DESIGN.rewinds:
            (ticket,), (random,) = (study.of(k, keep, rewind) for k in (TICKET, RANDOM_MASK))
            assert grid.result(random)["layers"] == grid.result(ticket)["layers"]
            assert grid.result(random)["masks"] != grid.result(ticket)["masks"]


def test_rounds_prune_more_and_nothing_comes_back(done: tuple[TicketStudy, Grid]) -> None:
    study, grid = done
    (cell,) = study.of(TICKET, 0.1, 1.0)
    masks = []
    while study.plan.cells[cell].meaning["do"] == "ticket":
        masks.append(trained_kernels(run_of(grid, cell), recipe_of(0))[1])
        cell = study.plan.cells[cell].parents[1]
    assert [sum(int(m.sum()) for m in each.values()) for each in masks if each] == [651, 1953]
    small, large = masks
    assert small and large
    assert all((large[name] | ~small[name]).all() for name in small)


def test_other_random_weights_are_those_of_another_seed(
    done: tuple[TicketStudy, Grid], tmp_path: Path
) -> None:
    study, grid = done
    (start,) = [c for c, cell in study.plan.cells.items() if cell.meaning.get("until") == 0.0]
    recipe, source = recipe_of(0), run_of(grid, start)
    kernels, _ = trained_kernels(source, recipe)
    run = pruned_copy(source.path, tmp_path / "run", recipe, all_kept(kernels), 77)
    other, _ = trained_kernels(run, recipe)
    assert all(not torch.equal(other[name], kernels[name]) for name in kernels)
    assert (last(run).facts["position"], run.values["seed"]) == (0, 3)
    assert same(last(run).weights, last(run).ema)


def test_a_level_alone_is_the_level_of_a_study(
    done: tuple[TicketStudy, Grid], data: Path, tmp_path: Path
) -> None:
    _, grid = done
    alone = tiny_study(data, TicketDesign((0.1,), (1.0,), 1, 0.7))
    (cell,) = alone.of(TICKET, 0.1, 1.0)
    other = run_here(alone, tmp_path / "grid", data, [cell])
    assert results(alone, other)[cell] == grid.result(cell)
    assert same(everything(run_of(other, cell)), everything(run_of(grid, cell)))


def test_the_dense_run_reports_its_magnitudes(done: tuple[TicketStudy, Grid]) -> None:
    study, grid = done
    result = grid.result(study.dense[0])
    kernels, _ = trained_kernels(run_of(grid, study.dense[0]), recipe_of(0))
    sizes = torch.cat([kernel.abs().flatten() for kernel in kernels.values()]).double()
    assert (result["total"], result["zeros"]) == (len(sizes), 0)
    assert list(result["quantiles"]) == [str(each) for each in QUANTILES]
    for share, value in result["quantiles"].items():
        assert abs(float((sizes <= value).double().mean()) - int(share) / 100) < 1e-3
    assert sum(result["layers"].values()) == len(sizes)


def test_a_study_without_enough_replicates_is_no_evidence(
    done: tuple[TicketStudy, Grid],
) -> None:
    study, grid = done
    shown = results_of(study, grid, grid.status(study.plan))
    assert (shown.done, shown.wins) == (shown.cells, [])
    assert shown.doubts() == ["it has fewer than 3 replicates"]
    assert len(shown.as_data()["levels"]) == 4


def test_a_pruned_run_says_so(done: tuple[TicketStudy, Grid]) -> None:
    study, grid = done
    run = run_of(grid, study.of(TICKET, 0.1, 1.0)[0])
    line = "masks: 651 of 6,510 kernel weights kept (10.00%)"
    assert line in start_lines(run.starts()[-1])
    assert line in explain(run)
    assert line not in explain(run_of(grid, study.dense[0]))


class TestLostMasks:
    def copy(self, done: tuple[TicketStudy, Grid], folder: Path) -> Run:
        study, grid = done
        return copy_run(run_of(grid, study.of(TICKET, 0.1, 1.0)[0]).path, folder / "run")

    def test_a_pruned_run_without_checkpoints_is_not_trained_densely(
        self, done: tuple[TicketStudy, Grid], data: Path, tmp_path: Path
    ) -> None:
        run = self.copy(done, tmp_path)
        shutil.rmtree(run.path / "checkpoints")
        with pytest.raises(BadRequest, match="is a pruned run, and no checkpoint with its masks"):
            train_on(run, data)

    @pytest.mark.parametrize("other", ["none", "another"])
    def test_a_checkpoint_with_other_masks_does_not_count(
        self, done: tuple[TicketStudy, Grid], data: Path, tmp_path: Path, other: str
    ) -> None:
        run = self.copy(done, tmp_path)
        snapshot = last(run)
        if other == "none":
            del snapshot.state["masks"]
        else:
            snapshot.state["masks"]["head.weight"] ^= 1
        write_checkpoint(run.path / "checkpoints" / snapshot.name, snapshot)
        with pytest.raises(BadRequest, match="no checkpoint with its masks"):
            train_on(run, data)


def test_a_copy_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with pytest.raises(StokerError, match="no last checkpoint"):
        copy_run(tmp_path / "run", tmp_path / "copy")


def test_a_stop_in_mid_cell_changes_no_bit(
    done: tuple[TicketStudy, Grid], data: Path, tmp_path: Path
) -> None:
    study, grid = done
    (cell,) = study.of(TICKET, 0.1, 1.0)
    start, _ = study.plan.cells[cell].parents
    masks = trained_kernels(run_of(grid, cell), recipe_of(0))[1]
    assert masks
    run = pruned_copy(run_of(grid, start).path, tmp_path / "run", recipe_of(0), masks)
    train_on(run, data, until=1.6)
    train_on(run, data)
    assert everything(run)[3] == everything(run_of(grid, cell))[3]
    assert same(everything(run)[:3], everything(run_of(grid, cell))[:3])


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A loss that is far too high in one step, and not finite in the next."""
    rows = [{"fault": "huge", "at": "loss"}, {"fault": "nan", "at": "loss", "count": 2}]
    monkeypatch.setenv(faults.VARIABLE, json.dumps(rows))
    faults.arm()
    yield
    monkeypatch.delenv(faults.VARIABLE)
    faults.arm()


@pytest.mark.usefixtures("faulty")
def test_a_roll_back_to_the_start_of_a_ticket_keeps_its_masks(
    done: tuple[TicketStudy, Grid], data: Path, tmp_path: Path
) -> None:
    study, grid = done
    (cell,) = study.of(TICKET, 0.1, 1.0)
    masks = trained_kernels(run_of(grid, cell), recipe_of(0))[1]
    start, _ = study.plan.cells[cell].parents
    assert masks
    run = pruned_copy(run_of(grid, start).path, tmp_path / "run", recipe_of(0), masks)
    train_on(run, data)
    assert Remedies(run.path).taken
    assert [each["position"] for each in run.starts()[-2:]] == [64, 64]
    assert same(trained_kernels(run, recipe_of(0))[1], masks)


class TestUse:
    def test_a_ticket_is_exported_like_any_model(
        self, done: tuple[TicketStudy, Grid], tmp_path: Path
    ) -> None:
        study, grid = done
        run = run_of(grid, study.of(TICKET, 0.1, 1.0)[0])
        out = tmp_path / "export"
        export_run(run.path, out, ExportOptions(("safetensors", "torch")))
        weights = load_file(out / "model.safetensors")
        assert same(weights, last(run).ema)
        kernels = [weights[name] for name in last(run).state["masks"]]
        assert sum(int((kernel != 0).sum()) for kernel in kernels) <= 651
        picture(0, 1, (8, 8)).save(out / "photo.jpg")
        blocks = code_blocks((out / "README.md").read_text())
        assert answers_without_stoker(out, blocks)

    def test_what_a_ticket_saves_is_measured(self, done: tuple[TicketStudy, Grid]) -> None:
        study, grid = done
        dense, ticket = (
            run_of(grid, cell).path for cell in (study.dense[0], study.of(TICKET, 0.1, 0.0)[0])
        )
        size = measure_size(dense, ticket, 0.1, 0.0)
        assert size.zeros >= 5859
        assert size.ticket.bytes == size.dense.bytes
        assert size.ticket.compressed < 0.5 * size.dense.compressed
        assert min(size.dense.images_s, size.ticket.images_s, size.speedup) > 0
