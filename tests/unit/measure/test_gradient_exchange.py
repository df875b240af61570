"""Measuring the gradient exchange changes no gradient, and shows which rank waited."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from ports import free_port

NAP_S = 1.0
ROUNDS = 5
WIDTH, LAYERS = 512, 4
GRADIENT_BYTES = LAYERS * (WIDTH * WIDTH + WIDTH) * 4

SCRIPT = f"""
import json, time
from contextlib import nullcontext
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from stoker.measure.gradient_exchange import GradientExchange
from stoker.measure.spans import Spans
from stoker.train.process_group import Ranks

ranks = Ranks.join()
torch.set_num_threads(1)

def model(dtype=torch.float32):
    torch.manual_seed(7)
    layers = [nn.Linear({WIDTH}, {WIDTH}) for _ in range({LAYERS})]
    return nn.Sequential(*layers).to(dtype)

def gradients(wrapped, micro_batches, spans, dtype=torch.float32, steps=3):
    # The model's gradients after each step, as bytes.
    kept = []
    for step in range(steps):
        wrapped.zero_grad(set_to_none=True)
        for number in range(micro_batches):
            torch.manual_seed(1000 * step + 10 * number + ranks.rank)
            images = torch.randn(4, {WIDTH}, dtype=dtype)
            last = number == micro_batches - 1
            with nullcontext() if last else wrapped.no_sync():
                loss = wrapped(images).pow(2).sum()
                with spans("backward"):
                    loss.backward()
        kept.append([p.grad.numpy().tobytes() for p in wrapped.parameters()])
    return kept

said = {{"rank": ranks.rank, "same": {{}}, "differ": {{}}}}
for dtype in (torch.float32, torch.float64):
    for micro_batches in (1, 3):
        key = f"{{dtype}} x {{micro_batches}}"
        plain = gradients(ranks.wrap(model(dtype)), micro_batches, Spans(), dtype)
        watched, spans = ranks.wrap(model(dtype)), Spans()
        exchange = ranks.watch_exchange(watched, spans)
        said["same"][key] = plain == gradients(watched, micro_batches, spans, dtype)
        alone = model(dtype)
        alone.no_sync = nullcontext
        said["differ"][key] = plain != gradients(alone, micro_batches, Spans(), dtype)

wrapped, spans = ranks.wrap(model()), Spans()
launches = 0
launched = spans.launched
def count():
    global launches
    launches += 1
    launched()
spans.launched = count
exchange = GradientExchange(spans, wrapped)
gradients(wrapped, 1, spans)
exchange.take()
spans.lap()

launches = 0
gradients(wrapped, 1, spans, steps=1)
said["launches"] = launches
parts = spans.lap().parts()
said["parts"] = sorted(parts)
said["taken"] = exchange.take()
said["backward_s"] = parts["backward"] + parts["exchange"]
said["again"] = exchange.take()
gradients(wrapped, 3, spans, steps=1)
said["accumulated"] = exchange.take()[0]
gradients(wrapped, 1, spans, steps=2)
said["two_steps"] = exchange.take()[0]

spans.lap()
images = torch.ones(2, {WIDTH})
with wrapped.no_sync(), spans("backward"):
    wrapped(images).sum().backward()
said["without_exchange"] = sorted(spans.lap().parts())
with spans("compile"):
    wrapped(images).sum().backward()
said["compiling"] = sorted(spans.lap().parts())
wrapped(images).sum().backward()
with spans("data"):
    pass
with wrapped.no_sync(), spans("backward"):
    wrapped(images).sum().backward()
said["after_one_outside"] = sorted(spans.lap().parts())

said["slow"] = []
for round in range({ROUNDS}):
    ranks.meet()
    spans.lap()
    with spans("forward"):
        loss = wrapped(images).sum()
        if ranks.rank == ranks.world - 1:
            time.sleep({NAP_S})
    with spans("backward"):
        loss.backward()
    said["slow"].append(spans.lap().parts())
ranks.leave()
print(json.dumps(said))
"""


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """What real ranks said; the last of them is slow where one has to be."""
    world = request.param
    common = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "GLOO_SOCKET_IFNAME": "lo",
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "CUDA_VISIBLE_DEVICES": "",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        said = [process.communicate(timeout=300)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * world
    return [json.loads(words.splitlines()[-1]) for words in said]


def test_gradients_are_those_of_ddp_without_a_hook_to_the_bit(ranks: list[dict[str, Any]]) -> None:
    for said in ranks:
        assert len(said["same"]) == 4
        assert all(said["same"].values()), said["same"]


def test_they_were_exchanged_at_all(ranks: list[dict[str, Any]]) -> None:
    assert all(all(said["differ"].values()) for said in ranks)


def test_bytes_are_the_gradient_s_once_a_step(ranks: list[dict[str, Any]]) -> None:
    for said in ranks:
        assert said["taken"][0] == GRADIENT_BYTES
        assert said["accumulated"] == GRADIENT_BYTES
        assert said["two_steps"] == 2 * GRADIENT_BYTES


def test_several_buckets_are_under_way_for_some_of_the_backward_pass(
    ranks: list[dict[str, Any]],
) -> None:
    for said in ranks:
        assert said["launches"] > 1
        assert 0 < said["taken"][1] <= said["backward_s"]
        assert said["parts"] == ["backward", "exchange", "other"]


def test_what_was_taken_is_gone(ranks: list[dict[str, Any]]) -> None:
    assert all(said["again"] == [0, 0.0] for said in ranks)


def test_a_pass_without_an_exchange_has_none(ranks: list[dict[str, Any]]) -> None:
    for said in ranks:
        assert said["without_exchange"] == ["backward", "other"]
        assert said["after_one_outside"] == ["backward", "data", "other"]


def test_a_span_that_is_no_backward_pass_keeps_its_time(ranks: list[dict[str, Any]]) -> None:
    assert all(said["compiling"] == ["compile", "other"] for said in ranks)


def test_a_slow_peer_is_waited_for_by_the_others_and_not_by_itself(
    ranks: list[dict[str, Any]],
) -> None:
    # The best of some rounds: a busy machine may keep anyone waiting now and then.
    *others, slow = ([parts["exchange"] for parts in said["slow"]] for said in ranks)
    for waited in others:
        assert max(waited) > 0.5 * NAP_S
    assert min(slow) < 0.25 * NAP_S
    assert min(parts["forward"] for parts in ranks[-1]["slow"]) >= NAP_S
