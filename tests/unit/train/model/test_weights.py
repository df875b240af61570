"""Pre-trained weights: from the cache without a connection, else an answer within seconds."""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from measured import held, measured
from stoker.commit import sha256_file
from stoker.errors import BadRequest
from stoker.recipe.recipe import Recipe
from stoker.recipe.resolve import resolve
from stoker.survive.stopping import StopRequest
from stoker.train.attempt.end import FINISHED, INTERRUPTED
from stoker.train.attempt.session import train
from stoker.train.model.build import build_model
from stoker.train.model.start import load_start
from stoker.train.model.weights import LIMIT_S, no_answer
from tiny_runs import FLAGS, tiny_set

constants = pytest.importorskip("huggingface_hub.constants")
RECIPE = Recipe(model="resnet10t", pretrained=True)


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a hub at a port where nobody listens. Returns the cache."""
    pytest.importorskip("timm")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{unused.getsockname()[1]}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def build_pretrained(recipe: Recipe) -> nn.Module:
    """The model of a recipe with the weights that the recipe names, for three classes."""
    model, _ = build_model(recipe, 3)
    load_start(recipe, model, ["a", "b", "c"])
    return model


@pytest.fixture
def silent_host() -> Iterator[str]:
    """The address of a host that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_weights_that_are_out_of_reach_are_a_mistake(nowhere: Path) -> None:
    with pytest.raises(BadRequest, match=r"resnet10t .*127.0.0.1 cannot be reached .*refused"):
        build_pretrained(RECIPE)
    assert list(nowhere.iterdir()) == []


def test_a_user_who_wants_no_connection_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(BadRequest, match="HF_HUB_OFFLINE is set"):
        build_pretrained(RECIPE)


def test_a_proxy_that_is_gone_is_named(silent_host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", constants.ENDPOINT)
    monkeypatch.setenv("no_proxy", "")
    assert "refused" in no_answer(silent_host)


@measured(3)
def test_a_host_that_never_answers_is_given_up_in_time(silent_host: str) -> None:
    began = time.perf_counter()
    assert no_answer(silent_host) != ""
    taken = time.perf_counter() - began
    held(taken < LIMIT_S + 1, taken)


def fill_cache(nowhere: Path) -> dict[str, Tensor]:
    """Put weights of resnet10t into the cache; returns them."""
    import timm

    drawn: dict[str, Tensor] = timm.create_model("resnet10t").state_dict()
    name = timm.get_pretrained_cfg("resnet10t").hf_hub_id
    repository = nowhere / f"models--{name.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("1" * 40)
    (repository / "snapshots" / ("1" * 40)).mkdir(parents=True)
    save_file(drawn, repository / "snapshots" / ("1" * 40) / "model.safetensors")
    return drawn


def test_weights_in_the_cache_need_no_connection(nowhere: Path) -> None:
    drawn = fill_cache(nowhere)
    weights = build_pretrained(RECIPE).state_dict()
    kernels = [name for name in weights if not name.startswith("fc.")]
    assert all(torch.equal(weights[name], drawn[name]) for name in kernels)
    assert not weights["fc.weight"].any() and not weights["fc.bias"].any()


def test_timms_weights_are_recorded_like_others(nowhere: Path) -> None:
    fill_cache(nowhere)
    model, normalise = build_model(RECIPE, 3)
    start = load_start(RECIPE, model, ["a", "b", "c"])
    assert start is not None
    (file,) = nowhere.rglob("*.safetensors")
    assert start.sha256 == sha256_file(file)
    assert start.line.startswith("weights: 84 of 86 tensors from timm's resnet10t.c3_in1k; new: fc")
    assert start.line.endswith("; the new head starts at zero")
    assert (start.input.mean, start.input.std) == (normalise.mean, normalise.std)
    assert "--image-size 176" in start.note(RECIPE)[0]


def test_a_resumed_run_downloads_nothing(nowhere: Path, tmp_path: Path) -> None:
    fill_cache(nowhere)
    data, run, stop = tiny_set(tmp_path / "set"), tmp_path / "run", StopRequest()
    flags = {**FLAGS, "model": "resnet10t", "pretrained": True, "epochs": 1, "image_size": 32}
    resolved = resolve(flags={**flags, "checkpoint_interval": 1e-6})

    def listen(event: dict[str, Any]) -> None:
        if event["kind"] == "step":
            stop.request("a test")

    assert train(data, resolved, run, (listen,), stop) == INTERRUPTED
    for folder in nowhere.glob("models--*"):
        shutil.rmtree(folder)
    assert train(data, resolved, run) == FINISHED
    shutil.rmtree(run / "checkpoints")
    (run / "attempts" / "0003").mkdir()
    with pytest.raises(BadRequest, match="not on this machine"):
        train(data, resolved, run)


def test_a_model_without_weights_is_named() -> None:
    with pytest.raises(BadRequest, match="has no pre-trained weights: drop --pretrained"):
        build_pretrained(replace(RECIPE, model="resnet9"))
    with pytest.raises(BadRequest, match="has no pre-trained weights: drop --pretrained"):
        build_pretrained(replace(RECIPE, model="mobilenetv4_conv_small_035"))
