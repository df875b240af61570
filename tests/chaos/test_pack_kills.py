"""kill -9 of a pack and its workers at random moments: the same command ends with the same bytes.

Moments are drawn from a fixed seed and counted in pieces of work that are done, not in seconds, so
that a slow machine is killed in the same places.
"""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from packing import as_folder, as_tar, as_zip, contents, run_pack, start_pack
from samples import picture
from shares import share
from stoker.data.dataset import Dataset
from stoker.data.packing.pack import pack
from waiting import until

KILLS = 10
PARTS = 2
pytestmark = pytest.mark.exact
ROUNDS = 5
"""A pack may be done before a busy machine lets us look: then another one is killed."""
LONGEST_S = 300
"""What a command may take on the slowest machine."""
IMAGES, SHARD_IMAGES = 1300, 100
FLAGS = ("--workers", "1", "--shard-images", str(SHARD_IMAGES))
DIES = """
import os, signal, sys
from stoker.data.packing.pack import pack

source, out, event, nth = sys.argv[1:]
seen = 0

def die_at_the_nth(name, arguments):
    global seen
    # What is removed with a whole folder is named without its place.
    if name == event and (out in str(arguments[0]) or name != "os.rename"):
        seen += 1
        if seen == int(nth):
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(die_at_the_nth)
pack(source, out, shard_images=20, workers=1)
"""
"""Dies before the n-th change of this kind to its target."""


def image(label: int, number: int) -> bytes:
    """A small picture that has to be decoded and encoded: work that a kill can fall into."""
    file = io.BytesIO()
    picture(label, number, (10, 8)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def listed() -> list[tuple[str, bytes]]:
    return [(f"class{n % 3}/{n:05d}.png", image(n % 3, n)) for n in range(IMAGES)]


def as_parquet(listed: list[tuple[str, bytes]], file: Path) -> None:
    names = [name for name, _ in listed]
    cells = [{"bytes": one, "path": name} for name, one in listed]
    splits = ["val" if number % 10 == 0 else "train" for number in range(len(names))]
    table = pa.table({"image": cells, "label": [name[:6] for name in names], "split": splits})
    pq.write_table(table, file, row_group_size=200)


MAKE: dict[str, Callable[[list[tuple[str, bytes]], Path], object]] = {
    "piped tar": lambda listed, place: (place / "in.tar").write_bytes(as_tar(listed)),
    "zip": lambda listed, place: (place / "in.zip").write_bytes(as_zip(listed)),
    "parquet": lambda listed, place: as_parquet(listed, place / "in.parquet"),
    "folder": lambda listed, place: as_folder(place / "in", listed),
}


def pieces(out: Path) -> int:
    """How much is done: chunks that are staged and shards that are written, each with its part."""
    return sum(1 for _ in out.glob(".parts/**/[!.]*.parquet")) + sum(1 for _ in out.glob("*/*.tar"))


def kill(process: subprocess.Popen[str]) -> bool:
    """Kill the whole group; whether it was still at work."""
    at_work = process.poll() is None
    if at_work:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    return at_work


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kind" in metafunc.fixturenames:
        kinds = share("packs", list(MAKE), PARTS, whole=metafunc.config.getoption("--whole"))
        metafunc.parametrize("kind", kinds)


def test_ten_kills_and_the_same_bytes(
    kind: str, listed: list[tuple[str, bytes]], tmp_path: Path
) -> None:
    MAKE[kind](listed, tmp_path)
    (source,) = (path for path in tmp_path.iterdir() if path.name.startswith("in"))
    piped, given = (source, "-") if kind == "piped tar" else (None, str(source))
    flags = (*FLAGS, "--workers", "2") if kind == "zip" else FLAGS
    code, said = run_pack(given, tmp_path / "whole", *flags, piped=piped)
    assert code == 0, said
    whole = contents(tmp_path / "whole")

    random = np.random.default_rng([7, list(MAKE).index(kind)])
    for number in range(ROUNDS):
        out, killed = tmp_path / f"out{number}", 0
        # Up to the whole of it: chunks or files first, then shards, an index, the description.
        goals = np.linspace(0, 24, KILLS) + random.uniform(0, 2, KILLS)
        for goal, delay_s in zip(goals, random.uniform(0, 0.05, KILLS), strict=True):
            process = start_pack(given, out, *flags, piped=piped)
            before, give_up = pieces(out), time.monotonic() + 120
            while process.poll() is None and time.monotonic() < give_up:
                done = pieces(out)
                if done >= goal or done >= before + 5:
                    break
                time.sleep(0.002)
            time.sleep(delay_s)
            killed += kill(process)
            if Dataset.is_packed(out):
                Dataset(out)  # once it is there it is whole
        if killed >= KILLS // 2:
            break
    assert killed >= KILLS // 2
    code, said = run_pack(given, out, *flags, piped=piped)
    assert code == 0, said
    assert contents(out) == whole
    code, said = run_pack(given, out, *flags, piped=piped)
    assert (code, said.startswith("packed already")) == (0, True)


@pytest.mark.parametrize("event", ["os.rename", "os.remove", "os.rmdir"])
def test_killed_before_every_commit_of_a_stream(event: str, tmp_path: Path) -> None:
    listed = [(f"c{n % 2}/{n:03d}.png", image(n % 2, n)) for n in range(50)]
    source = tmp_path / "in.tar"
    source.write_bytes(as_tar([*listed, ("c0/bad.jpg", b"no image")]))
    whole = contents(pack(source, tmp_path / "whole", shard_images=20, workers=1))
    for nth in range(1, 40):
        out = tmp_path / f"out{nth}"
        words = [sys.executable, "-c", DIES, str(source), str(out), event, str(nth)]
        code = subprocess.run(words, capture_output=True, timeout=LONGEST_S).returncode
        if code == 0:
            break
        assert code == -signal.SIGKILL
        pack(source, out, shard_images=20, workers=1)
        assert contents(out) == whole, nth
        assert not (out / ".parts").exists()
    assert (code, nth > 1) == (0, True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["term", "int"])
def test_a_stop_request_ends_a_pack_whose_pipe_stalls(
    number: signal.Signals, listed: list[tuple[str, bytes]], tmp_path: Path
) -> None:
    tar, out = as_tar(listed), tmp_path / "out"
    command = [sys.executable, "-m", "stoker", "pack", "-", str(out), "--spot-notice", "off"]
    process = subprocess.Popen(
        [*command, *FLAGS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdin is not None
    process.stdin.write(tar[: len(tar) * 3 // 4])
    process.stdin.flush()
    until(lambda: pieces(out) >= 2 or process.poll() is not None, LONGEST_S)
    process.send_signal(number)
    # The pipe stays open and silent: whoever waits for it never ends.
    assert process.wait(LONGEST_S) == 75
    process.stdin.close()
    (tmp_path / "in.tar").write_bytes(tar)
    for place in (out, tmp_path / "whole"):
        assert run_pack("-", place, *FLAGS, piped=tmp_path / "in.tar")[0] == 0
    assert contents(out) == contents(tmp_path / "whole")
