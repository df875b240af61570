"""One Ceph gateway for all tests here, a bucket and a proxy for each."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.trainers import Trainers
from fault_proxy import FaultProxy, fault_proxy
from object_store import Gateway, ceph, missing_ceph
from stoker.run.directory import Run
from stores.stored_runs import StoredRun, command
from tiny_runs import tiny_set

STORES = ("AWS_", "AZURE_", "GOOGLE_")


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No credentials, stores and proxies of the user's own."""
    for name in list(os.environ):
        if name.startswith(STORES) or name.lower() in ("http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def gateway() -> Iterator[Gateway]:
    if reason := missing_ceph():
        pytest.skip(reason)
    with ceph() as started:
        yield started


@pytest.fixture
def bucket(gateway: Gateway) -> str:
    return gateway.make_bucket(f"test-{uuid.uuid4().hex[:12]}")


@pytest.fixture
def proxy(gateway: Gateway) -> Iterator[FaultProxy]:
    """In front of the gateway."""
    with fault_proxy(gateway.endpoint, read=gateway.read) as started:
        yield started


@pytest.fixture(scope="session")
def trainers() -> Iterator[Trainers]:
    server = Trainers()
    yield server
    server.close()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A packed set of 60 tiny images."""
    return tiny_set(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def reference(trainers: Trainers, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same run in a folder, not interrupted."""
    run = Run(tmp_path_factory.mktemp("reference") / "run")
    assert trainers.train(command(tiny, run.path), run.path.parent / "log") == [0]
    return run


@pytest.fixture
def stored(
    gateway: Gateway, bucket: str, trainers: Trainers, tiny: Path, tmp_path: Path
) -> StoredRun:
    """A run that has not begun, in a bucket of its own."""
    return StoredRun(f"s3://{bucket}/mine", str(tiny), gateway.variables, trainers, tmp_path)
