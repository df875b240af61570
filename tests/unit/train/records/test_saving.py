"""When the state is saved, what is said about it, and what a save that failed leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from stoker import faults
from stoker.errors import StokerError
from stoker.faults import Fault
from stoker.recipe.recipe import Recipe
from stoker.run.events import Event, Events
from stoker.survive.checkpoints import Checkpoints
from stoker.survive.save_interval import UNKNOWN_S, derive
from stoker.train.records.saving import Saves
from stoker.train.records.step_log import StepLog
from stoker.train.state import TrainState

MakeSaves = Callable[..., Saves]


@pytest.fixture
def heard() -> list[Event]:
    return []


@pytest.fixture
def make(tmp_path: Path, heard: list[Event]) -> Iterator[MakeSaves]:
    events = Events(tmp_path / "rank0.jsonl", (heard.append,))

    def made(first: bool = True, resumed: bool = False, **keys: Any) -> Saves:
        recipe = replace(Recipe(), **keys)
        state = TrainState.fresh(recipe, nn.Linear(3, 2), torch.device("cpu"))
        state.position = 64 if resumed else 0
        saves = Saves(recipe, state, Checkpoints(tmp_path), {}, StepLog(events), first)
        state.position, state.step = 64, 2
        return saves

    yield made
    events.close()


@pytest.fixture
def full_disk() -> Iterator[None]:
    faults._faults[:] = [Fault("full", "weights.safetensors:piece", again=True)]
    yield
    faults._faults.clear()


def kinds(heard: list[Event]) -> list[str]:
    return [event["kind"] for event in heard]


def steps_on_disk(path: Path) -> list[str]:
    return Checkpoints(path).names()


class TestSave:
    def test_what_a_save_took_is_on_record(self, make: MakeSaves, heard: list[Event]) -> None:
        make().save(wait=True)
        saved = next(event for event in heard if event["kind"] == "checkpoint")
        assert (saved["step"], saved["position"]) == (2, 64)
        assert saved["bytes"] > 0
        assert saved["blocked_s"] >= 0 and 0 <= saved["busy_s"] <= saved["seconds"] + 0.05

    def test_the_same_state_is_not_saved_twice(self, make: MakeSaves, tmp_path: Path) -> None:
        saves = make()
        saves.save(wait=True)
        saves.save(wait=True)
        assert steps_on_disk(tmp_path) == ["000000002"]

    def test_a_resumed_state_is_saved_already(self, make: MakeSaves, tmp_path: Path) -> None:
        make(resumed=True).save(wait=True)
        assert steps_on_disk(tmp_path) == []

    def test_only_rank_0_saves(self, make: MakeSaves, tmp_path: Path) -> None:
        make(first=False).save(wait=True)
        assert steps_on_disk(tmp_path) == []

    def test_a_full_disk_is_an_alarm_and_the_best_result_does_not_count(
        self, make: MakeSaves, heard: list[Event], full_disk: None
    ) -> None:
        saves = make()
        saves.state.best = 0.9
        saves.save(best=True)
        saves.checkpoints.join()
        saves.report()
        assert kinds(heard) == ["save_failed"]
        assert saves.state.best == -1.0

    def test_the_last_save_must_succeed(self, make: MakeSaves, full_disk: None) -> None:
        with pytest.raises(StokerError, match="what was saved before is safe"):
            make().save(wait=True)


class TestInterval:
    def test_before_any_save_it_is_a_guess(self, make: MakeSaves) -> None:
        assert make().interval_s == UNKNOWN_S

    def test_then_it_follows_from_the_cost(self, make: MakeSaves, heard: list[Event]) -> None:
        saves = make()
        saves.set_interval(0.5)
        assert saves.interval_s == derive(0.5, Recipe().interruption_hours).seconds
        assert heard[-1]["first"] and "saves every" in heard[-1]["words"]

    def test_a_recipe_that_says_so_decides(self, make: MakeSaves, heard: list[Event]) -> None:
        saves = make(checkpoint_interval=7.0)
        assert saves.interval_s == 7.0
        saves.set_interval(0.5)
        assert saves.interval_s == 7.0
        assert "saves every 7.00 s: this takes 7.14%" in heard[-1]["words"]

    def test_small_changes_are_not_said_again(self, make: MakeSaves, heard: list[Event]) -> None:
        saves = make()
        for cost in (0.5, 0.51, 0.49, 0.5, 2.0):
            saves.set_interval(cost)
        assert [event["first"] for event in heard] == [True, False]

    def test_a_save_is_due_only_after_the_interval(self, make: MakeSaves) -> None:
        now = 100.0
        saves = replace(make(checkpoint_interval=5.0), clock=lambda: now)
        now = 104.9
        assert not saves.due
        now = 105.1
        assert saves.due
