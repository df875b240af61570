"""Seconds from opening a set in a store to the first batch of a host, with an empty cache.

The model: every answer takes one latency and its bytes at the rate of the link. First comes the
description, then the index (two requests), or the table of the shards and, side by side, the rows
of the shards that the first batch needs. Then images: until the first shards are here they are read
alone, by READERS requests at a time, while FETCHERS shards share the link. A task with an image in
one of those waits for them first, since a shard that is under way is not read alone. CPU time and
new connections are left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from benchmarks.scale.index import IndexCosts
from benchmarks.scale.world import Run, World

from stoker.data.loading.loader import CHUNK
from stoker.data.stored_shards import FETCHERS, READERS, within


@dataclass(frozen=True)
class Link:
    """The way of a host to the store."""

    latency_s: float
    bytes_per_s: float

    def seconds(self, size: float, requests: int = 1, at_once: int = 1) -> float:
        """Of requests for so many bytes in all, some of them at the same time."""
        return math.ceil(requests / at_once) * self.latency_s + size / self.bytes_per_s


@dataclass(frozen=True)
class FirstImages:
    """The images of a host's first batch."""

    shards: int
    """That hold them."""
    alone: int
    """Read alone."""
    requests: int
    """For those: one for each shard and task of CHUNK images."""
    waiting: float
    """The share of the tasks that wait for a whole shard first."""
    shard_bytes: int
    """Of the shards that are under way at first."""


def first_images(world: World, run: Run, host: int, share_bytes: int) -> FirstImages:
    """How the images of the first batch come."""
    begin, end = run.part_of(host)
    samples, _ = run.order.part(0, run.batch, begin, end)
    shards = np.searchsorted(np.cumsum(world.sizes), samples, side="right")
    wanted = within(run.order.upcoming(0, sorted(run.shares(host))), world.facts, share_bytes)
    first = wanted[:FETCHERS]
    waits = np.isin(shards, first)
    tasks = np.arange(len(samples)) // CHUNK
    waiting = len(set(tasks[waits].tolist())) / len(set(tasks.tolist()))
    calls = set(zip(tasks[~waits].tolist(), shards[~waits].tolist(), strict=True))
    size = sum(int(world.facts[number]["bytes"]) for number in first)
    return FirstImages(len(set(shards.tolist())), int((~waits).sum()), len(calls), waiting, size)


def images_s(first: FirstImages, image_bytes: float, link: Link) -> float:
    """Seconds until the images of the first batch are here."""
    together = (READERS + FETCHERS) / READERS if first.shard_bytes else 1.0
    alone_s = link.seconds(first.alone * image_bytes * together, first.requests, READERS)
    whole_s = link.seconds(first.shard_bytes) if first.waiting else 0.0
    return max(alone_s * (1 - first.waiting), whole_s) + alone_s * first.waiting


def whole_s(world: World, costs: IndexCosts, link: Link) -> float:
    """Seconds for the description and an index in one file."""
    description = link.seconds(world.shards * costs.description)
    return description + link.seconds(world.images * costs.row, 2)


def parted_s(world: World, costs: IndexCosts, first: FirstImages, link: Link) -> float:
    """Seconds for the description, the table of the shards and the rows of the first ones."""
    table = link.seconds(0) + link.seconds(world.shards * costs.table, 2)
    return table + link.seconds(first.shards * costs.part, first.shards, READERS)
