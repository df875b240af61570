"""Loading and packing stay within their memory, and an epoch begins without a pause."""

from __future__ import annotations

import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from integration.loading import BATCH, SLOPE_BATCH, endless, loader_of
from integration.processes import finish, start
from measured import held, measured
from samples import image_folder
from stoker.data.images.encode import Storage
from stoker.data.packing.memory import PACKER_BYTES, WORKER_BYTES
from stoker.data.packing.pack import pack
from stoker.errors import BAD_REQUEST, FINISHED

pytestmark = pytest.mark.alone

LOADING = Path(__file__).with_name("loading.py")
MB = 10**6


def begin(task: str, packed: Path, *rest: object, only_core: bool = False) -> Any:
    command = [sys.executable, str(LOADING), task, str(packed), *map(str, rest)]
    core = {min(os.sched_getaffinity(0))}
    limit = (lambda: os.sched_setaffinity(0, core)) if only_core else None
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=limit)


def answer(process: Any) -> Any:
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    return json.loads(printed)


@pytest.fixture(scope="module", params=["jpeg", "raw"])
def small(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("small")
    folder = image_folder(root / "photos", classes=2, images=440, val=1, size=(40, 36))
    return pack(folder, root / "packed", storage=Storage(codec=request.param), workers=1)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A gigabyte of pixels."""
    root = tmp_path_factory.mktemp("large")
    folders, side = [root / "photos" / "train" / name for name in ("even", "odd")], 340
    for folder in folders:
        folder.mkdir(parents=True)
    pixels = np.empty((side, side, 3), np.uint8)
    pixels[...] = np.linspace(0, 255, side).astype(np.uint8)[:, None]
    for number in range(3000):
        pixels[:, number % side] += 1
        image = simplejpeg.encode_jpeg(pixels, quality=50)
        (folders[number % 2] / f"{number:05d}.jpg").write_bytes(image)
    return pack(root / "photos", root / "packed", storage=Storage(codec="raw"), val_share=0)


@measured()
def test_memory_does_not_grow_over_five_epochs(small: Path) -> None:
    rows = answer(begin("slope", small))
    assert rows[-1]["batch"] + 1 >= 2000 and 5 * 880 // SLOPE_BATCH >= 2000
    settled = [row for row in rows if row["batch"] >= 440]  # after the first epoch
    batches = [row["batch"] for row in settled]
    for kind in ("RssAnon", "VmRSS"):
        slope_kb = np.polyfit(batches, [row[kind] for row in settled], 1)[0]
        held(slope_kb < 1.0, kind, rows)  # kB a batch: MB in a thousand


@measured(tries=5)
def test_an_epoch_begins_without_a_pause(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "photos", classes=2, images=145, val=1, size=(160, 130))
    loader = loader_of(str(pack(folder, tmp_path / "packed", workers=1)), 29)
    samples, gaps, ends = 290, [], []
    before = time.perf_counter()
    for loaded in loader.batches(endless(samples, 29, epochs=40)):
        now = time.perf_counter()
        gaps.append(now - before)
        if loaded.batch.step and loaded.batch.position % samples == 0:
            ends.append(gaps[-1])
        before = now
    loader.close()
    assert len(ends) == 39
    pause_s, usual_s = statistics.median(ends), statistics.median(gaps[1:])
    held(pause_s < 1.5 * usual_s, pause_s, usual_s)


@pytest.mark.rotates(3)
@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_reading_ten_times_the_limit_stays_below_it(large: Path, ranks: int) -> None:
    stored = sum(path.stat().st_size for path in large.rglob("*.tar"))
    limit_kb = 100_000
    assert stored >= 10 * 1024 * limit_kb
    bare = answer(begin("bare", large))
    rows = [answer(p) for p in [begin("load", large, rank, ranks) for rank in range(ranks)]]
    assert sum(row["images"] for row in rows) == 3000 // BATCH * BATCH
    own = sum(row["RssAnon"] - bare["RssAnon"] for row in rows)
    # Processes share the pages of libraries.
    shared = max(row["RssFile"] for row in rows) - bare["RssFile"]
    print(f"{ranks} ranks: {own + shared} kB; one alone {rows[0]['VmRSS'] - bare['VmRSS']} kB")
    assert own + shared < limit_kb, (bare, rows)


def test_one_core_decodes_on_one_thread(small: Path) -> None:
    assert answer(begin("threads", small, only_core=True)) == 1


TRAIN = ["--image-size", "32", "--batch-size", "64", "--epochs", "1", "--model", "resnet9_w16"]


def test_a_limit_too_small_for_one_batch_stops_before_step_1(packed: Path, tmp_path: Path) -> None:
    words = ["train", str(packed), *TRAIN, "--image-size", "224", "--max-ram", "0.01"]
    code, printed = finish(start([*words, "--run", "run"], tmp_path))
    assert code == BAD_REQUEST
    assert "--max-ram" in printed and "--batch-size" in printed
    assert "Traceback" not in printed


def test_a_limit_that_fits_fewer_batches_says_so_and_trains(packed: Path, tmp_path: Path) -> None:
    # A batch is 64 * 32 * 32 * 3 = 0.2 MB; evaluation has batches of its own.
    words = [*TRAIN, "--eval-batch-size", "64", "--threads", "1", "--max-ram", "0.0013"]
    code, printed = finish(start(["train", str(packed), *words, "--run", "run"], tmp_path))
    assert code == FINISHED, printed
    assert " instead of 3 batches " in printed


def tree_kb(root: int) -> dict[int, int]:
    """Resident memory of a process and of its descendants."""
    parents, sizes = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status = dict(line.split(":", 1) for line in (folder / "status").open())
            parents[int(folder.name)] = int(status["PPid"])
            sizes[int(folder.name)] = int(status.get("VmRSS", "0").split()[0])
        except (OSError, ValueError, KeyError):
            continue  # it has just ended
    tree = {root}
    while more := {child for child, parent in parents.items() if parent in tree} - tree:
        tree |= more
    return {process: sizes[process] for process in tree if process in sizes}


def bitmap() -> bytes:
    """An image of several megabytes that takes little work."""
    noise = np.random.default_rng(0).integers(0, 255, (1000, 1200, 3)).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).save(file, "BMP")
    return file.getvalue()


def pipe_tar(into: Any, image: bytes, count: int) -> None:
    with tarfile.open(fileobj=into, mode="w|") as tar:
        for number in range(count):
            member = tarfile.TarInfo(f"class{number % 2}/{number:05d}.bmp")
            member.size = len(image)
            tar.addfile(member, io.BytesIO(image))
    into.close()


@pytest.mark.rotates(3)
@pytest.mark.slow
@pytest.mark.parametrize("source", ["folder", "stream"])
def test_packing_a_gigabyte_takes_a_bounded_part_of_it(source: str, tmp_path: Path) -> None:
    image, workers = bitmap(), 2
    count = -(-(10**9) // len(image))
    if source == "folder":
        first = tmp_path / "image.bmp"
        first.write_bytes(image)
        for number in range(count):
            file = tmp_path / "photos" / f"class{number % 2}" / f"{number:05d}.bmp"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.hardlink_to(first)
    name = "photos" if source == "folder" else "-"
    words = ["pack", name, "packed", "--workers", str(workers), "--shard-images", "50"]
    process = subprocess.Popen(
        [sys.executable, "-m", "stoker", *words, "--spot-notice", "off"],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    if source == "stream":
        writer = threading.Thread(target=pipe_tar, args=(process.stdin, image, count), daemon=True)
        writer.start()
    peak: dict[int, int] = {}
    while process.poll() is None:
        peak = max(peak, tree_kb(process.pid), key=lambda tree: sum(tree.values()))
        time.sleep(0.02)
    assert process.returncode == FINISHED
    code = (
        "import stoker.cli.pack; print(next(line.split()[1] for line in open('/proc/self/status') "
        "if line.startswith('VmRSS')))"
    )
    bare = int(subprocess.check_output([sys.executable, "-c", code]))
    beyond = (sum(peak.values()) - (1 + workers) * bare) * 1024
    print(f"{source}: {sum(peak.values()) // 1024} MiB in all, {beyond / MB:.0f} MB beyond bare")
    # The estimate behind --max-ram.
    assert sum(peak.values()) * 1024 < PACKER_BYTES + workers * WORKER_BYTES
    assert beyond < count * len(image) / 2
