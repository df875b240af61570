"""Ranks that say the same at the same moment; one process alone needs nobody."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from ports import free_port
from stoker.errors import BadRequest
from stoker.fleet.launcher import ELASTIC, RENDEZVOUS_FILE
from stoker.survive.stopping import StopNow, StopRequest
from stoker.survive.watchdog import FIRST_STEP_S
from stoker.train import process_group
from stoker.train.model.build import ResNet9
from stoker.train.process_group import Agreement, Ranks, await_all, own_device

CPU = torch.device("cpu")
ALONE = Ranks(0, 1, 0, 1, CPU)


@pytest.fixture
def nobody_else(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = torch.get_num_threads()
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    yield
    torch.set_num_threads(before)


class TestMeeting:
    @pytest.mark.parametrize("seed", range(20))
    def test_either_all_ranks_join_or_none(self, seed: int, tmp_path: Path) -> None:
        """One that leaves on its way would keep the others inside torch, deaf to signals."""
        draw, joined, stops = random.Random(seed), [], [StopRequest() for _ in range(3)]
        delays = [draw.uniform(0, 0.1) for _ in stops]

        def join(stop: StopRequest, delay_s: float) -> None:
            time.sleep(delay_s)
            with suppress(StopNow):
                await_all(str(tmp_path / "ranks"), len(stops), stop)
                joined.append(stop)

        threads = [
            threading.Thread(target=join, args=pair) for pair in zip(stops, delays, strict=True)
        ]
        for thread in threads:
            thread.start()
        time.sleep(draw.uniform(0, 0.12))
        for stop in draw.sample(stops, len(stops)):  # the launcher tells the others a little later
            stop.request("SIGTERM")
            time.sleep(draw.uniform(0, 0.05))
        for thread in threads:
            thread.join(60)
        assert len(joined) in (0, len(stops))

    def test_without_a_request_all_join(self, tmp_path: Path) -> None:
        stops = [StopRequest() for _ in range(2)]
        place = str(tmp_path / "ranks")
        other = threading.Thread(target=await_all, args=(place, 2, stops[0]))
        other.start()
        await_all(place, 2, stops[1])
        other.join(60)
        assert not other.is_alive()


class TestAlone:
    def test_joining_starts_no_process_group(self, nobody_else: None) -> None:
        ranks = Ranks.join()
        assert (ranks.rank, ranks.world, ranks.first) == (0, 1, True)
        assert not torch.distributed.is_initialized()
        ranks.meet()
        ranks.leave()

    def test_the_cores_are_shared_by_the_ranks_of_a_machine(
        self, nobody_else: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "1000")
        Ranks.join()
        assert torch.cuda.is_available() or torch.get_num_threads() == 1

    def test_numbers_stay_what_they_are(self) -> None:
        assert ALONE.sum(torch.tensor([3, 4])).tolist() == [3, 4]
        assert ALONE.largest([5, -6]) == [5, -6]
        assert ALONE.from_first(7) == 7

    def test_the_model_is_not_wrapped_nor_touched(self) -> None:
        model = ResNet9(3, width=2)
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        assert ALONE.wrap(model) is model
        ALONE.settle(model, model, 8)
        ALONE.share_buffers(model)
        assert all(torch.equal(now, before[name]) for name, now in model.state_dict().items())

    def test_a_vote_counts_at_once_and_only_then(self) -> None:
        agreement = Agreement(ALONE, lambda: None)
        assert [agreement.poll(vote) for vote in (False, True, False)] == [False, True, False]
        assert agreement.met


class FakeCuda:
    """What torch.cuda says of a machine; `fails` is raised by the first kernel."""

    def __init__(self, gpus: int = 1, fails: Exception | None = None) -> None:
        self.gpus, self.fails = gpus, fails
        self.chosen: list[int | None] = []

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: self.gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: self.gpus)
        monkeypatch.setattr(torch.cuda, "set_device", lambda device: self.use(device))
        zeros = torch.zeros
        monkeypatch.setattr(torch, "zeros", lambda *shape, device: zeros(*shape))

    def use(self, device: torch.device) -> None:
        if self.fails:
            raise self.fails
        self.chosen.append(device.index)


TASK = {"CUDA_VISIBLE_DEVICES": "0", "SLURM_LOCALID": "3"}


class TestDevice:
    @pytest.fixture(autouse=True)
    def plain_environment(self, nobody_else: None, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("CUDA_VISIBLE_DEVICES", "TORCHELASTIC_RUN_ID", RENDEZVOUS_FILE, ELASTIC):
            monkeypatch.delenv(name, raising=False)

    @pytest.mark.parametrize(
        ("gpus", "local_rank", "variables", "number"),
        [
            (4, 0, {}, 0),
            (4, 3, {}, 3),
            (4, 3, {RENDEZVOUS_FILE: "file"}, 3),
            (1, 3, TASK, 0),  # a task of SLURM sees its own GPU only
            (1, 3, {"CUDA_VISIBLE_DEVICES": "GPU-1234"}, 0),
            (1, 0, {"CUDA_VISIBLE_DEVICES": "2"}, 0),
            (1, 1, {}, None),  # two ranks of a machine with one GPU
            (2, 3, {"CUDA_VISIBLE_DEVICES": "0,1"}, None),
            (1, 1, {"CUDA_VISIBLE_DEVICES": "0", RENDEZVOUS_FILE: "file"}, None),
            (1, 1, {"CUDA_VISIBLE_DEVICES": "0", ELASTIC: "1"}, None),
            (1, 1, {**TASK, "TORCHELASTIC_RUN_ID": "none"}, None),  # torchrun: all see the same
        ],
    )
    def test_each_rank_has_a_gpu_of_its_own(
        self,
        monkeypatch: pytest.MonkeyPatch,
        gpus: int,
        local_rank: int,
        variables: dict[str, str],
        number: int | None,
    ) -> None:
        cuda = FakeCuda(gpus)
        cuda.install(monkeypatch)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        if number is None:
            with pytest.raises(BadRequest, match="need a GPU each"):
                own_device(local_rank, 4)
            return
        assert own_device(local_rank, 4) == torch.device("cuda", number)
        assert cuda.chosen == [number]

    @pytest.mark.parametrize(
        "error",
        [
            RuntimeError("CUDA error: no kernel image is available for execution on the device"),
            RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable"),
            torch.OutOfMemoryError("CUDA out of memory"),
        ],
        ids=str,
    )
    def test_a_gpu_that_does_not_work_is_refused(
        self, monkeypatch: pytest.MonkeyPatch, error: Exception
    ) -> None:
        FakeCuda(1, error).install(monkeypatch)
        with pytest.raises(BadRequest, match="GPU 0 does not work") as caught:
            own_device(0, 1)
        assert str(error) in str(caught.value)

    @pytest.mark.parametrize(
        ("present", "version", "refused"), [(2, "13.2", True), (0, "13.2", False), (2, None, False)]
    )
    def test_a_gpu_that_pytorch_cannot_use_is_not_passed_over(
        self,
        monkeypatch: pytest.MonkeyPatch,
        present: int,
        version: str | None,
        refused: bool,
    ) -> None:
        FakeCuda(0).install(monkeypatch)
        monkeypatch.setattr(process_group, "gpus_at_hand", lambda: present)
        monkeypatch.setattr(torch.version, "cuda", version)
        if refused:
            with pytest.raises(BadRequest, match="cannot use the 2 GPUs"):
                own_device(0, 1)
        else:
            assert own_device(0, 1) == CPU


class TestGroup:
    """What the process group is told; nothing of it has met a real NCCL."""

    @pytest.fixture
    def options(self, nobody_else: None, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
        options: dict[str, Any] = {}
        monkeypatch.setattr(
            torch.distributed,
            "init_process_group",
            lambda backend, **others: options.update(others, backend=backend),
        )
        variables = {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1", RENDEZVOUS_FILE: "/file"}
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        return options

    def test_a_rank_with_a_gpu_connects_it_at_once(
        self, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        FakeCuda(2).install(monkeypatch)
        assert Ranks.join().device == torch.device("cuda", 1)
        assert options["backend"] == "cpu:gloo,cuda:nccl"
        assert options["device_id"] == torch.device("cuda", 1)

    def test_a_rank_on_a_cpu_has_none(self, options: dict[str, Any]) -> None:
        if torch.cuda.is_available():
            pytest.skip("this machine has a GPU")
        Ranks.join()
        assert (options["backend"], options["device_id"]) == ("gloo", None)

    def test_a_collective_waits_longer_than_a_rank_may_compile_and_not_for_ever(
        self, options: dict[str, Any]
    ) -> None:
        if torch.cuda.is_available():
            pytest.skip("this machine has a GPU")
        Ranks.join()
        assert FIRST_STEP_S < options["timeout"].total_seconds() < 1800

    @pytest.mark.parametrize(
        ("device", "failed", "left"),
        [("cpu", False, 1), ("cpu", True, 1), ("cuda", False, 1), ("cuda", True, 0)],
    )
    def test_after_a_failure_nccl_is_not_waited_for(
        self, monkeypatch: pytest.MonkeyPatch, device: str, failed: bool, left: int
    ) -> None:
        calls: list[int] = []
        monkeypatch.setattr(torch.distributed, "destroy_process_group", lambda: calls.append(1))
        Ranks(0, 2, 0, 2, torch.device(device)).leave(failed=failed)
        assert len(calls) == left


SCRIPT = """
import json, os, time
import torch
from stoker.train.model.build import ResNet9
from stoker.train.process_group import Agreement, Ranks

ranks = Ranks.join()
said = {"rank": ranks.rank, "first": ranks.from_first(10 + ranks.rank)}
said["negative"] = ranks.from_first(-5 if ranks.first else 3)
said["sum"] = ranks.sum(torch.tensor([ranks.rank, 1])).tolist()
said["largest"] = ranks.largest([ranks.rank, -ranks.rank])

flushed = 0
def flush():
    global flushed
    flushed += 1
now = 100.0
agreement, answers, met = Agreement(ranks, flush, clock=lambda: now), [], []
while not (answers and answers[-1]) and len(answers) < 2000:
    time.sleep(0.002 * (1 + 2 * ranks.rank))
    now += 0.01
    answers.append(agreement.poll(ranks.rank == 1 and len(answers) >= 20))
    met.append(agreement.met)
said |= {"answers": answers, "met": met, "flushed": flushed}

torch.manual_seed(ranks.rank)
model = ResNet9(3, width=2)
with torch.no_grad():
    model(torch.randn(4, 3, 8, 8) + ranks.rank)
def statistics():
    return [buffer.double().sum().item() for buffer in model.buffers()]
said["before"] = statistics()
ranks.share_buffers(model)
said["after"] = statistics()

wrapped = ranks.wrap(model)
def whole():
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}
before = whole()
ranks.settle(wrapped, model, 8)
said["unsettled"] = [name for name, now in whole().items() if not torch.equal(now, before[name])]
said["gradients"] = sum(weight.grad is not None for weight in model.parameters())
ranks.leave()
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def two() -> list[dict[str, Any]]:
    """What two real ranks said."""
    common = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "GLOO_SOCKET_IFNAME": "lo",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "CUDA_VISIBLE_DEVICES": "",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [process.communicate(timeout=300)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0]
    return [json.loads(words.splitlines()[-1]) for words in said]


class TestTwo:
    def test_take_rank_0s_number(self, two: list[dict[str, Any]]) -> None:
        assert [said["first"] for said in two] == [10, 10]
        assert [said["negative"] for said in two] == [-5, -5]

    def test_sum_and_compare_place_by_place(self, two: list[dict[str, Any]]) -> None:
        assert [said["sum"] for said in two] == [[1, 2]] * 2
        assert [said["largest"] for said in two] == [[1, 0]] * 2

    def test_stop_at_the_same_poll_when_one_of_them_votes_for_it(
        self, two: list[dict[str, Any]]
    ) -> None:
        assert two[0]["answers"] == two[1]["answers"]
        assert two[0]["met"] == two[1]["met"]
        assert len(two[0]["answers"]) > 20
        assert two[0]["answers"][-1] == 1
        assert not any(two[0]["answers"][:-1])

    def test_meet_seldom_and_flush_before_each_meeting(self, two: list[dict[str, Any]]) -> None:
        for said in two:
            assert said["flushed"] == sum(said["met"]) < len(said["met"]) / 2

    def test_have_rank_0s_statistics_after_sharing(self, two: list[dict[str, Any]]) -> None:
        assert two[0]["before"] != two[1]["before"]
        assert two[0]["after"] == two[1]["after"] == two[0]["before"]

    def test_settling_leaves_no_trace(self, two: list[dict[str, Any]]) -> None:
        assert [said["unsettled"] for said in two] == [[], []]
        assert [said["gradients"] for said in two] == [0, 0]
