"""Killed three times, on 1, 2, 3, then 2 ranks: each sample is seen exactly once an epoch."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from chaos.recipes import command
from chaos.trainers import Trainers
from stoker.data.dataset import Dataset
from stoker.data.loading.order import Order
from stoker.recipe.schedule import cuts
from stoker.run.directory import Run

WORLDS = (1, 2, 3, 2)
pytestmark = pytest.mark.exact


def samples_seen(run: Run, dataset: Dataset, seed: int = 0) -> Counter[tuple[int, int]]:
    """(epoch, sample) of everything that counts, from the events of every rank."""
    split = dataset.split("train")
    order = Order(split.shard_sizes, dataset.fingerprint, seed, run.record["lanes"])
    worlds = {
        attempt: start["world"] for attempt in run.attempts() if (start := run.start_of(attempt))
    }
    seen: Counter[tuple[int, int]] = Counter()
    for rank in range(max(worlds.values())):
        for event in run.merged("step", rank):
            edges = cuts(event["batch"], worlds[event["attempt"]])
            samples, epochs = order.part(
                event["position"], event["batch"], edges[rank], edges[rank + 1]
            )
            assert len(samples) == event["images"]
            seen.update(zip(epochs.tolist(), samples.tolist(), strict=True))
    return seen


def test_each_sample_once_an_epoch_through_changes_of_the_world(
    trainers: Trainers, packed_sets: dict[str, Path], tmp_path: Path
) -> None:
    run, dataset = Run(tmp_path / "run"), Dataset(packed_sets["jpeg"])
    name = "jpeg, sgd, ema, accumulation, mixing, clipping"
    argv = command(packed_sets, run.path, name, epochs=12)
    for number, world in enumerate(WORLDS[:-1]):
        kill = {"fault": "kill", "at": "backward", "rank": world - 1, "count": 40 + 11 * number}
        assert -9 in trainers.train(argv, tmp_path / "log", ranks=world, faults=[kill])
    log = tmp_path / "log"
    assert trainers.train(argv, log, ranks=WORLDS[-1]) == [0, 0], log.read_text()[-2000:]
    assert [start["world"] for start in run.starts()] == list(WORLDS)

    seen, images = samples_seen(run, dataset), len(dataset.split("train"))
    assert set(seen.values()) == {1}
    whole_epochs = [epoch for epoch in range(12) if sum(e == epoch for e, _ in seen) == images]
    assert whole_epochs[:11] == list(range(11))
    last = sum(epoch == 11 for epoch, _ in seen)
    assert last == images - run.starts()[-1]["unseen"]
    rates = {event["position"]: event["lr"] for event in run.steps()}
    assert len(rates) == run.starts()[-1]["steps"]
