"""What only a GPU can show: every precision trains, a stopped run goes on, buffers are pinned."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from samples import image_folder
from stoker.data.packing.pack import pack
from stoker.recipe.resolve import resolve
from stoker.run.directory import Run
from stoker.run.events import Event
from stoker.survive.stopping import StopRequest
from stoker.train.attempt.session import train
from stoker.train.transfer import transfer_to

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
FLAGS = {"model": "resnet9_w8", "image_size": 32, "batch_size": 16, "epochs": 4, "ema": True}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("gpu")
    return pack(image_folder(root / "photos", images=40), root / "packed")


@pytest.mark.parametrize("amp", ["off", "tf32", "bf16", "fp16"])
@pytest.mark.parametrize("compile", [False, True])
def test_every_precision_learns(data: Path, tmp_path: Path, amp: str, compile: bool) -> None:
    run = tmp_path / "run"
    assert train(data, resolve(flags={**FLAGS, "amp": amp, "compile": compile}), run) == "finished"
    losses = [event["sums"][0] / event["images"] for event in Run(run).steps()]
    assert losses[-1] < losses[0]


def test_a_stopped_run_goes_on_to_the_same_bits(data: Path, tmp_path: Path) -> None:
    resolved = resolve(flags={**FLAGS, "deterministic": True})
    assert train(data, resolved, tmp_path / "whole") == "finished"
    stop = StopRequest()

    def stop_soon(event: Event) -> None:
        if event["kind"] == "evaluation":
            stop.request("half-way")

    assert train(data, resolved, tmp_path / "parts", (stop_soon,), stop) == "interrupted"
    assert train(data, resolved, tmp_path / "parts") == "finished"
    losses = [
        [event["sums"][0] for event in Run(tmp_path / name).steps()] for name in ("whole", "parts")
    ]
    assert losses[0] == losses[1]


def test_batches_are_copied_from_pinned_memory() -> None:
    images = transfer_to(torch.device("cuda", 0)).memory(2).take((4, 8, 8, 3))
    assert torch.from_numpy(images).is_pinned()
