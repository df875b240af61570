"""Lists of URLs: what comes is packed, what does not is named, and nothing is asked for twice."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from faulty_http import FAULTS, Answer, FaultyServer
from packing import as_folder, jpeg, run_pack, same_set, shards, start_pack
from stoker.data.dataset import Dataset
from stoker.data.packing import pack as packing
from stoker.data.packing import source as sources
from stoker.data.packing.shard import ShardReport
from stoker.data.packing.staging import CHUNK_IMAGES
from stoker.data.sources.download import DownloadLimits
from stoker.data.sources.http import PRIVATE_REASONS
from stoker.errors import BAD_REQUEST, BadRequest, StokerError

PHOTOS = [jpeg(label, label, (12, 10)) for label in range(5)]
BRISK = DownloadLimits(tries=3, first_wait_s=0.01, max_bytes=1 << 20)
"""Whoever is asked may take its time: on a busy machine an answer is late, and still the first."""
HURRIED = replace(BRISK, total_s=1.5)
"""For what never comes."""
FLAG = "--allow-private-addresses"
pack = partial(packing.pack, allow_private_addresses=True)
"""The server of these tests is on this machine."""
gate = threading.Event()
"""Until it is set, `gated` photos do not come."""


def photo(answer: Answer, rest: str) -> None:
    """/photo/LABEL/..."""
    answer.reply(PHOTOS[int(rest.split("/")[0])], Content_Type="image/jpeg")


def photo_after(answer: Answer, rest: str) -> None:
    """/photo-after/STATUS/TIMES/LABEL/...: so often this status first."""
    status, times, tail = rest.split("/", 2)
    if answer.asked() <= int(times):
        answer.reply(b"", int(status))
    else:
        photo(answer, tail)


def gated(answer: Answer, rest: str) -> None:
    while not gate.wait(0.05):
        answer.pause(0)
    photo(answer, rest)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyServer]:
    for name, fault in (("photo", photo), ("photo-after", photo_after), ("gated", gated)):
        monkeypatch.setitem(FAULTS, name, fault)
    gate.clear()
    made = FaultyServer()
    yield made
    gate.set()
    made.close()


def with_flag(limits: DownloadLimits, *, allow_private: bool, **more: object) -> DownloadLimits:
    """These limits; whether private addresses are allowed is still the caller's choice."""
    return replace(limits, allow_private=allow_private)


@pytest.fixture
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "DownloadLimits", partial(with_flag, BRISK))


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "DownloadLimits", partial(with_flag, HURRIED))


def url_list(file: Path, urls: list[str], labels: list[str] | None = None) -> Path:
    """A CSV of URLs; the class is the second word of a path unless it is given."""
    labels = labels or [f"class{url.split('/')[4]}" for url in urls]
    lines = [f"{url},{label}" for url, label in zip(urls, labels, strict=True)]
    file.write_text("\n".join(["url,label", *lines]))
    return file


def photos(server: FaultyServer, count: int, word: str = "photo") -> list[str]:
    return [server.url(f"{word}/{number % 2}/{number}") for number in range(count)]


def reasons(packed: Path, server: FaultyServer) -> dict[str, str]:
    """Reason by the first word of the path."""
    rows = pq.read_table(packed / "rejected.parquet").to_pylist()
    start = len(server.url(""))
    return {row["path"][start:].split("/")[0]: row["reason"] for row in rows}


BAD = {
    "status/404": "download: 404 Not Found",
    "status/500": "download: 500 Internal Server Error",
    "html": "download: text/html is not an image",
    "json": "download: application/ld+json is not an image",
    "endless": "download: larger than 1 MiB",
    "reset": "download: connection lost",
    "fine": "not an image of a known kind",
}


@pytest.mark.usefixtures("brisk")
class TestWhatComes:
    def test_is_what_a_folder_would_hold(self, server: FaultyServer, tmp_path: Path) -> None:
        urls = photos(server, 20)
        out = pack(url_list(tmp_path / "l.csv", urls), tmp_path / "out", workers=1)
        assert Dataset(out).description["report"]["images"] == {"train": 18, "val": 2}
        split = Dataset(out).split("train")
        for sample in range(len(split)):
            assert bytes(split.bytes_of(sample)) == PHOTOS[split.labels[sample]]
        paths = pq.read_table(out / "train" / "index.parquet").column("path").to_pylist()
        assert set(paths) <= set(urls)

    def test_what_does_not_come_is_a_row_with_its_reason(
        self, server: FaultyServer, tmp_path: Path
    ) -> None:
        urls = [*photos(server, 6), *map(server.url, BAD), server.url("photo-after/503/2/1/x")]
        file = url_list(tmp_path / "l.csv", urls, [f"class{n % 2}" for n in range(len(urls))])
        with pytest.raises(StokerError, match=r"2 of 14 downloads failed.*--allow-missing"):
            pack(file, tmp_path / "out", workers=1, val_share=0)
        assert not Dataset.is_packed(tmp_path / "out")
        assert server.asked["/status/404"] == 1
        assert server.asked["/status/500"] == BRISK.tries
        out = pack(file, tmp_path / "out", workers=1, val_share=0, allow_missing=True)
        found = reasons(out, server)
        assert {
            path: found[path.split("/")[0]].split(" (")[0] for path in BAD if path[0] != "s"
        } == {path: reason for path, reason in BAD.items() if path[0] != "s"}
        rows = pq.read_table(out / "rejected.parquet").to_pylist()
        by_path = {row["path"]: row["reason"] for row in rows}
        assert by_path[server.url("status/404")] == BAD["status/404"]
        assert by_path[server.url("status/500")] == BAD["status/500"]
        assert len(rows) == len(BAD)
        assert Dataset(out).images("train") == 7

    def test_a_second_run_asks_for_nothing(self, server: FaultyServer, tmp_path: Path) -> None:
        file = url_list(tmp_path / "l.csv", [*photos(server, 8), server.url("status/1/500")])
        out = pack(file, tmp_path / "out", workers=1, allow_missing=True)
        before, asked = shards(out), Counter(server.asked)
        os.utime(file)  # as if it were fetched again: the cache alone must not be what saves us
        for _ in range(2):
            pack(file, out, workers=1)
        assert server.asked == asked
        assert shards(out) == before

    def test_another_list_is_another_set(self, server: FaultyServer, tmp_path: Path) -> None:
        out = pack(url_list(tmp_path / "l.csv", photos(server, 8)), tmp_path / "out", workers=1)
        asked = Counter(server.asked)
        with pytest.raises(BadRequest, match="another packed set"):
            pack(url_list(tmp_path / "l.csv", photos(server, 9)), out, workers=1)
        assert server.asked == asked

    def test_paths_among_urls_are_refused(self, server: FaultyServer, tmp_path: Path) -> None:
        urls = [*photos(server, 2), "photos/a.jpg"]
        with pytest.raises(BadRequest, match="mixes paths and URLs"):
            pack(url_list(tmp_path / "l.csv", urls, ["a"] * 3), tmp_path / "out", workers=1)
        assert not server.asked

    def test_a_row_without_a_url_is_named(self, server: FaultyServer, tmp_path: Path) -> None:
        urls = [*photos(server, 4), ""]
        file = url_list(tmp_path / "l.csv", urls, ["a", "b"] * 2 + ["a"])
        out = pack(file, tmp_path / "out", workers=1, val_share=0)
        (entry,) = Dataset(out).description["report"]["ignored"]
        assert entry["reason"] == "row without an image"
        assert Dataset(out).images("train") == 4

    def test_a_label_that_is_not_utf8(self, server: FaultyServer, tmp_path: Path) -> None:
        labels = (b"caf\xe9", b"bar") * 2
        urls = photos(server, 4)
        lines = [f"{url},".encode() + label for url, label in zip(urls, labels, strict=True)]
        (tmp_path / "l.csv").write_bytes(b"\n".join([b"url,label", *lines]))
        out = pack(tmp_path / "l.csv", tmp_path / "out", workers=1)
        assert Dataset(out).classes == ["bar", "caf\\xe9"]

    def test_a_password_is_kept_nowhere(self, server: FaultyServer, tmp_path: Path) -> None:
        urls = [*photos(server, 6), server.url("status/404")]
        secret = [url.replace("http://", "http://bob:hunter2@") for url in urls]
        file = url_list(tmp_path / "l.csv", secret, ["a", "b"] * 3 + ["a"])
        out = tmp_path / "out"
        code, said = run_pack(file, out, "--workers", "1", FLAG)
        assert code == 0, said
        assert any("Authorization" in headers for headers in server.headers_seen)
        assert "hunter2" not in said
        written = [path for path in out.rglob("*") if path.is_file()]
        assert [path.name for path in written if b"hunter2" in path.read_bytes()] == []

    def test_parquet_with_splits(self, server: FaultyServer, tmp_path: Path) -> None:
        urls, words = photos(server, 12), ["train", "train", "test"] * 4
        table = pa.table({"image_url": urls, "class": [0, 1, 0] * 4, "split": words})
        pq.write_table(table, tmp_path / "l.parquet")
        out = pack(tmp_path / "l.parquet", tmp_path / "out", workers=1)
        assert Dataset(out).description["report"]["images"] == {"train": 8, "test": 4}

    def test_a_list_without_one_image_is_refused(
        self, server: FaultyServer, tmp_path: Path
    ) -> None:
        urls = [server.url(f"status/404/{n}") for n in range(4)]
        with pytest.raises(BadRequest, match="404 Not Found"):
            pack(url_list(tmp_path / "l.csv", urls, ["a", "b"] * 2), tmp_path / "out", workers=1)


@pytest.mark.exact
class TestPrivateAddresses:
    def test_a_list_of_nothing_else_needs_the_flag(
        self, server: FaultyServer, tmp_path: Path
    ) -> None:
        file, out = url_list(tmp_path / "l.csv", photos(server, 8)), tmp_path / "out"
        code, output = run_pack(file, out, "--workers", "1")
        assert (code, FLAG in output.splitlines()[-1]) == (BAD_REQUEST, True), output
        assert (server.connections, out.exists()) == (0, False)
        code, output = run_pack(file, out, "--workers", "1", FLAG)
        assert code == 0, output
        assert Dataset(out).images("train") == 6

    def test_among_others_each_is_a_row_with_its_reason(
        self, server: FaultyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("http_proxy", server.url(""))
        monkeypatch.setenv("no_proxy", "")
        server.places = ["http://192.168.0.9/photo/1/9"]
        urls = [f"http://pictures.invalid/photo/{n % 2}/{n}" for n in range(8)]
        inside = ["http://10.0.0.7/photo/0/8", "http://pictures.invalid/to/0"]
        file = url_list(tmp_path / "l.csv", urls + inside, ["class0", "class1"] * 5)
        out = packing.pack(file, tmp_path / "out", workers=1, val_share=0)
        rows = pq.read_table(out / "rejected.parquet").to_pylist()
        assert {row["path"]: row["reason"] for row in rows} == dict(
            zip(inside, PRIVATE_REASONS, strict=True)
        )
        with pytest.raises(BadRequest, match="another packed set"):
            pack(file, out, workers=1, val_share=0)

    def test_with_the_flag_only_the_refused_are_downloaded_again(
        self, server: FaultyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("http_proxy", server.url(""))
        monkeypatch.setenv("no_proxy", "")
        urls = [f"http://pictures.invalid/photo/{n % 2}/{n}" for n in range(CHUNK_IMAGES)]
        urls += ["http://10.0.0.7/photo/0/x", "http://pictures.invalid/photo/1/y"]
        file = url_list(tmp_path / "l.csv", urls)
        options = {"workers": 1, "progress": stop_after(2)}
        with pytest.raises(StopHere):
            packing.pack(file, tmp_path / "out", **options)  # type: ignore[arg-type]
        out = pack(file, tmp_path / "out", workers=1)
        assert not reasons(out, server)
        assert server.asked["/photo/0/0"] == 1
        assert server.asked["/photo/0/x"] == 1


@pytest.mark.usefixtures("hurried")
def test_what_never_ends_is_a_row_with_its_reason(server: FaultyServer, tmp_path: Path) -> None:
    urls = [*photos(server, 2), server.url("drip")]
    file = url_list(tmp_path / "l.csv", urls, ["class0", "class1", "class0"])
    out = pack(file, tmp_path / "out", workers=1, val_share=0, allow_missing=True)
    assert reasons(out, server)["drip"].split(" (")[0] == "download: timed out"


class StopHere(Exception):
    pass


def stop_after(chunks: int) -> Callable[[ShardReport, int, int], None]:
    """Progress that stops a pack after so many chunks."""
    reports: list[ShardReport] = []

    def progress(report: ShardReport, done: int, total: int) -> None:
        reports.append(report)
        if len(reports) == chunks:
            raise StopHere

    return progress


@pytest.mark.usefixtures("brisk")
def test_failures_that_may_pass_are_tried_again_by_a_resumed_pack(
    server: FaultyServer, tmp_path: Path
) -> None:
    urls = [
        *photos(server, CHUNK_IMAGES - 2),
        server.url(f"photo-after/503/{BRISK.tries}/1/late"),
        server.url("status/404/gone"),
        *photos(server, CHUNK_IMAGES, "gated"),
        server.url("photo/0/last"),
    ]
    gate.set()
    file = url_list(tmp_path / "l.csv", urls, [f"c{n % 2}" for n in range(len(urls))])
    with pytest.raises(StopHere):
        pack(file, tmp_path / "out", workers=1, progress=stop_after(1))
    assert server.asked[f"/photo-after/503/{BRISK.tries}/1/late"] == BRISK.tries
    out = pack(file, tmp_path / "out", workers=1)
    assert reasons(out, server) == {"status": "download: 404 Not Found"}
    # The second chunk had not one failure, and was done before the stop or was not: never twice.
    asked = [server.asked[f"/gated/{n % 2}/{n}"] for n in range(CHUNK_IMAGES)]
    assert set(asked) in ({1}, {2})


def settled(server: FaultyServer) -> Counter[str]:
    """What was asked, once the server has read what a killed process had sent, too."""
    before: Counter[str] = Counter()
    while (asked := Counter(server.asked)) != before or server.now[""]:
        before = asked
        time.sleep(0.3)
    return asked


def test_after_a_kill_only_what_is_not_staged_is_fetched(
    server: FaultyServer, tmp_path: Path
) -> None:
    count = CHUNK_IMAGES
    first = [*photos(server, count), *(f"{url}b" for url in photos(server, count))]
    urls = [*first, *photos(server, 60, "gated")]
    file = url_list(tmp_path / "l.csv", urls)
    flags, out = ("--workers", "1", FLAG), tmp_path / "out"
    process = start_pack(file, out, *flags)
    staged = out / ".parts" / ".parts" / "stage-00001.parquet"
    give_up = time.monotonic() + 240
    while not staged.exists():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < give_up
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    gate.set()
    asked = settled(server)
    assert {asked[url[len(server.url("")) - 1 :]] for url in first} == {1}

    code, said = run_pack(file, out, *flags)
    assert code == 0, said
    again = server.asked - asked
    assert {path for path in again if path.startswith("/photo")} == set()
    assert sum(again.values()) == 60

    asked = Counter(server.asked)
    code, said = run_pack(file, out, *flags)
    assert (code, said.startswith("packed already")) == (0, True), said
    assert server.asked == asked
    whole = as_folder(
        tmp_path / "photos",
        [(f"class{url.split('/')[4]}/{n:09d}.jpg", PHOTOS[n % 2]) for n, url in enumerate(urls)],
    )
    assert same_set(out, pack(whole, tmp_path / "whole", workers=1))
