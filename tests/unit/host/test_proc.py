from __future__ import annotations

import pytest

from stoker.host import proc

STAT = """cpu  100 20 30 400 50 6 7 8 9 10
cpu0 50 10 15 200 25 3 3 4 0 0
intr 12 0 0
btime 1700000000
"""
CPU_STAT_2 = """usage_usec 900
user_usec 600
system_usec 300
nr_periods 12
nr_throttled 5
throttled_usec 2500000
nr_bursts 0
"""
CPU_STAT_1 = "nr_periods 12\nnr_throttled 5\nthrottled_time 2500000000\n"
MEMINFO = "MemTotal:       24682740 kB\nMemAvailable:   24125684 kB\nHugePages_Total:       0\n"
PRESSURE = """some avg10=0.84 avg60=0.57 avg300=1.92 total=9626831
full avg10=0.00 avg60=0.00 avg300=0.00 total=7
"""
NET = """Inter-|   Receive                            |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs
    lo: 2423 45 0 0 0 0 0 0 2423 45 0 0 0 0 0 0
  eth0:33397 68 0 0 0 0 0 0 28043 40 0 0 0 0 0 0
eth0:1: 5 1 0 0 0 0 0 0 6 1 0 0 0 0 0 0
"""
CPUINFO = """processor\t: 0
model name\t: A processor: 2 GHz
flags\t\t: fpu avx2

processor\t: 1
model name\t: Another
"""
THREAD = "42 (a) b (c) S 1 42 42 0 -1 4194304 100 0 0 0 31 11 0 0 20 0 1 0 3558362 313 390\n"


def test_what_is_idle_or_stolen_is_not_busy() -> None:
    ticks = proc.machine_ticks(STAT)
    assert ticks == {"all": 621, "busy": 163, "idle": 400, "iowait": 50, "steal": 8}


def test_an_old_kernel_counts_less() -> None:
    assert proc.machine_ticks("cpu 1 2 3 4\n") == {"all": 10, "busy": 6, "idle": 4}
    assert proc.machine_ticks("cpu 1 2 3\n") == {}


@pytest.mark.parametrize("text", [CPU_STAT_2, CPU_STAT_1], ids=["version 2", "version 1"])
def test_both_versions_of_control_groups_count_throttling(text: str) -> None:
    assert proc.throttled(text) == {"throttled_s": 2.5, "throttled_times": 5}


def test_a_group_without_a_quota_has_no_throttling() -> None:
    assert proc.throttled("usage_usec 900\nuser_usec 600\n") == {}


def test_names_and_numbers() -> None:
    assert proc.fields(MEMINFO)["MemAvailable"] == 24125684
    assert proc.fields("read_bytes: 12\nodd\n\nbad: -3\nworse: x\n") == {"read_bytes": 12}
    assert proc.fields("read_bytes: 12\nwrite_bytes: 34") == {"read_bytes": 12}


def test_a_single_number() -> None:
    assert proc.single("4096\n") == 4096
    assert proc.single("max\n") is None
    assert proc.single("40") is None
    assert proc.single("") is None
    assert proc.single("²\n") is None


def test_pressure_is_that_of_some() -> None:
    assert proc.pressure_s(PRESSURE) == pytest.approx(9.626831)
    assert proc.pressure_s("full avg10=0.00 total=7\n") is None
    assert proc.pressure_s("some avg10=0.84 total=96") is None


def test_schedule_of_a_thread() -> None:
    assert proc.schedule_s("1500000000 250000000 17\n") == (1.5, 0.25)
    for odd in ("", "\n", "1 2\n", "1 2 3", "a b c\n"):
        assert proc.schedule_s(odd) is None


def test_a_thread_may_have_any_name() -> None:
    assert proc.thread_ticks(THREAD) == ("a) b (c", 42)
    for odd in ("", "42 (x", "42 x) S", "42 (x) S 1 2 3", THREAD[:60].rpartition(" 31")[0]):
        assert proc.thread_ticks(odd) is None


def test_the_start_of_a_process_and_of_the_machine() -> None:
    assert proc.start_ticks(THREAD) == 3558362
    assert proc.start_ticks(THREAD.partition(" 3558362")[0]) is None
    assert proc.uptime_s("8123.45 16000.10\n") == 8123.45
    assert proc.uptime_s("8123.4") is None


def test_fields_of_the_first_processor() -> None:
    assert proc.processor(CPUINFO) == {
        "processor": "0",
        "model name": "A processor: 2 GHz",
        "flags": "fpu avx2",
    }


def test_each_interface_receives_and_sends() -> None:
    assert proc.interface_bytes(NET) == {
        "lo": (2423, 2423),
        "eth0": (33397, 28043),
        "eth0:1": (5, 6),
    }


@pytest.mark.parametrize(
    "text", ["", "\n", "\x00\xff", "cpu", "some\n", ":\n", "(\n", ")(\n", "::::\n"]
)
def test_no_text_is_too_odd(text: str) -> None:
    assert not proc.machine_ticks(text)
    assert not proc.throttled(text)
    assert not proc.interface_bytes(text)
    assert proc.pressure_s(text) is None
    assert proc.schedule_s(text) is None
    assert proc.thread_ticks(text) is None
    assert proc.start_ticks(text) is None
    assert proc.uptime_s(text) is None
    assert proc.driver_version(text) is None
    assert not proc.processor(text).get("model name")
    assert proc.single(text) is None


@pytest.mark.parametrize(
    "text", [STAT, CPU_STAT_1, CPU_STAT_2, MEMINFO, PRESSURE, NET, THREAD, CPUINFO]
)
def test_a_text_that_is_cut_off_tells_less_and_nothing_wrong(text: str) -> None:
    for end in range(len(text)):
        cut = text[:end]
        assert proc.fields(cut).items() <= proc.fields(text).items()
        assert proc.interface_bytes(cut).items() <= proc.interface_bytes(text).items()
        assert proc.throttled(cut).items() <= proc.throttled(text).items()
        assert proc.processor(cut).items() <= proc.processor(text).items()
        assert proc.start_ticks(cut) in (None, proc.start_ticks(text))
        assert proc.machine_ticks(cut) in ({}, proc.machine_ticks(text))
        assert proc.pressure_s(cut) in (None, proc.pressure_s(text))
        assert proc.schedule_s(cut) in (None, proc.schedule_s(text))
        assert proc.thread_ticks(cut) in (None, proc.thread_ticks(text))
