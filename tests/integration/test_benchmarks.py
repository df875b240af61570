"""The benchmarks run, count rightly, and our loop and its measuring cost next to nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from measured import held, measured

pytestmark = pytest.mark.alone

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
FLAGS = "--model resnet9_w16 --image-size 48 --batch-size 64 --steps 80 --checkpoint-every 5"
SPANS = "--model resnet9_w16 --image-size 32 --batch-size 32 --steps 150 --torch-threads 1"
QUICK_SPANS = "--model resnet9_w2 --image-size 8 --batch-size 4 --steps 40 --torch-threads 1"
BURN = "import time\nwhile time.process_time() < 0.3: pass\nprint('done', flush=True)\ninput()"


def compare_loaders(*flags: str, **variables: str) -> str:
    return subprocess.run(
        [sys.executable, str(BENCHMARKS / "loader.py"), *flags],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
        env=os.environ | variables,
    ).stdout


@measured()
def test_a_quick_comparison_of_loaders_has_its_rows(tmp_path: Path) -> None:
    printed = compare_loaders("--quick", "--json", str(tmp_path / "rounds.json"))
    for begins in ("| torch DataLoader, PIL, uint8", "| bare: threads", "| bare: memory copy"):
        assert f"\n{begins}" in printed, printed
    assert printed.count("\n| Stoker | ") == 2, printed
    variants = json.loads((tmp_path / "rounds.json").read_text())["variants"]
    ours = variants["500-training"]["stoker"]
    assert ours["rounds"][0]["images"] == 100
    # Wide on purpose: a sane number on any machine, not a promise of speed.
    held(0.1 < ours["ratio_to_limit"][0] < 10, ours)
    held(0 < variants["raw-32"]["stoker"]["ratio_to_limit"][0] < 10, variants["raw-32"])


def test_a_quick_look_at_cold_and_warm_has_its_rows() -> None:
    printed = compare_loaders("--quick", "--cold")
    for row in ("read, cold", "read, warm", "load, cold", "load, warm"):
        assert printed.count(f"| {row} |") == 2, printed


def test_a_peer_that_cannot_be_installed_is_a_row(tmp_path: Path) -> None:
    images = tmp_path / "images"
    images.mkdir()
    for number in range(4):
        Image.new("RGB", (64, 48), (number, 2, 3)).save(images / f"{number}.jpg")
    printed = compare_loaders(
        *(str(images), "--peers", "dali,bare", "--variants", "500-validation", "--rounds", "1"),
        *("--environments", str(tmp_path / "environments")),
        PIP_NO_INDEX="1",
        PIP_FIND_LINKS="",
        PIP_CONFIG_FILE=os.devnull,
    )
    assert "\n| DALI, CPU | not measured: " in printed, printed
    assert "\n| bare: threads, simplejpeg, cv2 (our limit) | " in printed, printed
    assert printed.count("not measured") == 1, printed


def test_the_time_of_a_worker_that_lives_on_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from peers.protocol import cpu_s

    before = cpu_s()
    with subprocess.Popen(
        [sys.executable, "-c", BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdout is not None and worker.stdout.readline() == "done\n"
        living = cpu_s() - before
        worker.communicate("\n")
    assert living > 0.25
    assert cpu_s() - before >= living - 0.02  # one that has ended still counts


def loop_beside_a_bare_one() -> dict[str, Any]:
    """On one core: threads of torch that spin for each other would count as work."""
    core = {min(os.sched_getaffinity(0))}
    printed = subprocess.run(
        [sys.executable, str(BENCHMARKS / "loop.py"), *FLAGS.split()],
        preexec_fn=lambda: os.sched_setaffinity(0, core),
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    ).stdout
    found: dict[str, Any] = json.loads(printed)
    print(found)
    return found


@pytest.mark.rotates(4)
@pytest.mark.slow
@pytest.mark.timeout(1500)
@measured(tries=5)
def test_our_loop_is_as_fast_as_a_bare_one() -> None:
    found = loop_beside_a_bare_one()
    assert found["saves_kept"] >= 1
    held(found["cpu_ratio_median"] >= 0.97, found)


def cost_of_measuring(flags: str) -> dict[str, Any]:
    printed = subprocess.run(
        [sys.executable, str(BENCHMARKS / "spans.py"), *flags.split()],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    ).stdout
    found: dict[str, Any] = json.loads(printed)
    print(found)
    return found


@measured()
def test_a_quick_look_at_the_cost_of_measuring_has_sane_figures() -> None:
    found = cost_of_measuring(QUICK_SPANS)
    assert found["steps"] == 40
    assert found["cpu_ms_without"] > 0 and found["wall_ms_without"] > 0
    # Wide on purpose: a step of a few marks and one line more, on any machine.
    held(found["cpu_added_us_quarter"] < 5000, found)
    held(0 <= found["sampler_of_a_core"] < 0.5, found)


@pytest.mark.rotates(4)
@pytest.mark.slow
@pytest.mark.timeout(1500)
@measured(tries=5)
def test_measuring_costs_at_most_a_hundredth_of_a_step() -> None:
    found = cost_of_measuring(SPANS)
    held(found["cost"] <= 0.01, found)


@measured()
def test_our_part_of_a_step_leaves_the_host_free() -> None:
    printed = subprocess.run(
        [sys.executable, str(BENCHMARKS / "host_time.py"), "--json", "--steps", "200"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout
    figures = json.loads(printed)
    held(figures["ours_ms"] <= figures["limit_ms"], figures)


SMALL_GRID = "--cells 40 --kills 3 --workers 2 --json"


def test_a_small_grid_with_kills_has_its_figures() -> None:
    printed = subprocess.run(
        [sys.executable, str(BENCHMARKS / "grids.py"), *SMALL_GRID.split()],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout
    figures = json.loads(printed)
    assert figures["done"] == 40 and figures["finished_twice"] == 0
    assert figures["killed_workers"] + figures["killed_commands"] == 3
    assert figures["leases"] >= 40
    assert figures["grid_ms"] > 0 and figures["pool_ms"] > 0


STAND_IN = """
import sys, time
from pathlib import Path
attempt = Path(sys.argv[-1], "attempts", "0001")
attempt.mkdir(parents=True, exist_ok=True)
time.sleep(0.5)
(attempt / "rank0.jsonl").write_text('{"kind": "end", "outcome": "finished"}')
"""
"""A command that the benchmark of engines counts as a cell, without training."""


def test_a_comparison_of_engines_counts_kills_and_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from grid_engines.table import ENGINES, Site
    from grid_engines.trial import Trial, begin, run_with_kills

    commands = {
        name: [sys.executable, "-c", STAND_IN, "grid_engines.cell", "--run", str(tmp_path / name)]
        for name in ("runs/a", "runs/b", "runs/c", "runs/d")
    }
    site = Site(Path(sys.executable), tmp_path, [], 1)
    fields = {"folder": str(tmp_path), "workers": 1, "commands": commands}
    site.spec.write_text(json.dumps(fields))
    monkeypatch.setenv("PYTHONPATH", str(BENCHMARKS))
    trial = Trial(ENGINES["pool"], site)
    run_with_kills(trial, [(1, "driver"), (2, "command")], 0, len(commands), 0)
    assert trial.killed == ["driver", "command"]
    assert len(trial.done) == 4
    assert trial.starts >= 2
    assert trial.needless >= 1  # a pool does not know what is done
    assert trial.start_up_s and trial.seconds and trial.memory
    assert begin(Trial(ENGINES["pool"], site)) > 0
