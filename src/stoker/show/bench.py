"""How quickly a set can be fed, as a table and a sentence."""

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
"""A first epoch that is less slower than that is as long as the others."""


def header() -> str:
    return f"{'':<33}{'images/s':>10}{'images/CPU-s':>14}{'MB/s':>8}  {'held before':>11}"


def line(name: str, row: Pass) -> str:
    """One stage."""
    rate = f"{row.mb_per_s:,.0f}" if row.bytes else "-"
    share = "-" if row.held is None else f"{row.held:.0%}"
    figures = f"{row.images_per_s:>10,.0f}{row.images_per_cpu_s:>14,.0f}{rate:>8}  {share:>11}"
    return f"{TITLES[name]:<33}{figures}"


def opening(found: LoadingSpeed) -> str:
    return (
        f"{plural(found.shards, 'shard')} of {found.of_shards:,} ({found.codec}), "
        f"{found.setting.image_size} px, batches of {found.setting.batch_size}, "
        f"{found.setting.crop} crops, {plural(found.threads, 'thread')}; at most "
        f"{found.setting.seconds:g} s a row"
    )


def closing(found: LoadingSpeed) -> list[str]:
    """What binds the loader here, and what that means for the first epoch."""
    decode = found.passes["decode"].images_per_s
    read = {state: found.passes[f"read {state}"].images_per_s for state in ("cold", "warm")}
    lines = []
    if found.bound_by["warm"] == "decoding":
        lines.append(
            f"Decoding binds the loader once the shards are in memory: reading them could give "
            f"{read['warm'] / max(decode, 1e-9):.0f} times as many images."
        )
    else:
        lines.append(
            "Reading binds the loader even from memory: decoding could give "
            f"{decode / max(read['warm'], 1e-9):.1f} times as many images."
        )
    if not found.was_cold:
        lines.append(
            "The shards could not be dropped from memory here (a file system that lives in memory, "
            "or one that does not tell): the cold rows are not cold, and how long a first epoch "
            "takes stays unknown."
        )
        return lines
    what = found.bound_by["cold"]
    pace = f"{found.first_epoch:.1f} times as long as"
    if found.first_epoch < NOTICED:
        pace = "as long as"
    first = f"From the disk {what} binds it: an epoch takes {pace} one from memory."
    if found.fits_memory:
        rest = "That is the first epoch; later ones find the shards in the page cache."
    else:
        rest = (
            f"The set ({size(found.bytes)}) is larger than the memory ({size(found.memory)}): "
            "every epoch will be like that."
        )
    return [*lines, f"{first} {rest}"]
