"""Facts about GPUs from a fake of NVIDIA's library; any error means fewer facts."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.host import gpu
from stoker.host.gpu import (
    LONGEST_PAUSE_S,
    Gpus,
    gpus_at_hand,
    over_time,
    pcie_link,
    visible,
    wait_for,
)


class FakeNvml:
    NVML_CLOCK_SM = 1
    NVML_TEMPERATURE_GPU = 0
    NVML_PCIE_UTIL_TX_BYTES = 0
    NVML_PCIE_UTIL_RX_BYTES = 1

    def __init__(self, count: int = 2) -> None:
        self.count, self.begun, self.pcie_queries, self.power_queries = count, 0, 0, 0

    def __getattr__(self, name: str) -> Any:
        answers: dict[str, Any] = {
            "nvmlDeviceGetCount": lambda: self.count,
            "nvmlDeviceGetHandleByIndex": lambda index: f"handle {index}",
            "nvmlDeviceGetHandleByUUID": lambda name: f"handle of {name}",
            "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=87, memory=3),
            "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(used=5, total=8, free=3),
            "nvmlDeviceGetClockInfo": lambda handle, kind: {1: 1200}[kind],
            "nvmlDeviceGetMaxClockInfo": lambda handle, kind: {1: 1980}[kind],
            "nvmlDeviceGetTemperature": lambda handle, kind: {0: 71}[kind],
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda handle: 0x1 | 0x4 | 0x40,
        }
        return answers[name] if name in answers else super().__getattribute__(name)

    def nvmlInit(self) -> None:  # noqa: N802
        self.begun += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.begun -= 1

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:  # noqa: N802
        self.power_queries += 1
        raise RuntimeError("Not Supported")

    def nvmlDeviceGetPcieThroughput(self, handle: str, counter: int) -> int:  # noqa: N802
        self.pcie_queries += 1
        return 125 + counter


def test_a_gpu_reports_what_it_can() -> None:
    nvml = FakeNvml(count=1)
    gpus = Gpus(nvml, {})
    assert gpus.read() == [
        {
            "device": 0,
            "busy": 0.87,
            "used_bytes": 5,
            "total_bytes": 8,
            "sm_clock_mhz": 1200,
            "sm_clock_most_mhz": 1980,
            "throttles": ["software power cap", "hardware thermal slowdown"],
            "temperature_c": 71,
            "pcie_rx_bytes_per_s": 126000,
            "pcie_tx_bytes_per_s": 125000,
        }
    ]
    gpus.close()
    gpus.close()
    assert nvml.begun == 0
    assert gpus.read() == []


def test_a_refused_query_is_not_repeated() -> None:
    nvml = FakeNvml(count=1)
    gpus = Gpus(nvml, {})
    for _ in range(3):
        gpus.read()
    assert nvml.power_queries == 1


def test_slow_facts_are_read_only_on_request() -> None:
    nvml = FakeNvml(count=1)
    gpus = Gpus(nvml, {})
    (facts,) = gpus.read(slow=False)
    assert nvml.pcie_queries == 0
    assert "pcie_rx_bytes_per_s" not in facts
    assert gpus.read()[0]["pcie_rx_bytes_per_s"] == 126000


@pytest.mark.parametrize("broken", ["nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex"])
def test_any_error_means_no_facts(broken: str) -> None:
    nvml = FakeNvml()

    def fail(*arguments: object) -> None:
        raise RuntimeError("Driver/library version mismatch")

    setattr(nvml, broken, fail)
    gpus = Gpus(nvml, {})
    assert gpus.read() == []
    gpus.close()


def test_without_the_package_there_are_no_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    gpus = Gpus()
    assert gpus.read() == []
    gpus.close()


@pytest.mark.parametrize(
    ("environment", "devices"),
    [
        ({}, [0, 1, 2]),
        ({"CUDA_VISIBLE_DEVICES": "2,0"}, [2, 0]),
        ({"CUDA_VISIBLE_DEVICES": "2,0", "LOCAL_RANK": "1"}, [0]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-12ab"}, ["GPU-12ab"]),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
        ({"LOCAL_RANK": "1"}, [1]),
        ({"LOCAL_RANK": "7"}, [0, 1, 2]),
        ({"LOCAL_RANK": "odd"}, [0, 1, 2]),
    ],
)
def test_a_rank_reads_its_own_gpu(environment: dict[str, str], devices: list[Any]) -> None:
    assert visible(3, environment) == devices


def test_readings_are_summarised() -> None:
    readings = [
        [{"device": 0, "busy": 0.5, "used_bytes": 3, "throttles": []}],
        [{"device": 0, "busy": 1.0, "used_bytes": 9, "throttles": ["sync boost"]}],
        [{"device": 0, "busy": 0.9, "throttles": [], "pcie_rx_bytes_per_s": 1000}],
    ]
    assert over_time(readings) == [
        {
            "device": 0,
            "busy": 0.8,
            "used_bytes": 9,
            "throttles": {"sync boost": 0.333},
            "pcie_rx_bytes_per_s": 1000,
        }
    ]


@pytest.mark.gpu
def test_a_real_gpu_reports() -> None:
    pytest.importorskip("pynvml")
    gpus = Gpus()
    readings = gpus.read()
    gpus.close()
    if not readings:
        pytest.skip("no GPU that NVML can see")
    assert json.loads(json.dumps(readings)) == readings
    assert 0 <= readings[0]["busy"] <= 1
    assert 0 < readings[0]["used_bytes"] <= readings[0]["total_bytes"]
    assert 0 < readings[0]["sm_clock_mhz"] <= readings[0]["sm_clock_most_mhz"]


@pytest.fixture
def devices(tmp_path: Path) -> Path:
    """The files of a machine with two GPUs, and others of the driver."""
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-modeset", "null"):
        (tmp_path / name).touch()
    return tmp_path


class TestAtHand:
    @pytest.mark.parametrize(
        ("chosen", "count"),
        [
            (None, 2),
            ("0", 2),
            ("1,0", 2),
            (" 1", 2),
            ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", 2),
            ("MIG-GPU-8932f937/1/0", 2),
            ("", 0),
            (" ", 0),
            ("-1", 0),
            ("NoDevFiles", 0),
        ],
    )
    def test_a_user_or_a_scheduler_may_hide_them(
        self, devices: Path, chosen: str | None, count: int
    ) -> None:
        environment = {} if chosen is None else {"CUDA_VISIBLE_DEVICES": chosen}
        assert gpus_at_hand(str(devices), environment) == count

    @pytest.mark.parametrize(
        ("number", "count"),
        [(errno.EPERM, 0), (errno.ENOENT, 0), (errno.EACCES, 2), (errno.EIO, 2)],
    )
    def test_one_that_a_control_group_denies_does_not_count_and_a_broken_one_does(
        self, devices: Path, monkeypatch: pytest.MonkeyPatch, number: int, count: int
    ) -> None:
        def refuse(*arguments: object) -> int:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(gpu.os, "open", refuse)
        assert gpus_at_hand(str(devices), {}) == count

    def test_a_machine_without_any_has_none(self, tmp_path: Path) -> None:
        assert gpus_at_hand(str(tmp_path), {}) == 0
        assert gpus_at_hand(str(tmp_path / "none"), {}) == 0


class LateEvent:
    """Has passed after so many looks."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    def query(self) -> bool:
        self.looks -= 1
        return self.looks < 0


def test_an_event_that_has_passed_is_not_waited_for() -> None:
    pauses: list[float] = []
    wait_for(LateEvent(0), pauses.append)
    assert pauses == []


def test_looks_become_rarer_and_stay_frequent() -> None:
    pauses: list[float] = []
    wait_for(LateEvent(30), pauses.append)
    assert len(pauses) == 30
    assert pauses == sorted(pauses)
    assert pauses[0] <= 1e-4
    assert pauses[-1] == LONGEST_PAUSE_S


def test_a_signal_is_handled_while_an_event_never_passes() -> None:
    class Heard(Exception):
        pass

    def hear(*arguments: object) -> None:
        raise Heard

    before = signal.signal(signal.SIGUSR2, hear)
    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR2))
    try:
        timer.start()
        with pytest.raises(Heard):
            wait_for(LateEvent(10**9))
    finally:
        timer.cancel()
        signal.signal(signal.SIGUSR2, before)


def test_the_link_of_a_gpu_is_read_from_the_kernel(tmp_path: Path) -> None:
    folder = tmp_path / "0000:3b:00.0"
    folder.mkdir()
    assert pcie_link(0, 0x3B, 0, str(tmp_path)) is None
    (folder / "current_link_speed").write_text("16.0 GT/s PCIe\n")
    (folder / "current_link_width").write_text("8\n")
    assert pcie_link(0, 0x3B, 0, str(tmp_path)) == "16.0 GT/s x8"
    assert pcie_link(0, 0x3C, 0, str(tmp_path)) is None
