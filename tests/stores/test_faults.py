"""A store that fails while a set is read: every fault is survived, or ends with one sentence.

The table is every fault of the proxy, at every kind of request, once, twice and for ever. What is
survived must give the batches of the local folder, byte for byte. What is not gives the sentence
that tests/golden/store_faults.txt has for it, in a few seconds. All of them are written again by

    STOKER_WRITE_GOLDEN=1 pytest tests/stores/test_faults.py --whole
"""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from fault_proxy import FAULTS, FaultProxy
from golden import FOLDER, WRITE
from object_store import SECRET, Gateway, plain_http
from samples import image_folder
from shares import share
from stoker.data.dataset import Dataset
from stoker.data.loading.torch_loader import Loader
from stoker.data.packing.pack import pack
from stoker.errors import INTERRUPTED, StokerError
from stoker.run.directory import Run
from stoker.stores.client import StoreClient
from stored_sets import copied, place_of
from waiting import until

pytest.importorskip("obstore", reason="no obstore: pip install obstore")
pytestmark = pytest.mark.exact

PLACES = {
    "dataset.json": ("GET", r".*/dataset\.json"),
    "index": ("GET", r".*/train/index\.parquet"),
    "HEAD": ("HEAD", r".*/train/index\.parquet"),
    "shard": ("GET", r".*/train/.*\.tar"),
    "image": ("GET", r".*/train/.*\.tar"),
    "batch": ("GET", r".*/train/.*\.tar"),
    "list": ("GET", r"[^/]*/?"),
}
"""The requests that meet a fault. A shard is fetched whole, one by one; an image is read by
a range, without a cache; a batch needs both, in many threads."""
OFTEN = {"once": 1, "twice": 2, "for ever": None}
PARTS = 10
"""The whole table takes ten minutes."""
ENDS_WITHIN_S = 30
"""Much more than a case takes, and much less than the patience of a user's process."""
NOT_FOR_HEAD = {
    *("reset_body", "half_body", "short_length", "truncated_ok", "wrong_bytes", "other_object"),
    *("stall_body", "ignored_range", "gzip"),
}
"""Faults of a body."""
BROKEN = "the connection broke off"
"""Or the next one is refused: a matter of moments."""
REFUSALS = {"expired", "denied", "no_bucket"}
"""Faults that end a run at once."""
UNSEEN = {"wrong_bytes", "other_object", "gzip", "short_length", "truncated_ok", "ignored_range"}
"""Faults that do nothing to a list, or that only its reader could notice."""
OPTIONS: dict[str, dict[str, Any]] = {
    "slow_first_byte": {"seconds": 0.1},
    "gone": {"seconds": 0.3},
}


@dataclass(frozen=True)
class Case:
    """A fault of some requests."""

    fault: str
    place: str
    often: str

    def __str__(self) -> str:
        return f"{self.fault}, {self.place}, {self.often}"

    @property
    def exists(self) -> bool:
        if self.fault == "lost_answer":  # of a write
            return False
        if self.place == "HEAD" and self.fault in NOT_FOR_HEAD:
            return False
        if self.place == "list" and self.fault in UNSEEN:
            return False
        # Which of its requests meets the fault first is a matter of time.
        return self.place != "batch" or (self.often != "for ever" and self.fault not in REFUSALS)

    @property
    def patience_s(self) -> float:
        """Long enough for what is survived, on a slow machine; short where it is used up."""
        return 2.0 if self.often == "for ever" else 8.0


TABLE = [Case(*words) for words in product(FAULTS, PLACES, OFTEN)]
CASES = [case for case in TABLE if case.exists]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """48 images in six shards."""
    root = tmp_path_factory.mktemp("set")
    folder = image_folder(root / "photos", classes=2, images=24)
    return pack(folder, root / "packed", workers=1, shard_images=8, val_share=0)


@pytest.fixture(scope="module")
def expected(packed: Path) -> str:
    return digest_of(str(packed))


@pytest.fixture
def location(
    gateway: Gateway,
    bucket: str,
    proxy: FaultProxy,
    packed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    """The set in a bucket that is reached through the proxy."""
    for name, value in gateway.variables.items():
        monkeypatch.setenv(name, value)
    place = f"s3://{bucket}/set"
    copied(packed, place)
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("STOKER_STORE_PATIENCE_S", "8")
    return place


def digest_of(data: str) -> str:
    """The hash of all batches of an epoch."""
    digest = hashlib.sha256()
    with Loader(data, batch_size=8, image_size=16, dtype="uint8", threads=2) as loader:
        for images, labels in loader:
            digest.update(images.numpy().tobytes())
            digest.update(labels.numpy().tobytes())
    return digest.hexdigest()


def use(place: str, location: str, packed: Path) -> None:
    """Make the requests of a place."""
    if place == "shard":
        split = Dataset(location).split("train")
        for number, shard in enumerate(split.shards):
            data = split.whole_shard(number)
            assert data.tobytes() == (packed / "train" / shard["name"]).read_bytes()
    if place == "list":
        listed = {entry.key: entry.bytes for entry in StoreClient(place_of(location)).list()}
        files = [path for path in packed.rglob("*") if path.is_file()]
        assert listed == {f.relative_to(packed).as_posix(): f.stat().st_size for f in files}


def sentence(text: str, bucket: str, folder: Path) -> str:
    """A message without what differs from run to run."""
    text = text.replace(bucket, "BUCKET").replace(str(folder), "FOLDER")
    text = re.sub(r"http://127\.0\.0\.1:\d+", "ENDPOINT", text)
    text = re.sub(r"\(tried \d+ times\)", "(tried N times)", text)
    text = re.sub(r"\b[0-9a-f]{16}\.\.\.", "HASH...", text)
    text = re.sub(r"has [\d,]+ bytes, not [\d,]+", "has M bytes, not N", text)
    text = text.replace("does not take connections", "is away").replace(
        BROKEN, "the server is away"
    )
    text = re.sub(r"an answer of [\d,]+ bytes instead of [\d,]+", "an answer of M bytes", text)
    return re.sub(r"sample \d+ is|\d{5}\.tar|at byte \d+|class\d/\d+", "...", text)


@pytest.fixture(scope="module")
def outcomes(whole: bool) -> Iterator[dict[str, str]]:
    """What each case of this run came to; kept where the environment says so."""
    came: dict[str, str] = {}
    yield came
    if os.environ.get(WRITE) and whole:
        lines = [f"{name}: {text}" for name, text in came.items()]
        (FOLDER / "store_faults.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def known() -> dict[str, str]:
    text = (FOLDER / "store_faults.txt").read_text(encoding="utf-8")
    return dict(line.split(": ", 1) for line in text.splitlines())


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        whole = bool(metafunc.config.getoption("--whole"))
        cases = share("store faults", CASES, PARTS, whole=whole)
        metafunc.parametrize("case", cases, ids=str)


def test_a_fault_is_survived_or_named(
    case: Case,
    proxy: FaultProxy,
    location: str,
    bucket: str,
    packed: Path,
    expected: str,
    outcomes: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STOKER_STORE_PATIENCE_S", str(case.patience_s))
    monkeypatch.setenv("STOKER_CACHE_GB", "0" if case.place == "image" else "1")
    method, key = PLACES[case.place]
    other = "train/index.parquet" if case.place == "dataset.json" else "dataset.json"
    options = {"other": f"{bucket}/set/{other}", **OPTIONS.get(case.fault, {})}
    proxy.fault(case.fault, method=method, key=key, times=OFTEN[case.often], **options)
    began = time.monotonic()
    try:
        use(case.place, location, packed)
        assert digest_of(location) == expected
        outcome = "survived"
    except StokerError as error:
        outcome = f"{error.exit_code}, {sentence(str(error), bucket, tmp_path)}"
    assert time.monotonic() - began < ENDS_WITHIN_S
    assert any(asked.done == case.fault for asked in proxy.asked)
    outcomes[str(case)] = outcome
    assert SECRET not in outcome
    assert outcome == "survived" or case.place != "batch"
    if not os.environ.get(WRITE):
        assert outcome == known()[str(case)]


def test_a_sentence_holds_no_secret() -> None:
    assert len(known()) == len(CASES)
    for file in FOLDER.glob("store*.txt"):
        assert SECRET not in file.read_text(encoding="utf-8")


def test_bytes_from_another_host_are_not_used(
    proxy: FaultProxy, location: str, packed: Path, tmp_path: Path
) -> None:
    """The client follows a redirection, and the hash tells what came from it."""
    split = Dataset(location).split("train")
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "a").write_bytes(bytes(split.shards[0]["bytes"]))
    with plain_http(tmp_path / "web") as server:
        elsewhere = f"{server.endpoint}/a"
        proxy.fault("redirect", key=PLACES["shard"][1], location=elsewhere)
        use("shard", location, packed)
        assert server.asked
        proxy.fault("redirect", key=PLACES["shard"][1], location=elsewhere, times=None)
        split.source.forget([0])
        with pytest.raises(StokerError, match="is damaged"):
            split.whole_shard(0)


def test_a_store_that_asks_for_fewer_requests_gets_fewer(proxy: FaultProxy, location: str) -> None:
    """Twelve threads ask again and again for six seconds, as those of a loader do."""
    client = StoreClient(place_of(location), patience_s=1)
    proxy.fault("slow_down", key=".*", times=None)
    end = time.monotonic() + 6

    def ask() -> None:
        while time.monotonic() < end:
            with suppress(StokerError):
                client.read_range("train/00000.tar", 0, memoryview(bytearray(10)))

    threads = [threading.Thread(target=ask) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(proxy.asked) < 150
    proxy.calm()
    client.read_range("train/00000.tar", 0, memoryview(bytearray(10)))


def test_a_store_that_is_gone_for_long_is_waited_for(
    whole: bool,
    proxy: FaultProxy,
    location: str,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if not whole:
        pytest.skip("waits for 30 s: runs with --whole")
    monkeypatch.delenv("STOKER_STORE_PATIENCE_S")
    proxy.fault("gone", key=PLACES["shard"][1], first=3, seconds=30)
    assert digest_of(location) == expected
    assert "trying again since" in capsys.readouterr().err


TINY = "--model resnet9_w2 --image-size 8 --batch-size 8 --crop pad --crop-pad 1 --threads 1"
SCRIPT = """
import sys, stoker
loader = stoker.Loader(sys.argv[1], batch_size=8, image_size=16)
for epoch in range(1000):
    for images, labels in loader:
        pass
"""


def stopped(
    command: list[str], printed: Path, number: signal.Signals, ready: Callable[[], object]
) -> int:
    """The exit code of a command that gets a signal when it is ready, in a few seconds."""
    with printed.open("wb") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        until(lambda: ready() or process.poll() is not None, 120)
        assert process.poll() is None, printed.read_text()
        began = time.monotonic()
        process.send_signal(number)
        code = process.wait(60)
        assert time.monotonic() - began < 25
        return code
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.mark.rotates(4)
@pytest.mark.parametrize("cached", ["1", "0"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_ends_training_while_the_store_is_gone(
    number: signal.Signals,
    cached: str,
    proxy: FaultProxy,
    location: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once the run has told of it."""
    monkeypatch.delenv("STOKER_STORE_PATIENCE_S")
    monkeypatch.setenv("STOKER_CACHE_GB", cached)
    proxy.fault("gone", key=PLACES["shard"][1], first=3, seconds=600)
    run = tmp_path / "run"
    words = [location, "--run", str(run), "--epochs", "40", *TINY.split()]

    printed, note = tmp_path / "printed", f"{location}: the server does not take connections; "
    command = [sys.executable, "-m", "stoker", "train", *words]
    code = stopped(command, printed, number, lambda: note in printed.read_text())
    assert code == INTERRUPTED, printed.read_text()
    notes = [row["words"] for row in Run(run).events() if row["kind"] == "note"]
    assert any(text.startswith(note) for text in notes)


@pytest.mark.rotates(2)
@pytest.mark.parametrize("fault", ["stall_body", "gone"])
def test_a_stop_ends_a_script_while_the_store_does_not_answer(
    fault: str,
    proxy: FaultProxy,
    location: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("STOKER_STORE_PATIENCE_S")
    rule = proxy.fault(fault, key=PLACES["shard"][1], first=2, times=None, seconds=600)
    printed = tmp_path / "printed"

    def ready() -> bool:
        return rule.seen > 2 if fault == "stall_body" else b"note: " in printed.read_bytes()

    command = [sys.executable, "-c", SCRIPT, location]
    assert stopped(command, printed, signal.SIGINT, ready) != 0
    text = printed.read_text()
    assert text.rstrip().endswith("KeyboardInterrupt"), text
