"""Packing as a SLURM array: the suite of all places."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.conftest import Desk
from pack_conformance import PackConformance, PackPlace

pytestmark = [pytest.mark.exact, pytest.mark.timeout(600)]


class OnSlurm:
    """Two tasks on nodes n1 and n2."""

    forms = ("folder", "list")

    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    def words(self, source: Path, out: Path, shard_images: int) -> list[str]:
        words = ["pack", str(source), str(out), "--shard-images", str(shard_images)]
        return [*words, "--on", "slurm", "--tasks", "2", "--site", "/dev/null", "--time", "10"]

    def pack(self, source: Path, out: Path, shard_images: int) -> None:
        code, printed = self.desk.stoker(*self.words(source, out, shard_images), "--wait")
        assert code == 0, printed + self.desk.everything()

    def pack_with_a_kill(self, source: Path, out: Path, shard_images: int) -> None:
        self.desk.submit(*self.words(source, out, shard_images))
        self.desk.wait(lambda: list(out.glob("*/*.tar")))
        self.desk.cluster.kill_node("n2")
        self.desk.cluster.start_node("n2")
        self.pack(source, out, shard_images)


class TestPackingOnSlurm(PackConformance):
    @pytest.fixture
    def place(self, desk: Desk) -> PackPlace:
        return OnSlurm(desk)
