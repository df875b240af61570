"""The stores behave as other tests rely on: conditions, ranges, the log, and a clean end."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fault_proxy import FaultProxy
from integration.namespaces import Cluster, ip
from integration.namespaces import missing as missing_namespaces
from object_store import (
    Gateway,
    Server,
    azurite,
    ceph,
    missing_azurite,
    missing_ceph,
    missing_rclone,
    plain_http,
    rclone_s3,
)
from waiting import until

obstore = pytest.importorskip("obstore", reason="no obstore: pip install obstore")
from obstore.exceptions import (  # noqa: E402
    AlreadyExistsError,
    GenericError,
    PermissionDeniedError,
    PreconditionError,
)
from obstore.store import AzureStore, HTTPStore, S3Store  # noqa: E402

ONCE: Any = {"max_retries": 0}


def s3(server: Server, bucket: str, endpoint: str | None = None) -> Any:
    """A client that never asks twice, from the environment that the server gives."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.variables.items():
            patch.setenv(name, value)
        place: dict[str, Any] = {"endpoint": endpoint} if endpoint else {}
        return S3Store(bucket, retry_config=ONCE, **place)


def held(store: Any, key: str) -> bytes:
    return bytes(obstore.get(store, key).bytes())


def tag(store: Any, key: str) -> str:
    """As this Ceph compares it in a PUT: without its quotes."""
    return str(obstore.head(store, key)["e_tag"]).strip('"')


def test_ceph_keeps_to_conditions(gateway: Gateway, bucket: str) -> None:
    store = s3(gateway, bucket)
    obstore.put(store, "a/key", b"first", mode="create")
    with pytest.raises(AlreadyExistsError):
        obstore.put(store, "a/key", b"second", mode="create")
    assert held(store, "a/key") == b"first"
    old = tag(store, "a/key")
    obstore.put(store, "a/key", b"third", mode={"e_tag": old})
    with pytest.raises(PreconditionError):
        obstore.put(store, "a/key", b"fourth", mode={"e_tag": old})
    assert held(store, "a/key") == b"third"


def test_ceph_writes_down_what_it_served(gateway: Gateway, bucket: str) -> None:
    store = s3(gateway, bucket)
    obstore.put(store, "a b/ü", bytes(1000))
    obstore.get_range(store, "a b/ü", start=100, length=50)
    held(store, "a b/ü")

    def served() -> list[tuple[str, str | None, int, int, str]]:
        rows = [row for row in gateway.requests() if row.bucket == bucket]
        return [(row.key, row.range, row.status, row.bytes, row.client) for row in rows]

    until(lambda: len(served()) == 2)
    assert served() == [
        ("a b/ü", "bytes=100-149", 206, 50, "127.0.0.1"),
        ("a b/ü", None, 200, 1000, "127.0.0.1"),
    ]


def test_ceph_refuses_a_wrong_key(gateway: Gateway, bucket: str) -> None:
    wrong = {**gateway.variables, "AWS_SECRET_ACCESS_KEY": "another"}
    with pytest.raises(PermissionDeniedError):
        held(s3(Server(gateway.endpoint, wrong, gateway.programs), bucket), "key")


def test_a_signed_request_passes_through_the_proxy(
    gateway: Gateway, bucket: str, proxy: FaultProxy
) -> None:
    store = s3(gateway, bucket, proxy.endpoint)
    obstore.put(store, "key", b"0123456789")
    obstore.put(store, "large", bytes(12 << 20), use_multipart=True)
    assert obstore.head(store, "large")["size"] == 12 << 20
    assert bytes(obstore.get_range(store, "key", start=2, length=3)) == b"234"
    proxy.fault("other_object", other=f"{bucket}/large")
    assert held(store, "key") == bytes(12 << 20)
    proxy.fault("ignored_range")
    with pytest.raises(GenericError, match="non-partial"):
        obstore.get_range(store, "key", start=2, length=3)
    proxy.fault("lost_answer", method="PUT")
    with pytest.raises(GenericError):
        obstore.put(store, "new", b"there", mode="create")
    assert held(store, "new") == b"there"


def test_rclone_ignores_conditions_and_ranges() -> None:
    if reason := missing_rclone():
        pytest.skip(reason)
    with rclone_s3() as server:
        store = s3(server, server.make_bucket("bucket"))
        obstore.put(store, "key", b"first", mode="create")
        obstore.put(store, "key", b"second", mode="create")
        assert held(store, "key") == b"second"
        obstore.put(store, "key", b"third", mode={"e_tag": "0" * 32})
        assert held(store, "key") == b"third"
        with pytest.raises(GenericError, match="non-partial"):
            obstore.get_range(store, "key", start=1, length=2)


def test_azurite_keeps_to_conditions(monkeypatch: pytest.MonkeyPatch) -> None:
    if reason := missing_azurite():
        pytest.skip(reason)
    with azurite() as server:
        for name, value in server.variables.items():
            monkeypatch.setenv(name, value)
        store = AzureStore(server.make_bucket("bucket"), retry_config=ONCE)
        obstore.put(store, "key", b"first", mode="create")
        with pytest.raises(AlreadyExistsError):
            obstore.put(store, "key", b"second", mode="create")
        old = tag(store, "key")
        obstore.put(store, "key", b"third", mode={"e_tag": old})
        with pytest.raises(PreconditionError):
            obstore.put(store, "key", b"fourth", mode={"e_tag": old})
        assert bytes(obstore.get_range(store, "key", start=1, length=2)) == b"hi"


def test_a_plain_web_server_answers_ranges(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "dataset.json").write_bytes(b'{"a": 1}')
    with plain_http(tmp_path) as server:
        options: Any = {"allow_http": True}
        store = HTTPStore(f"{server.endpoint}/set", client_options=options, retry_config=ONCE)
        assert held(store, "dataset.json") == b'{"a": 1}'
        assert bytes(obstore.get_range(store, "dataset.json", start=1, length=3)) == b'"a"'
        with pytest.raises(FileNotFoundError):
            held(store, "none")
        assert server.asked[1] == ("GET", "/set/dataset.json", "bytes=1-3")


def processes_in(folder: Path) -> list[int]:
    """Processes that work in a folder or below it."""
    pids = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdecimal() and (entry / "cwd").readlink().is_relative_to(folder):
                pids.append(int(entry.name))
    return pids


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short path: those of sockets are limited."""
    with tempfile.TemporaryDirectory(prefix="stk-") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


@pytest.mark.skipif(missing_ceph() is not None, reason=str(missing_ceph()))
class TestEnd:
    def test_nothing_is_left(self, temporary: Path) -> None:
        with ceph() as one, ceph() as two:
            assert one.endpoint != two.endpoint
            assert one.make_bucket("same") == two.make_bucket("same")
            assert len(processes_in(temporary)) == 6
        assert not processes_in(temporary)
        assert not list(temporary.iterdir())

    def test_nothing_is_left_of_a_start_that_fails(self, temporary: Path) -> None:
        with pytest.raises(AssertionError, match="ceph-mon"), ceph(address="192.0.2.1"):
            pass
        assert not processes_in(temporary)
        assert not list(temporary.iterdir())

    def test_namespaces_reach_it(self, temporary: Path) -> None:
        if reason := missing_namespaces():
            pytest.skip(reason)
        machines = Cluster(1)
        try:
            switch = ("-n", machines.switch)
            ip(*switch, "link", "set", "lo", "up")
            ip(*switch, "addr", "add", "10.77.0.100/24", "dev", "br0")
            inside = ("ip", "netns", "exec", machines.switch)
            with ceph("10.77.0.100", inside) as server:
                server.make_bucket("bucket")
                (node,) = machines.machines
                log = temporary / "printed"
                program = (str(Path(__file__).parents[1] / "object_store.py"),)
                asked = [server.endpoint, "another"]
                assert node.start(asked, temporary, log, program).wait(60) == 0, log.read_text()
        finally:
            machines.remove()
