"""The limits of a container: the smallest on the way from the process's own group to the root."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.host.limits import (
    GB,
    MEMORY_SHARE,
    allowed_memory,
    cgroup_cores,
    cgroups,
    usable_cores,
    usable_memory,
)

NONE = 1 << 50
GIB = 1 << 30


@pytest.fixture
def groups(tmp_path: Path) -> Path:
    """root/slice/job/step, and a group beside it that does not matter."""
    (tmp_path / "cgroup" / "slice" / "job" / "step").mkdir(parents=True)
    other = tmp_path / "cgroup" / "slice" / "other"
    other.mkdir()
    (other / "cpu.max").write_text("100000 100000\n")
    (other / "memory.max").write_text("1\n")
    own = tmp_path / "own"
    own.write_text("12:cpu,cpuacct:/somewhere/else\n0::/slice/job/step\n")
    (tmp_path / "meminfo").write_text("MemFree: 1 kB\nMemTotal:       67108864 kB\n")
    return tmp_path / "cgroup"


def limit(groups: Path, below: str, name: str, text: str) -> None:
    (groups / below / name).write_text(text)


def cores(groups: Path) -> int:
    return cgroup_cores(str(groups), str(groups.parent / "own"))


def memory(groups: Path, machine: str = "meminfo") -> int:
    paths = str(groups), str(groups.parent / "own"), str(groups.parent / machine)
    return usable_memory(*paths)


PLACES = ["", "slice", "slice/job", "slice/job/step"]


class TestCores:
    @pytest.mark.parametrize("below", PLACES)
    def test_a_quota_anywhere_above_counts(self, groups: Path, below: str) -> None:
        limit(groups, below, "cpu.max", "300000 100000\n")
        assert cores(groups) == 3

    def test_the_smallest_wins(self, groups: Path) -> None:
        for below, quota in zip(PLACES, ("max", "800000", "200000", "400000"), strict=True):
            limit(groups, below, "cpu.max", f"{quota} 100000\n")
        assert cores(groups) == 2

    @pytest.mark.parametrize("text", ["max 100000\n", "", "soon", "1 2 3", "x 100000"])
    def test_what_is_no_number_is_no_limit(self, groups: Path, text: str) -> None:
        limit(groups, "slice", "cpu.max", text)
        assert cores(groups) >= 100_000

    def test_at_least_one_core(self, groups: Path) -> None:
        limit(groups, "slice", "cpu.max", "1000 100000\n")
        assert cores(groups) == 1
        assert usable_cores() >= 1


class TestMemory:
    def test_without_a_limit_it_is_the_machines(self, groups: Path) -> None:
        assert memory(groups) == 64 * GIB

    @pytest.mark.parametrize("below", PLACES)
    def test_a_limit_anywhere_above_counts(self, groups: Path, below: str) -> None:
        limit(groups, below, "memory.max", f"{3 * GIB}\n")
        assert memory(groups) == 3 * GIB

    def test_the_smallest_wins(self, groups: Path) -> None:
        for below, text in zip(PLACES, ("max", f"{8 * GIB}", f"{2 * GIB}", "max"), strict=True):
            limit(groups, below, "memory.max", text)
        assert memory(groups) == 2 * GIB

    def test_a_limit_above_the_machines_memory_does_not_make_more(self, groups: Path) -> None:
        limit(groups, "slice", "memory.max", f"{1000 * GIB}")
        assert memory(groups) == 64 * GIB

    @pytest.mark.parametrize("text", ["max\n", "", "plenty"])
    def test_what_is_no_number_is_no_limit(self, groups: Path, text: str) -> None:
        limit(groups, "slice/job", "memory.max", text)
        assert memory(groups) == 64 * GIB

    @pytest.mark.parametrize("text", ["", "MemFree: 3 kB\n", "MemTotal: lots kB\n"])
    def test_a_machine_without_a_total(self, groups: Path, text: str) -> None:
        (groups.parent / "odd").write_text(text)
        assert memory(groups, "odd") == memory(groups, "nowhere") == NONE


@pytest.mark.parametrize("line", ["0::/", "0::/../..", "0::/gone/away", "", "nonsense"])
def test_a_group_that_is_not_there_leaves_the_roots_limit(groups: Path, line: str) -> None:
    """As in a container that sees its own group as the root, or another's path."""
    (groups.parent / "own").write_text(line)
    limit(groups, "", "cpu.max", "200000 100000\n")
    limit(groups, "", "memory.max", f"{5 * GIB}\n")
    assert cores(groups) == 2
    assert memory(groups) == 5 * GIB


def test_no_list_of_groups_leaves_the_roots_limit(groups: Path) -> None:
    (groups.parent / "own").unlink()
    limit(groups, "", "memory.max", f"{5 * GIB}\n")
    assert memory(groups) == 5 * GIB


def test_a_controller_may_have_a_tree_of_its_own(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("4:memory:/one/two\n1:cpu,cpuacct:/../three\nodd\n0::/slice\n")
    folders = [cgroups("/groups", str(own), tree) for tree in ("", "memory", "cpu", "pids")]
    assert [[str(folder) for folder in tree] for tree in folders] == [
        ["/groups/slice", "/groups"],
        ["/groups/memory/one/two", "/groups/memory/one", "/groups/memory"],
        ["/groups/cpu/three", "/groups/cpu"],
        ["/groups/pids"],
    ]


@pytest.mark.parametrize(
    ("max_ram_gb", "ranks", "allowed"),
    [
        (0.0, 1, int(64 * GB * MEMORY_SHARE)),
        (0.0, 8, int(64 * GB * MEMORY_SHARE / 8)),
        (10.0, 1, 10 * GB),
        (10.0, 4, 10 * GB // 4),
        (100.0, 1, 100 * GB),
    ],
)
def test_the_ranks_of_a_host_share_the_allowed_memory(
    max_ram_gb: float, ranks: int, allowed: int
) -> None:
    assert allowed_memory(max_ram_gb, 64 * GB, ranks) == allowed
