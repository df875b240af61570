"""Packing on this machine: the suite of all places."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from pack_conformance import PackConformance, PackPlace
from spark_cluster import children
from stoker.data.packing.pack import pack
from stoker.data.packing.shard import ShardReport
from stoker.errors import StokerError

pytestmark = pytest.mark.exact


class Here:
    """Two processes of this machine."""

    forms = ("folder", "list", "table", "archive")

    def pack(self, source: Path, out: Path, shard_images: int) -> None:
        pack(source, out, shard_images=shard_images, workers=2)

    def pack_with_a_kill(self, source: Path, out: Path, shard_images: int) -> None:
        before, killed = set(children(os.getpid())), []

        def kill(report: ShardReport, done: int, total: int) -> None:
            if not killed:
                killed.extend(set(children(os.getpid())) - before)
                os.kill(max(killed), signal.SIGKILL)

        with pytest.raises(StokerError, match="start the same command again"):
            pack(source, out, shard_images=shard_images, workers=2, progress=kill)
        self.pack(source, out, shard_images)


class TestPackingHere(PackConformance):
    @pytest.fixture
    def place(self) -> PackPlace:
        return Here()
