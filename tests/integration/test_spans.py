"""Every second of a run is in its events, for all that a step can be made of, on every rank; and
measuring changes nothing about what is learnt."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from itertools import pairwise, product
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from chaos.recipes import RECIPES, command
from chaos.trainers import assert_bit_equal
from measured import held, measured
from samples import image_folder
from shares import share
from stoker.data.images.encode import Storage
from stoker.data.packing.pack import pack
from stoker.measure.spans import PARTS
from stoker.run.directory import Run
from stoker.run.events import Event
from stoker.survive.checkpoints import Checkpoints
from stoker.train.records.verdicts import BYTES_A_STEP

pytestmark = [pytest.mark.alone, pytest.mark.slow, pytest.mark.timeout(1800)]
SCRIPT = Path(__file__).with_name("spans_rank.py")
EPOCHS = 14
"""Two more than the first phase has."""
ROUNDED_S = 1e-6
"""Each part is told to the microsecond."""


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("sets")
    photos = image_folder(root / "pictures", classes=4, images=70, val=13, size=(40, 36))
    return {
        codec: pack(photos, root / codec, storage=Storage(codec=codec), shard_images=50)
        for codec in ("jpeg", "raw")
    }


def folder_of(root: Path, recipe: str, trial: bool = True) -> Path:
    """Where a recipe is trained, with a trial of a larger batch in mid-run or without."""
    return root / f"{list(RECIPES).index(recipe)}{'' if trial else ' without a trial'}"


@pytest.fixture(scope="module", params=[1, 2], ids=["alone", "two ranks"])
def trained(
    request: pytest.FixtureRequest,
    sets: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, int]:
    """Where every recipe was trained, and on how many ranks."""
    root, world = tmp_path_factory.mktemp("runs"), request.param
    train(root, world, sets, chosen(request.config))
    return root, world


def train(root: Path, world: int, sets: dict[str, Path], recipes: Iterable[str]) -> None:
    """Train recipes on some ranks, one after the other."""
    plan = []
    for recipe, trial in product(recipes, (True, False)):
        folder = folder_of(root, recipe, trial)
        folder.mkdir()
        argv = command(sets, folder / "run", recipe, epochs=EPOCHS)
        paths = {"meeting": str(folder / "meeting"), "laps": str(folder / "laps")}
        plan.append({"argv": argv, "trial": trial, **paths})
    (root / "plan.json").write_text(json.dumps(plan))
    common = {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), "CUDA_VISIBLE_DEVICES": ""}
    common["GLOO_SOCKET_IFNAME"] = "lo"
    ranks = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(root / "plan.json")],
            env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        printed = [rank.communicate(timeout=1600)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * world, "\n".join(printed)[-3000:]


def chosen(config: pytest.Config) -> list[str]:
    """The recipes of this commit: half of them; all with --whole."""
    return share("spans", list(RECIPES), 2, whole=config.getoption("--whole"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "run" in metafunc.fixturenames:
        metafunc.parametrize("run", chosen(metafunc.config), indirect=True)


@pytest.fixture
def run(request: pytest.FixtureRequest, trained: tuple[Path, int]) -> Run:
    return Run(folder_of(trained[0], request.param) / "run")


def events_of(run: Run, rank: int, *kinds: str) -> list[Event]:
    return [event for event in run.attempt_events(1, rank) if event["kind"] in kinds]


def laps_of(run: Run, rank: int) -> list[tuple[float, float]]:
    laps: list[tuple[float, float]] = json.loads(run.path.with_name(f"laps.{rank}").read_text())
    return laps


spoilt: set[Path] = set()
"""Runs that stood still for a moment between the clock of an event and the first mark."""


@measured()
def test_the_parts_of_all_laps_are_the_wall_time(
    request: pytest.FixtureRequest,
    run: Run,
    trained: tuple[Path, int],
    sets: dict[str, Path],
    tmp_path: Path,
) -> None:
    if run.path in spoilt:
        recipe = request.node.callspec.params["run"]
        train(tmp_path, trained[1], sets, [recipe])
        run = Run(folder_of(tmp_path, recipe) / "run")
    spoilt.add(trained[0] / run.path.relative_to(run.path.parents[1]))
    for rank in range(trained[1]):
        (begin,), (end,) = (events_of(run, rank, kind) for kind in ("attempt", "end"))
        laps = [event["parts"] for event in events_of(run, rank, "step", "skipped", "end")]
        total, wall = sum(sum(parts.values()) for parts in laps), end["time"] - begin["time"]
        print(f"rank {rank}: {total:.3f} s in parts, {wall:.3f} s by the wall")
        held(total == pytest.approx(wall, rel=0.02), rank, total, wall)


def test_the_parts_of_each_step_are_the_time_between_its_marks(
    run: Run, trained: tuple[Path, int]
) -> None:
    for rank in range(trained[1]):
        events = events_of(run, rank, "step", "skipped", "end")
        laps = laps_of(run, rank)
        # Laps before the first step belong to nobody.
        for event, (began, ended) in zip(events, laps[-len(events) :], strict=True):
            parts = event["parts"]
            assert set(parts) <= set(PARTS)
            assert min(parts.values()) >= 0
            assert sum(parts.values()) == pytest.approx(ended - began, abs=len(PARTS) * ROUNDED_S)


def test_no_moment_lies_between_two_laps(run: Run, trained: tuple[Path, int]) -> None:
    for rank in range(trained[1]):
        assert all(end == begin for (_, end), (begin, _) in pairwise(laps_of(run, rank)))


def test_waiting_for_images_is_told_as_reading_and_decoding(
    run: Run, trained: tuple[Path, int]
) -> None:
    for rank in range(trained[1]):
        steps = events_of(run, rank, "step")
        assert len(steps) >= EPOCHS * 7
        for event in steps:
            assert {"read", "decode", "forward", "backward", "optimiser"} <= set(event["parts"])
            assert "data" not in event["parts"]
            assert event["work"]["decode"] > 0 and event["work"]["read"] >= 0
            assert event["work"]["cpu"] > 0
        assert sum(event["work"]["read"] for event in steps) > 0


def test_a_thread_is_not_longer_on_the_cpu_than_there_is_time(
    run: Run, trained: tuple[Path, int]
) -> None:
    for rank in range(trained[1]):
        for event in events_of(run, rank, "step"):
            assert 0 <= sum(event["on_cpu"].values()) <= sum(event["parts"].values()) + 0.002


def test_ranks_exchange_the_gradient_once_a_step(run: Run, trained: tuple[Path, int]) -> None:
    for rank in range(trained[1]):
        steps = events_of(run, rank, "step")
        if trained[1] == 1:
            assert all(not e["sent"] and "exchange" not in e["parts"] for e in steps)
            continue
        checkpoints = Checkpoints(run.path)
        name = checkpoints.pointer("last")
        assert name is not None
        weights = load_file(checkpoints.folder / name / "weights.safetensors")
        learnt = [
            tensor.nbytes
            for key, tensor in weights.items()
            if tensor.dtype == torch.float32 and "running_" not in key and key != "shift"
        ]
        assert {event["sent"]["bytes"] for event in steps} == {sum(learnt)}
        assert all(event["parts"]["exchange"] >= 0 for event in steps)


def test_an_event_of_a_step_is_as_short_as_a_verdict_expects(
    run: Run, trained: tuple[Path, int]
) -> None:
    for rank in range(trained[1]):
        for event in events_of(run, rank, "step"):
            assert len(json.dumps(event)) < BYTES_A_STEP


def test_trying_a_larger_batch_changes_not_a_bit(run: Run, trained: tuple[Path, int]) -> None:
    plain = Run(run.path.parent.with_name(f"{run.path.parent.name} without a trial") / "run")
    in_pieces = run.values["micro_batch"] > 0
    for rank in range(trained[1]):
        assert len(events_of(run, rank, "larger_batch")) == (not in_pieces)
        assert events_of(plain, rank, "larger_batch") == []
    assert_bit_equal(run, plain)
