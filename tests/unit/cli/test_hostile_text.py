"""Text from files, names and command lines reaches the terminal as printable text."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from compat.kept import FORMAT_1
from samples import image_folder
from stoker.cli import main
from stoker.data.images.encode import Storage
from stoker.data.packing.pack import pack
from stoker.doctor.visit import Visit
from stoker.errors import BAD_REQUEST, FAILED, FINISHED
from stoker.show import console as consoles
from stoker.show.console import LiveConsole, PlainConsole
from stoker.text import printable, say, shown
from training_logs import examples_new, simulate

ESCAPES = "\x1b[31m\x1b]0;t\x07\x1b]8;;http:x\x1b\\\x9b1m\x85\x08\r\u202e\u2066[red][/nope]"
HOSTILE = f"a{ESCAPES}\nINJECTED"
"""Escape sequences, C1 controls, bidirectional overrides, markup of rich, and a line of its own."""
NAME = HOSTILE.replace("/", "|")
"""The same as a file may be called."""
BYTES = f"{NAME}\udcff"
"""With a byte that is not UTF-8."""
OWN_STYLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def assert_clean(text: str) -> None:
    """Nothing but printable characters and our own line breaks."""
    bad = sorted({c for c in text if not c.isprintable() and c != "\n"})
    assert not bad, (bad, text)
    assert not any(line.startswith("INJECTED") for line in text.split("\n")), text


def hostile(value: Any) -> Any:
    """Plain data with each text made hostile."""
    if isinstance(value, str):
        return f"{value}{HOSTILE}\ud800"
    if isinstance(value, list):
        return [hostile(part) for part in value]
    if isinstance(value, dict):
        return {name: hostile(part) for name, part in value.items()}
    return value


def hostile_event(line: str) -> str:
    event = json.loads(line)
    keep = {"kind": event["kind"]} | ({"outcome": "failed"} if event["kind"] == "end" else {})
    return json.dumps({**hostile(event), **keep})


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images whose classes and files have hostile names; one image is damaged."""
    root = tmp_path_factory.mktemp("photos") / NAME
    image_folder(root, size=(8, 8), images=6, classes=2)
    folder = root / "class1"
    for number, path in enumerate(sorted(folder.iterdir())):
        path.rename(folder / f"{number}{BYTES}{path.suffix}")
    (folder / f"damaged{BYTES}.jpg").write_bytes(b"\xff\xd8\xff" + ESCAPES.encode())
    (folder / f"ignored{BYTES}.txt").touch()
    folder.rename(folder.with_name(NAME))
    return root


@pytest.fixture(scope="module")
def packed(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sets") / NAME
    return pack(photos, out, storage=Storage(codec="raw"), workers=1)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with hostile text in each field of its record and its events."""
    path = shutil.copytree(FORMAT_1 / "interrupted-jpeg-2", tmp_path / NAME)
    (path / "run.json").write_text(json.dumps(hostile(json.loads((path / "run.json").read_text()))))
    for file in path.rglob("rank*.jsonl"):
        lines = file.read_text().splitlines()
        file.write_text("".join(f"{hostile_event(line)}\n" for line in [*lines, *STALLS]))
    (path / "recipe.toml").write_bytes(f"# {ESCAPES}\udcff\n".encode(errors="surrogateescape"))
    return path


QUICK = ("--seconds", "0.05", "--image-size", "8")
STALLS = (json.dumps({"kind": "stall", "words": "x", "step": 3}),)
Verb = Callable[[Path, Path], list[str]]
VERBS: dict[str, tuple[Verb, int]] = {
    "explain": (lambda run, packed: ["explain", str(run)], FINISHED),
    "explain several": (lambda run, packed: ["explain", str(run), str(run / BYTES)], FINISHED),
    "explain what is no run": (lambda run, packed: ["explain", str(packed)], BAD_REQUEST),
    "show-config": (lambda run, packed: ["show-config", str(run)], FINISHED),
    "verify": (lambda run, packed: ["verify", str(packed)], FINISHED),
    "bench": (lambda run, packed: ["bench", "data", str(packed), *QUICK], FINISHED),
    "train": (lambda run, packed: ["train", str(packed), "--run", str(run)], BAD_REQUEST),
    "pack again": (lambda run, packed: ["pack", str(packed.parent), str(packed)], BAD_REQUEST),
    "pack nothing": (lambda run, packed: ["pack", BYTES], BAD_REQUEST),
    "doctor": (lambda run, packed: ["doctor", BYTES], BAD_REQUEST),
    "a recipe": (lambda run, packed: ["show-config", "--recipe", BYTES], BAD_REQUEST),
    "a flag": (lambda run, packed: ["train", f"--{BYTES}"], BAD_REQUEST),
    "a verb": (lambda run, packed: [BYTES], BAD_REQUEST),
}


@pytest.mark.parametrize("name", VERBS)
def test_verbs_print_printable_text(
    name: str,
    run: Path,
    packed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    words, code = VERBS[name]
    assert main(words(run, packed)) == code
    printed = capsys.readouterr()
    assert printed.out + printed.err
    assert_clean(printed.out + printed.err)


def test_packing_and_verifying_hostile_names(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / NAME
    assert main(["pack", str(photos), str(out), "--workers", "1"]) == FINISHED
    shard = max(out.rglob("*.tar"), key=lambda path: path.stat().st_size)
    data = bytearray(shard.read_bytes())
    data[600] ^= 1
    shard.write_bytes(data)
    assert main(["verify", str(out)]) == FAILED
    printed = capsys.readouterr()
    assert "rejected" in printed.out and "DAMAGED" in printed.out
    assert_clean(printed.out + printed.err)


def test_doctor_prints_printable_text(
    monkeypatch: pytest.MonkeyPatch, packed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [("storage begins", (HOSTILE,)), ("not measured", (f"{HOSTILE}\ud800",))]
    monkeypatch.setattr(Visit, "findings", lambda self: iter(rows))
    assert main(["doctor", str(packed)]) == FINISHED
    assert_clean(capsys.readouterr().out)


def test_a_log_of_another_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / NAME
    log.write_text(f"{ESCAPES}\n{examples_new(0, simulate('steady', 201))}{ESCAPES}\n", "utf-8")
    assert main(["explain", str(log)]) == FINISHED
    log.write_text(HOSTILE, "utf-8")
    assert main(["explain", str(log)]) == BAD_REQUEST
    printed = capsys.readouterr()
    assert_clean(printed.out + printed.err)


def shown_events() -> list[dict[str, Any]]:
    lines = (FORMAT_1 / "finished-jpeg/attempts/0001/rank0.jsonl").read_text().splitlines()
    notes = ({"kind": "note", "words": "x"}, {"kind": "save_failed", "reason": "x"})
    return [json.loads(hostile_event(line)) for line in [*lines, *STALLS, *map(json.dumps, notes)]]


def test_the_console_of_a_run_in_a_pipe() -> None:
    stream = io.StringIO()
    console = PlainConsole(HOSTILE, 0.0, stream)
    for event in shown_events():
        console(event)
    assert "[red]" in stream.getvalue()
    assert_clean(stream.getvalue())


def test_the_console_of_a_run_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own styling is all that is left of control codes; markup of rich is text."""
    stream = io.StringIO()
    monkeypatch.setattr(
        consoles, "RichConsole", lambda: Console(file=stream, force_terminal=True, width=100)
    )
    console = LiveConsole(HOSTILE)
    for event in shown_events():
        console(event)
    console.stop()
    text = OWN_STYLE.sub("", stream.getvalue()).replace("\r", "")
    assert "[red]" in text and r"\x1b[31m" in text
    assert_clean(text)


CRASH = """
import threading, warnings
from stoker.cli import show_crashes
show_crashes()
text = {text!r}
warnings.warn(text)
def fail(): raise ValueError(text)
thread = threading.Thread(target=fail)
thread.start()
thread.join()
fail()
"""


def test_tracebacks_and_warnings() -> None:
    words = [sys.executable, "-c", CRASH.format(text=HOSTILE)]
    ended = subprocess.run(words, capture_output=True, check=False)
    text = ended.stderr.decode()
    assert ended.returncode == FAILED
    assert text.count("ValueError: a") == 2 and "UserWarning: a" in text
    assert not any(not c.isprintable() and c != "\n" for c in text)


def test_a_terminal_without_unicode(run: Path) -> None:
    words = [sys.executable, "-m", "stoker", "explain", str(run)]
    environment = {**os.environ, "LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    ended = subprocess.run(words, capture_output=True, env=environment, check=False)
    assert (ended.returncode, ended.stderr) == (FINISHED, b"")
    assert_clean(ended.stdout.decode("ascii"))


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_say_writes_any_text_to_any_stream(encoding: str) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding)
    say(f"{HOSTILE}\udcff\ud800é█", "two", stream=stream)
    text = raw.getvalue().decode(encoding)
    assert_clean(text)
    assert text.count("\n") == 2


def test_plain_text_stays_as_it_is() -> None:
    text = "café 猫 [red] \\n 50% ▁█"
    assert printable(text) == text


def test_names_of_any_bytes_differ() -> None:
    names = ["a\udcff", "a\\xff", "a\ud800", "a\\ud800", "a\n", "a\\n"]
    assert len({shown(name) for name in names}) == len(names)
    assert all(shown(name).isprintable() for name in names)


def test_nothing_else_prints() -> None:
    """`print` is not the way to the terminal: `say` is."""
    source = Path(__file__).parents[3] / "src" / "stoker"
    pattern = re.compile(r"(?<![.\w])print\(|sys\.std(?:out|err)\.write")
    callers = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        for line in path.read_text().splitlines()
        if pattern.search(line) and "def print" not in line
    }
    documented = {"measure/meter.py", "measure/spans.py", "use/export/model_card.py"}
    assert callers - documented == {"survive/rehearsal.py"}, "its reader is a program"
