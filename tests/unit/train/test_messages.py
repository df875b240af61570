"""Every message of training as its user reads it, kept in tests/golden/train_messages.txt."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from golden import check_golden
from stoker.errors import StokerError
from stoker.fleet.addresses import Endpoint, Nodes
from stoker.fleet.launcher import LaunchResult, first_failure
from stoker.recipe.changes import Change
from stoker.recipe.recipe import Recipe
from stoker.run.directory import Run
from stoker.run.events import Events
from stoker.survive.checkpoint import Snapshot
from stoker.survive.checkpoints import Checkpoints
from stoker.survive.divergence import LossWatch
from stoker.survive.rehearsal import RehearsalResult
from stoker.survive.stopping import StopRequest
from stoker.train import process_group
from stoker.train.attempt import announce, launch, lost_peers
from stoker.train.attempt.announce import (
    idle_gpus,
    lost_ranks,
    slow_to_save,
    split_note,
    workspace_note,
)
from stoker.train.attempt.bits import bits_note
from stoker.train.attempt.loop import Loop, evaluates_too_many
from stoker.train.device import WORKSPACE, LateNumbers, set_arithmetic
from stoker.train.loaders import prepare
from stoker.train.model.build import build_model
from stoker.train.process_group import Ranks
from stoker.train.records.saving import Saves
from stoker.train.step import Step
from stoker.train.trials import link_check
from stoker.train.trials.compute import Trial
from stoker.train.trials.device_memory import ACTIVATIONS, Peak, Prediction, refuse_too_large

CPU = torch.device("cpu")
TINY = Recipe(model="resnet9_w1", image_size=16, batch_size=8)
ALONE = Ranks(0, 1, 0, 1, CPU)
GLOO = RuntimeError("[gloo/transport/tcp/pair.cc:538] Connection closed by peer")


def error_of(call: Callable[[], object]) -> str:
    with pytest.raises((StokerError, Exception)) as caught:
        call()
    return str(caught.value)


def model_messages(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    yield error_of(lambda: build_model(replace(TINY, pretrained=True), 3))
    pytest.importorskip("timm")
    yield error_of(lambda: build_model(replace(TINY, model="resnet51"), 3)).split(";")[0]
    monkeypatch.setitem(__import__("sys").modules, "timm", None)
    yield error_of(lambda: build_model(replace(TINY, model="resnet50"), 3))
    split = SimpleNamespace(split=lambda name: range(100))
    yield error_of(lambda: prepare(split, TINY, replace(ALONE, world=5)))  # type: ignore[arg-type]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    yield error_of(Ranks.join)
    yield from idle_gpus(ALONE)
    monkeypatch.undo()


def device_messages(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    def fail(*arguments: object) -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old\n(found version 11040).")

    for module in (process_group, announce):
        monkeypatch.setattr(module, "gpus_at_hand", lambda: 1)
    monkeypatch.setattr(process_group, "nvidia_driver", lambda: "470.57.02")
    monkeypatch.setattr(torch, "__version__", "2.15.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    monkeypatch.setattr(torch.cuda, "init", fail)
    yield error_of(Ranks.join)
    monkeypatch.setattr(torch.version, "cuda", None)
    yield from idle_gpus(ALONE)
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", fail)
    yield error_of(Ranks.join)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla T4")
    yield error_of(lambda: set_arithmetic(replace(TINY, amp="bf16")))
    monkeypatch.undo()


def memory_messages(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    def one_gb_an_image(prediction: Prediction, share: int, images: int, image_size: int) -> Peak:
        return Peak(images, image_size, {ACTIVATIONS: images * 10**9})

    monkeypatch.setattr(Prediction, "training", one_gb_an_image)
    yield error_of(lambda: refuse_too_large(TINY, 3, 5 * 10**9))

    def no_memory(*arguments: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Step, "micro_step", no_memory)
    model, normalise = build_model(TINY, 3)
    yield error_of(lambda: Trial(TINY, ALONE, model, normalise, 1000).timed(8))
    monkeypatch.undo()


def link_messages(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(link_check, "max_over_ranks", lambda numbers: list(numbers))
    monkeypatch.setattr(link_check, "computing_s", lambda step, batch: 0.1)
    step = SimpleNamespace(
        ranks=SimpleNamespace(world=2, device=CPU),
        state=SimpleNamespace(model=build_model(replace(TINY, model="resnet9_w16"), 3)[0]),
        timeline=SimpleNamespace(batch_of_step=lambda number: None),
        micro_batch_sizes=lambda batch: [4],
    )
    for rate in (1.2e6, 3e5):
        yield link_check.too_slow(step, rate, 0.0)  # type: ignore[arg-type]
    monkeypatch.undo()


def trouble_messages() -> Iterator[str]:
    def bad(world: int, votes: list[int]) -> str:
        step: Any = SimpleNamespace(
            ranks=SimpleNamespace(rank=0, world=world, largest=lambda numbers: votes),
            recipe=TINY,
        )
        judged: Any = SimpleNamespace(step=20, sums=LateNumbers(torch.zeros(4)))
        return error_of(lambda: Step.raise_agreed_trouble(step, judged))

    yield bad(1, [0])
    yield bad(2, [2])
    starved: Any = SimpleNamespace(ranks=SimpleNamespace(rank=1, world=2))
    yield str(Step.out_of_memory(starved, 20))
    for first in (30, 0):
        losses = LossWatch(1.1)
        for number in range(150):
            losses.add(first + number, 12.5)
        loop: Any = SimpleNamespace(
            guards=SimpleNamespace(losses=losses),
            ranks=SimpleNamespace(largest=lambda numbers: numbers),
            state=SimpleNamespace(step=50),
            earliest=lambda step: step,
        )
        yield str(Loop.explosion(loop))
    yield str(evaluates_too_many(250))


def lost_messages(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(lost_peers, "WAIT_S", 0.0)

    def lose(name: str, **last: str) -> str:
        run = Run(path / name)
        ours, other = (Events(run.events_path(1, rank)) for rank in range(2))
        for rank, events in enumerate((ours, other)):
            environment = {"host": f"node-{rank}"}
            events.write("attempt", position=0, step=0, environment=environment)
        if last:
            other.write(**last)
        ours.flush()
        other.flush()

        def broken() -> None:
            with lost_peers.naming_lost_peers(run, 1, ours):
                raise GLOO

        return error_of(broken)

    yield lose("killed")
    yield lose("alive", kind="peer_lost")
    yield lose("failed", kind="end", outcome="failed", reason="MemoryError: no memory")
    yield lose("stopped", kind="end", outcome="interrupted", reason="SIGTERM")

    def before() -> None:
        with lost_peers.naming_lost_peers(Run(path / "none")):
            raise GLOO

    yield error_of(before)


def start_messages(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    run = Run(path / "split")
    for rank in range(2):
        events = Events(run.events_path(1, rank))
        derived = "global 64 = 2 ranks x 32 x 1 accum; peak 0.1"
        environment = {"host": f"node-{rank}"}
        events.write("attempt", position=0, step=0, derived=derived, environment=environment)
        if rank == 0:
            events.write("end", outcome="failed", reason="")
        events.close()
    yield from split_note(run, "global 64 = 1 rank x 64 x 1 accum; peak 0.1")
    yield from lost_ranks(run)
    old, new = (
        {"threads": threads, "torch": torch_version, "device": "CPU", "isa": "AVX2"}
        for threads, torch_version in ((4, "2.8.0"), (2, "2.9.0"))
    )
    before = [{"attempt": 1, "position": 0, "world": 1, "environment": old}]
    for now in ({**old, "threads": 2}, new):
        yield from bits_note(before, {"world": 1, "environment": now}, 640)
    changes = [Change("micro_batch", 0, 32)]
    yield from bits_note(before, {"world": 2, "environment": old}, 640, changes)
    gpu = {"world": 1, "environment": {"device": "H100", "isa": None}}
    earlier = [{"attempt": 1, "position": 0, **gpu}]
    yield from bits_note(earlier, gpu, 640, deterministic=False)
    on_gpu = replace(ALONE, device=torch.device("cuda"))
    for value in (":16:8", ":4096:2"):
        monkeypatch.setenv(WORKSPACE, value)
        yield from workspace_note(replace(TINY, deterministic=True), on_gpu)
    yield from workspace_note(TINY, on_gpu)
    yield from workspace_note(replace(TINY, deterministic=True), ALONE)
    monkeypatch.undo()
    yield from slow_to_save(replace(TINY, spot_notice="off"), RehearsalResult(10**9, 100.0, 1.0))


def result_messages(path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[str]:
    run = Run(path / "finished")
    events = Events(run.events_path(1, 0))
    events.write("end", outcome="finished", position=1280)
    events.close()
    yield error_of(lambda: launch.has_result(run))
    checkpoints = Checkpoints(run.path)
    facts = {"step": 10, "position": 640, "best": 0.5}
    checkpoints.save(Snapshot({"kernel": torch.zeros(3)}, {}, {"optimizer": {}}, facts))
    checkpoints.wait()
    assert not launch.has_result(run)
    (checkpoints.folder / "000000020").mkdir()
    assert not launch.has_result(run)
    yield from capsys.readouterr().out.splitlines()


def save_messages(path: Path) -> Iterator[str]:
    failures: list[dict[str, Any]] = []
    log = SimpleNamespace(
        events=SimpleNamespace(write=lambda kind, **facts: failures.append(facts)),
        flush=lambda: False,
    )
    state = SimpleNamespace(position=0, evaluated=0, best=-1.0)
    checkpoints = SimpleNamespace(join=lambda alive: None, failures=[], finished=[])
    saves: Any = Saves(TINY, state, checkpoints, {}, log, True)  # type: ignore[arg-type]
    yield error_of(lambda: saves.save(wait=True))
    yield failures[0]["reason"]


def launch_messages(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[str]:
    run = Run(path / "launched")
    run.path.mkdir()
    plan = launch.plan_launch(2, ["photos"], path, run, StopRequest())

    def rounds(*rounds: tuple[list[int], str]) -> str:
        remaining, steps = iter(rounds), iter(range(1, 9))

        def start(ranks: int, arguments: list[str], log: Path, *others: object) -> LaunchResult:
            codes, output = next(remaining)
            with log.open("a") as file:
                file.write(output)
            return LaunchResult(codes, None, first_failure(codes))

        monkeypatch.setattr(launch, "start_ranks", start)
        monkeypatch.setattr(Run, "steps_made", property(lambda run: next(steps)))
        message = error_of(lambda: launch.launch(plan, run))
        printed = capsys.readouterr()
        return f"{printed.out}{printed.err}{message}"

    yield rounds(([-signal.SIGKILL, 75], ""), ([1, 1], "Traceback\nstoker: lost rank 1\n"))
    yield rounds(([2, 2], "stoker: no such model\nstoker: no such model\n"))
    yield rounds(([75, 76], "stoker: out of memory\n"), ([2, 2], "stoker: no such model\n"))
    codes = iter((1, 75))
    monkeypatch.setattr(launch, "take_part", lambda *arguments: next(codes))
    point, nodes = Endpoint("10.0.0.1", 29400), Nodes(1, 4)
    yield error_of(lambda: launch.launch_elastic(plan, run, point, nodes))
    assert launch.launch_elastic(plan, run, point, nodes) == 75
    yield capsys.readouterr().out.strip()
    monkeypatch.undo()


def test_messages_golden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [
        *model_messages(monkeypatch),
        *device_messages(monkeypatch),
        *memory_messages(monkeypatch),
        *link_messages(monkeypatch),
        *trouble_messages(),
        *lost_messages(tmp_path, monkeypatch),
        *start_messages(tmp_path, monkeypatch),
        *result_messages(tmp_path, capsys),
        *save_messages(tmp_path),
        *launch_messages(tmp_path, monkeypatch, capsys),
    ]
    check_golden("train_messages", [line.replace(str(tmp_path), "FOLDER") for line in lines])
