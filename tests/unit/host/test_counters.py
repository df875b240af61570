from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from stoker.host.counters import KernelFile, Machine, Reading, growth, seconds_since_start, summary


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def machine(root: Path) -> Machine:
    return Machine(str(root / "proc"), str(root / "cgroup"), str(root / "own"))


PROC = {
    "proc/stat": "cpu 10 0 10 60 10 0 0 10 0 0\n",
    "proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 400 kB\n",
    "proc/self/statm": "765 438 410 5 0 123 0\n",
    "proc/self/io": "rchar: 9\nread_bytes: 100\nwrite_bytes: 200\n",
    "proc/net/dev": "head\n eth0: 1000 1 0 0 0 0 0 0 500 1 0 0 0 0 0 0\n",
    f"proc/self/task/{os.getpid()}/schedstat": "1000000000 500000000 3\n",
    "proc/pressure/io": "some avg10=0.00 total=1000000\n",
}


def test_nothing_to_read_is_no_zero(tmp_path: Path) -> None:
    source = machine(tmp_path)
    first, last = source.read(), source.read()
    source.close()
    assert not first.levels
    assert not first.network
    figures = summary([first, last])
    assert set(figures) == {"seconds", "cpu"}
    assert set(figures["cpu"]) == {"own_user_s", "own_system_s", "sampler_s", "own_cores"}


def test_what_the_kernel_writes_is_read(tmp_path: Path) -> None:
    write(tmp_path, PROC)
    source = machine(tmp_path)
    reading = source.read()
    source.close()
    assert reading.counts["ticks_busy"] == 20
    assert reading.counts["pressure_io_s"] == 1.0
    assert "pressure_cpu_s" not in reading.counts
    assert (reading.counts["main_cpu_s"], reading.counts["main_delay_s"]) == (1.0, 0.5)
    assert (reading.counts["read_bytes"], reading.counts["write_bytes"]) == (100, 200)
    assert reading.levels["own_bytes"] == 438 * os.sysconf("SC_PAGE_SIZE")
    assert reading.levels["available_bytes"] == 400 * 1024
    assert reading.network == {"eth0": (1000, 500)}


VERSION_2 = {
    "own": "0::/job/step\n",
    "cgroup/cpu.stat": "usage_usec 1\n",
    "cgroup/job/cpu.stat": "nr_throttled 2\nthrottled_usec 3000000\n",
    "cgroup/job/step/cpu.stat": "nr_throttled 0\nthrottled_usec 0\n",
    "cgroup/job/memory.max": "600000\n",
    "cgroup/job/memory.current": "500000\n",
    "cgroup/job/memory.stat": "anon 1\ninactive_file 200000\n",
    "cgroup/job/step/memory.max": "max\n",
    "cgroup/job/step/memory.current": "400000\n",
}
VERSION_1 = {
    "own": "5:memory:/job\n2:cpu,cpuacct:/job\n0::/\n",
    "cgroup/cpu/job/cpu.stat": "nr_throttled 2\nthrottled_time 3000000000\n",
    "cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    "cgroup/memory/memory.usage_in_bytes": "900000\n",
    "cgroup/memory/job/memory.limit_in_bytes": "600000\n",
    "cgroup/memory/job/memory.usage_in_bytes": "500000\n",
    "cgroup/memory/job/memory.stat": "inactive_file 5\ntotal_inactive_file 200000\n",
}
INSIDE = {
    # A container sees the path on its host and its own group as the root.
    "own": "5:memory:/docker/0123\n2:cpu:/docker/0123\n",
    "cgroup/cpu/cpu.stat": "nr_throttled 2\nthrottled_time 3000000000\n",
    "cgroup/memory/memory.limit_in_bytes": "600000\n",
    "cgroup/memory/memory.usage_in_bytes": "500000\n",
    "cgroup/memory/memory.stat": "total_inactive_file 200000\n",
}


@pytest.mark.parametrize("groups", [VERSION_2, VERSION_1, INSIDE], ids=["v2", "v1", "container"])
def test_limits_are_found_through_the_own_group(tmp_path: Path, groups: dict[str, str]) -> None:
    write(tmp_path, {**PROC, **groups})
    source = machine(tmp_path)
    reading = source.read()
    source.close()
    assert (reading.counts["throttled_s"], reading.counts["throttled_times"]) == (3.0, 2)
    assert reading.levels["limit_bytes"] == 600000
    assert reading.levels["used_bytes"] == 300000


def test_a_limit_above_the_memory_is_none(tmp_path: Path) -> None:
    write(tmp_path, {**PROC, **VERSION_2, "cgroup/job/memory.max": "9999999999\n"})
    source = machine(tmp_path)
    assert "limit_bytes" not in source.read().levels
    source.close()


def test_a_file_that_fails_is_not_tried_again(tmp_path: Path) -> None:
    late = KernelFile(tmp_path / "later")
    (tmp_path / "later").write_text("1\n")
    assert late.text() == ""
    folder = KernelFile(tmp_path)  # opens, but does not read
    assert folder.text() == folder.text() == ""
    folder.close()


def test_the_summary_of_two_readings() -> None:
    first = Reading(
        10.0,
        {
            "own_user_s": 1.0,
            "own_system_s": 0.0,
            "ticks_all": 100,
            "ticks_busy": 50,
            "ticks_steal": 0,
            "throttled_s": 1.0,
            "pressure_io_s": 2.0,
            "main_cpu_s": 1.0,
            "main_delay_s": 0.0,
            "read_bytes": 10,
        },
    )
    last = Reading(
        20.0,
        {
            "own_user_s": 16.0,
            "own_system_s": 1.0,
            "ticks_all": 300,
            "ticks_busy": 200,
            "ticks_steal": 20,
            "throttled_s": 1.5,
            "pressure_io_s": 3.0,
            "main_cpu_s": 10.0,
            "main_delay_s": 0.5,
            "read_bytes": 4106,
        },
        {"own_bytes": 7},
    )
    assert summary([first, last]) == {
        "seconds": 10.0,
        "cpu": {
            "own_user_s": 15.0,
            "own_system_s": 1.0,
            "own_cores": 1.6,
            "busy": 0.75,
            "steal": 0.1,
            "throttled_s": 0.5,
        },
        "pressure": {"io": 0.1},
        "main": {"cpu": 0.9, "delay": 0.05},
        "memory": {"own_bytes": 7},
        "disk": {"read_bytes": 4096},
    }


def test_less_than_two_readings_have_no_summary() -> None:
    one = Reading(1.0, {"own_user_s": 1.0})
    assert summary([]) == summary([one]) == summary([one, one]) == {"seconds": 0.0}


def test_a_counter_that_was_reset_is_left_out() -> None:
    assert growth({"a": 5, "b": 1, "gone": 1}, {"a": 3, "b": 4, "new": 9}) == {"b": 3}


def test_memory_at_its_worst() -> None:
    readings = [
        Reading(at, {}, {"own_bytes": own, "available_bytes": 100 - own})
        for at, own in enumerate([99, 10, 30, 20])
    ]
    assert summary(readings)["memory"] == {"own_bytes": 30, "available_bytes": 70}


def test_an_interface_has_totals_and_its_fastest_interval() -> None:
    readings = [
        ({"eth0": (0, 0), "idle": (5, 5), "again": (9, 9)}, 0.0),
        ({"eth0": (100, 10), "idle": (5, 5), "again": (0, 0)}, 1.0),
        ({"eth0": (400, 10), "idle": (5, 5), "again": (1, 1), "new": (7, 7)}, 1.5),
        ({"eth0": (410, 30), "idle": (5, 5), "again": (2, 2), "new": (8, 8)}, 3.0),
    ]
    figures = summary([Reading(at, {}, {}, counts, at) for counts, at in readings])
    assert figures["network"] == {
        "eth0": {
            "rx_bytes": 410,
            "tx_bytes": 30,
            "rx_peak_bytes_per_s": 600.0,
            "tx_peak_bytes_per_s": 13.3,
        }
    }


def test_a_summary_of_the_real_machine_is_json() -> None:
    source = Machine()
    first = source.read()
    sum(range(100_000))
    last = source.read()
    source.close()
    assert json.loads(json.dumps(summary([first, last])))["seconds"] >= 0


def test_the_age_of_this_process_grows_with_the_clock() -> None:
    before, begin = seconds_since_start(), time.monotonic()
    time.sleep(0.1)
    assert seconds_since_start() - before == pytest.approx(time.monotonic() - begin, abs=0.05)
