"""stoker plan for machines that were measured: --here, and a result file of stoker bench train."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stoker.cli import main
from stoker.errors import BAD_REQUEST, FINISHED
from stoker.plan.measured import here
from tiny_runs import tiny_set

pytestmark = pytest.mark.timeout(400)
WORDS = ["--model", "resnet9_w2", "--image-size", "16", "--batch-size", "8", "--crop", "pad"]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_set(tmp_path_factory.mktemp("set"))


def test_this_machine_is_measured_and_nothing_is_left(
    packed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(here, "REPEAT_S", 0.05)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    file = tmp_path / "plan.json"
    flags = ["--here", "--price-per-hour", "1", "--json", str(file), "--epochs", "5"]
    assert main(["plan", str(packed), *WORDS, *flags]) == FINISHED
    printed = capsys.readouterr().out
    (plan,) = json.loads(file.read_text())
    assert plan["hours"]["low"] < plan["hours"]["middle"] < plan["hours"]["high"]
    assert plan["on_demand_dollars"]["middle"] == pytest.approx(plan["hours"]["middle"])
    assert "5 epochs = 296 images at 16 px in batches of 8; 5 evaluations of 15 images" in printed
    assert "this machine: " in printed
    assert "evaluating" in printed
    assert f"start it: stoker train {packed} --model resnet9_w2" in printed
    assert not list(tmp_path.glob("stoker-*"))


def test_a_result_file_adds_its_machine(
    packed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    quick = ["--model", "resnet9_w2,resnet9_w4", "--image-size", "16", "--batch-size", "8"]
    quick += ["--steps", "2", "--repeats", "5", "--out", "b.json", "--machine", "my box"]
    assert main(["bench", "train", str(packed), *quick, "--price-per-hour", "0.5"]) == FINISHED
    rows = json.loads(Path("b.json").read_text())["rows"]
    assert all(row["figures"]["evaluation_images_per_s"] > 0 for row in rows)
    capsys.readouterr()
    plan = ["plan", str(packed), "--on-day", "2025-03-03", "--bench", "b.json", "--all"]
    assert main([*plan, *WORDS]) == FINISHED
    assert "my box: " in (printed := capsys.readouterr().out)
    assert "\n* my box" in printed or "\n  my box" in printed
    other = ["--model", "resnet9_w8", *WORDS[2:]]
    assert main([*plan, *other]) == FINISHED
    assert "my box: " in capsys.readouterr().out
    assert main([*plan, *WORDS, "--amp", "bf16"]) == BAD_REQUEST
    assert "has no row of resnet9_w2 at 16 px, bf16" in capsys.readouterr().err
