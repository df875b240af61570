"""How fast a set can be loaded: a table of stages and what limits the loader."""

from __future__ import annotations

from stoker.measure.trials.loading import LoadingSpeed, Pass
from stoker.text import plural, size

TITLES = {
    "synthetic": "synthetic: copied from memory",
    "decode": "decode only: bytes in memory",
    "read cold": "read, cold: from the disk",
    "read warm": "read, warm: from the page cache",
    "loader cold": "whole loader, cold",
    "loader warm": "whole loader, warm",
}
NOTICED = 1.05
"""A first epoch that takes less than this multiple of the others counts as equally long."""


def header() -> str:
    return f"{'':<33}{'images/s':>10}{'images/CPU-s':>14}{'MB/s':>8}  {'cached before':>13}"


def line(name: str, stage: Pass) -> str:
    rate = "-" if stage.mb_per_s is None else f"{stage.mb_per_s:,.0f}"
    cached = "-" if stage.held is None else f"{stage.held:.0%}"
    figures = f"{stage.images_per_s:>10,.0f}{stage.images_per_cpu_s:>14,.0f}{rate:>8}"
    return f"{TITLES[name]:<33}{figures}  {cached:>13}"


def opening(speed: LoadingSpeed) -> str:
    """The set and the settings of a measurement."""
    setting = speed.setting
    return (
        f"{plural(speed.shards, 'shard')} of {speed.of_shards:,} ({speed.codec}), "
        f"{setting.image_size} px, batches of {setting.batch_size}, {setting.crop} crops, "
        f"{plural(speed.threads, 'thread')}; at most {setting.seconds:g} s a row"
    )


def closing(speed: LoadingSpeed) -> list[str]:
    """What limits the loader, and how long the first epoch takes compared with the others."""
    decode = speed.passes["decode"].images_per_s
    read = speed.passes["read warm"].images_per_s
    if speed.bound_by["warm"] == "decoding":
        limit = (
            "Decoding limits the loader once the shards are in the page cache: reading alone is "
            f"{read / max(decode, 1e-9):.0f} times as fast."
        )
    else:
        limit = (
            "Reading limits the loader even from the page cache: decoding alone is "
            f"{decode / max(read, 1e-9):.1f} times as fast."
        )
    if not speed.was_cold:
        return [
            limit,
            "The shards could not be dropped from the page cache (the file system is in memory, or "
            "the kernel does not tell): the cold rows are not cold, and the duration of a first "
            "epoch is unknown.",
        ]
    is_longer = speed.first_epoch >= NOTICED
    multiple = f"{speed.first_epoch:.1f} times as long" if is_longer else "as long"
    first = (
        f"From the disk, {speed.bound_by['cold']} limits the loader: an epoch takes {multiple} as "
        "one from the page cache."
    )
    if speed.bytes < speed.memory:
        return [limit, f"{first} This applies to the first epoch; later epochs use the page cache."]
    return [
        limit,
        f"{first} This applies to every epoch: the set ({size(speed.bytes)}) is larger than the "
        f"memory ({size(speed.memory)}).",
    ]
