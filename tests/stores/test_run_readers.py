"""Every verb that takes a RUN takes one in a store."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from chaos.trainers import Trainers
from object_store import SECRET, Gateway
from shares import share
from stoker.survive.manifest import MARKER
from stores.stored_runs import StoredRun, command
from waiting import until

pytest.importorskip("obstore", reason="no obstore: pip install obstore")


@pytest.fixture(scope="module")
def ended(
    gateway: Gateway, trainers: Trainers, tiny: Path, tmp_path_factory: pytest.TempPathFactory
) -> StoredRun:
    """A short run, which has ended, with its report."""
    root = tmp_path_factory.mktemp("readers")
    place = f"s3://{gateway.make_bucket('readers')}/runs/mine"
    stored = StoredRun(place, str(tiny), gateway.variables, trainers, root)
    argv = [word for word in command(tiny, place, 3) if word != "--no-report"]
    assert trainers.train(argv, stored.log, variables=stored.machine("a")) == [0], stored.printed()
    return stored


def stoker(stored: StoredRun, *words: str, code: int = 0) -> str:
    """What a command prints on a machine that has only the store."""
    done = subprocess.run(
        [sys.executable, "-m", "stoker", *words],
        cwd=stored.root,
        env={**os.environ, **stored.machine("reader")},
        capture_output=True,
        text=True,
        timeout=240,
    )
    printed = done.stdout + done.stderr
    assert done.returncode == code, printed
    assert "Traceback" not in printed and SECRET not in printed
    return " ".join(printed.split())


def image(stored: StoredRun) -> str:
    return next(str(path) for path in Path(stored.data).parent.rglob("*.png"))


READERS: dict[str, tuple[Callable[[StoredRun], list[str]], str]] = {
    "explain": (lambda run: ["explain", run.place], "finished: step 11 of 11"),
    "explain, several": (lambda run: ["explain", run.place, run.place], "mine resnet9_w2"),
    "report": (lambda run: ["report", run.place], "report.html ("),
    "watch": (lambda run: ["watch", run.place, "--once"], "finished"),
    "runs": (lambda run: ["runs", run.place.rpartition("/")[0]], "mine resnet9_w2"),
    "runs, itself": (lambda run: ["runs", run.place], "mine resnet9_w2"),
    "show-config": (lambda run: ["show-config", run.place], 'model = "resnet9_w2"'),
    "evaluate": (lambda run: ["evaluate", run.place], "top-1"),
    "predict": (lambda run: ["predict", run.place, image(run)], "class1"),
    "export": (lambda run: ["export", run.place, "exported"], "exporting s3://readers/runs/mine"),
    "verify": (lambda run: ["verify", run.place], "all hashes match"),
    "track": (lambda run: ["track", run.place, "--to", "csv", "--once"], "tracked/csv/mine"),
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "verb" in metafunc.fixturenames:
        whole = metafunc.config.getoption("--whole")
        metafunc.parametrize("verb", share("readers", list(READERS), 3, whole=whole))


def test_a_verb_reads_a_run_in_a_store(ended: StoredRun, verb: str) -> None:
    words, expected = READERS[verb]
    assert expected in stoker(ended, *words(ended))


def test_the_report_is_in_the_store(ended: StoredRun) -> None:
    assert f"report: {ended.place}/report.html" in ended.printed()
    assert (ended.copy().path / "report.html").read_text().startswith("<!DOCTYPE html>")
    assert ended.head().released
    ended.assert_tidy()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["explain", "s3://readers/none"], "s3://readers/none is not a run"),
        (["runs", "s3://readers/none"], "no run at s3://readers/none"),
        (["explain", "s3://no-such-bucket-here/x"], "no-such-bucket-here"),
        (["explain", "https://127.0.0.1:9/x"], "runs are read from s3://"),
        (["evaluate", "s3://user:word@readers/x"], "must not hold credentials"),
    ],
)
def test_what_is_no_run_is_said_in_a_sentence(
    ended: StoredRun, words: list[str], sentence: str
) -> None:
    assert sentence in stoker(ended, *words, code=2 if "bucket" not in sentence else 1)


def test_verify_names_a_checkpoint_that_is_damaged_in_the_store(
    stored: StoredRun,
) -> None:
    stop = {"fault": "term", "at": "forward", "count": 9}
    assert stored.train("a", stop) == [75]
    name, prefix = max(stored.content().checkpoints.items())
    objects = stored.objects()
    objects.write(f"{prefix}/weights.safetensors", b"other bytes")
    printed = stoker(stored, "verify", stored.place, code=1)
    assert f"{stored.place}/{prefix} is damaged in the store" in printed
    assert "DAMAGED: 1 of" in printed
    # Training passes it over, and replaces it.
    assert stored.train("b") == [0], stored.printed()
    assert "OK:" in stoker(stored, "verify", stored.place)
    assert objects.find(f"{prefix}/{MARKER}") is None, name


def test_a_run_that_trains_elsewhere_is_shown_as_running(stored: StoredRun) -> None:
    mark, till = stored.root / "there", stored.root / "go on"
    stall = {"fault": "stall", "at": "store:committed", "mark": str(mark), "till": str(till)}
    printed: list[str] = []

    def look(pids: list[int]) -> None:

        until(mark.exists, 120)
        printed.append(stoker(stored, "explain", stored.place))
        printed.append(stoker(stored, "runs", stored.place))
        till.touch()

    assert stored.train("a", {**stall, "seconds": 300}, meanwhile=look) == [0], stored.printed()
    assert "running: step" in printed[0]
    assert " running " in printed[1]
    assert "finished: step" in stoker(stored, "explain", stored.place)


HEADS = {
    "no JSON": (b"\x00\xff", "is damaged, or another program wrote it"),
    "too long": (b" " * (2 << 20), "more than such an object can have"),
    "deep": (b"[" * 100_000, "is damaged, or another program wrote it"),
    "newer": (b'{"format": 9}', "use a newer version"),
    "leads out": (
        json.dumps(
            {
                **{"format": 1, "holder": "0" * 16, "host": "\x1b[2Jx", "beat": 1, "ttl_s": 60.0},
                "released": False,
                "content": {
                    **{"run_format": 1, "run_id": "0" * 16, "attempt": 1, "checkpoints": {}},
                    "files": {"run.json": {"text": "{}"}, "../../outside": {"text": "x"}},
                },
            }
        ).encode(),
        "head.json is not that of a run",
    ),
}


@pytest.mark.parametrize("case", HEADS)
def test_a_hostile_head_is_a_sentence(stored: StoredRun, case: str) -> None:
    data, sentence = HEADS[case]
    objects = stored.objects()
    objects.write("head.json", data)
    code = 2 if case == "newer" else 1
    assert sentence in stoker(stored, "explain", stored.place, code=code)
    assert stored.train("a") == [code]
    assert sentence in stored.printed()
    assert "Traceback" not in stored.printed() and "\x1b" not in stored.log.read_text()
    assert objects.read("head.json")[0] == data
    assert not list(stored.root.rglob("outside"))
