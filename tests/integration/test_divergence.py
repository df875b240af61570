"""A learning rate eight times too high, on a model that does not forgive it (no norms)."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from integration.processes import finish, start
from samples import image_folder
from stoker.data.packing.pack import pack
from stoker.run.directory import Run
from stoker.survive.remedies import Remedies

GOOD, TOO_HIGH = 0.1, 0.8
STOPPED_BY = 50


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("divergence")
    return pack(image_folder(root / "photos", images=40, size=(80, 60)), root / "packed")


def train(data: Path, place: Path, lr: float, policy: str) -> tuple[int, str, Run]:
    if importlib.util.find_spec("timm") is None:
        pytest.skip("the model is one of timm's: pip install '.[timm]'")
    (place / "mine.toml").write_text(f'on_divergence = "{policy}"\n')
    flags = f"--model test_nfnet --image-size 32 --batch-size 32 --epochs 20 --lr {lr}"
    words = ["train", str(data), "--run", "run", "--recipe", "mine.toml", *flags.split()]
    code, printed = finish(start([*words, "--no-rehearse"], place))
    return code, printed, Run(place / "run")


def test_the_right_rate_is_left_alone(data: Path, tmp_path: Path) -> None:
    code, printed, run = train(data, tmp_path, GOOD, "stop")
    assert code == 0, printed
    assert Remedies(run.path).taken == []


def test_eight_times_that_is_stopped_within_fifty_steps(data: Path, tmp_path: Path) -> None:
    code, printed, run = train(data, tmp_path, TOO_HIGH, "stop")
    assert code == 1
    end = run.end()
    assert end is not None and end["outcome"] == "failed"
    assert end["step"] <= STOPPED_BY
    assert "not finite" in printed or "exploding" in printed
    assert list((run.path / "trouble").glob("*/rank0.json"))


def test_or_cut_until_it_trains(data: Path, tmp_path: Path) -> None:
    code, printed, run = train(data, tmp_path, TOO_HIGH, "skip")
    assert code == 0, printed
    assert {remedy.kind for remedy in Remedies(run.path).taken} == {"cut"}
    assert "the learning rate is multiplied by 0.5" in printed
    assert run.finished
