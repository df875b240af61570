"""Where the set of a run is read from: a place that only the file of a run names gets no request,
and so no credentials."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from exports import tiny_run
from stoker.cli import main
from stoker.errors import BAD_REQUEST, FINISHED
from stoker.stores.location import location_of
from stoker.stores.settings import note_named, was_named
from tiny_runs import one_thread_alone

__all__ = ["one_thread_alone"]
pytest.importorskip("obstore", reason="no obstore: pip install obstore")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of a second and its set."""
    root = tmp_path_factory.mktemp("named")
    tiny_run(root, epochs=1)
    return root


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[str]]:
    """The paths that a server was asked for that has nothing. It stands for S3 and the web."""
    asked: list[str] = []

    class Nothing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, *words: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Nothing)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", address)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("STOKER_STORE_PATIENCE_S", "5")
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path / "cache"))
    try:
        yield asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(params=["s3", "http"])
def place(
    request: pytest.FixtureRequest,
    requests: list[str],
    made: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    """The place that the run in the working directory names as its set."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(made / "run", "run")
    place = "s3://other/x" if request.param == "s3" else f"{os.environ['AWS_ENDPOINT_URL']}/x"
    file = Path("run/run.json")
    file.write_text(json.dumps({**json.loads(file.read_text()), "data": place}))
    return place


def test_no_verb_asks_a_place_that_the_run_alone_names(
    made: Path, place: str, requests: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    image = next((made / "photos").rglob("*.png"))
    verbs = ("predict", "report", "export", "verify", "explain", "runs", "watch", "show-config")
    more = {"predict": [str(image)], "watch": ["--once"], "export": ["out", "--to", "torch"]}
    for verb in verbs:
        assert main([verb, "run", *more.get(verb, ())]) == FINISHED, verb
    assert "the run alone names that place" in Path("run/report.html").read_text()
    assert "generated" in capsys.readouterr().out  # the images that the program was compared on
    assert main(["evaluate", "run"]) == BAD_REQUEST
    assert main(["evaluate", "run", "--ranks", "2"]) == BAD_REQUEST
    printed = capsys.readouterr().err
    assert f"if you trust it, name it: stoker evaluate run {place}" in " ".join(printed.split())
    assert requests == []


def test_a_place_that_a_command_was_given_is_asked(
    place: str, requests: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", "run", place]) == BAD_REQUEST
    assert requests
    assert "is not a packed set" in capsys.readouterr().err
    requests.clear()
    assert main(["evaluate", "run"]) == BAD_REQUEST
    assert requests
    assert "is not a packed set" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "asked", "is_named"),
    [
        (None, "photos", True),
        (None, "/data/photos", True),
        (None, "s3://mine/x", False),
        ("s3://mine/runs/one", "s3://mine/sets/one", True),
        ("s3://mine/x", "s3://mine2/x", False),
        ("s3://mine/x", "gs://mine/x", False),
        ("http://host:80/x", "http://host:80/x", True),
        ("http://host:80/x", "http://host:80/y", False),
        ("http://host:80/x", "http://host:81/x", False),
    ],
)
def test_naming_one_place_of_a_bucket_names_the_bucket(
    given: str | None, asked: str, is_named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path / "cache"))
    if given and (location := location_of(given)):
        note_named(location)
    assert was_named(asked) == is_named


def test_a_cache_that_cannot_be_written_names_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").touch()
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path / "cache"))
    location = location_of("s3://mine/x")
    assert location
    note_named(location)
    assert not was_named("s3://mine/x")
