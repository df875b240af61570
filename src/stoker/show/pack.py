"""Packing as a person reads it: its progress, and the summary of the packed set."""

from __future__ import annotations

import math
import unicodedata
from typing import Any

from stoker.data.dataset import Dataset
from stoker.data.index.shard_table import shard_count
from stoker.data.packing.duplicates import EXAMPLES
from stoker.data.packing.shard import ShardReport
from stoker.show.progress import progress
from stoker.text import plural, size


class PackProgress:
    """Shows the images done and rejected; `pack` calls it after each task."""

    def __init__(self) -> None:
        self._bar, self._rejected = progress(), 0
        self.shrunk, self.largest = 0, (0, 0)
        """Images stored smaller than their sources, and the largest of these sources."""
        self.close = self._bar.close

    def __call__(self, report: ShardReport, done: int, total: int) -> None:
        self._rejected += report.rejected
        self.shrunk += report.shrunk
        self.largest = max(self.largest, report.largest, key=math.prod)
        of_total = f" of {total:,}" if total else ""
        self._bar.update(done, total, f"{done:,}{of_total} images, {self._rejected:,} rejected")


def shrunk_line(dataset: Dataset, shrunk: int, largest: tuple[int, int]) -> str:
    """How images were shrunk: to which size, and from which."""
    storage = dataset.description["storage"]
    name = "min_side" if storage["min_side"] else "max_side"
    side = "shorter" if name == "min_side" else "longer"
    return (
        f"  shrunk    {plural(shrunk, 'image')}: stored at {storage[name]} px on the {side} side, "
        f"sources up to {largest[0]}x{largest[1]} (--{name.replace('_', '-')})"
    )


def summary_lines(
    dataset: Dataset, shrunk: int = 0, largest: tuple[int, int] = (0, 0)
) -> list[str]:
    """The summary: images, sizes, class balance, then everything that needs attention. `shrunk`
    images are smaller than their sources, of which the largest has this width and height."""
    report: dict[str, Any] = dataset.description["report"]
    counts = ", ".join(f"{split} {count:,}" for split, count in report["images"].items())
    shards = sum(map(shard_count, dataset.description["splits"].values()))
    small, median, large = (f"{width}x{height}" for width, height in report["sizes"]["pixels"])
    lines = [
        f"{dataset.name}: {plural(sum(report['images'].values()), 'image')} ({counts}) in "
        f"{plural(len(dataset.classes), 'class')}, {size(report['sizes']['bytes'])} in "
        f"{plural(shards, 'shard')} ({dataset.description['storage']['codec']})",
        f"  sizes     {small} smallest, {median} median, {large} largest",
        f"  balance   {balance_text(report['balance'])}",
    ]
    if shrunk:
        lines.insert(2, shrunk_line(dataset, shrunk, largest))
    if dataset.description["held_out"] and report["images"].get("val"):
        lines.append(
            f"  held out  {dataset.description['held_out']:.0%} of each class as val, "
            "because the source has neither val nor test"
        )
    if report["rotated"]:
        lines.append(f"  rotated   {plural(report['rotated'], 'image')} turned upright (EXIF)")
    return lines + attention_lines(dataset, report)


def balance_text(balance: dict[str, Any]) -> str:
    (smallest, fewest), (largest, most) = balance["fewest"], balance["most"]
    if fewest == most:
        return f"even: {fewest:,} training images in each class"
    ratio = f", {most / fewest:.0f} times as many" if fewest and most >= 2 * fewest else ""
    return (
        f"{fewest:,} ({smallest}) to {most:,} ({largest}) training images a class, "
        f"median {balance['median']:,}{ratio}"
    )


def near_lines(dataset: Dataset, near: dict[str, Any]) -> list[str]:
    if not near["pairs"]:
        return ["  alike     no two images look nearly the same"]
    pair = near["examples"][0]
    return [
        f"  alike     {plural(near['pairs'], 'pair')} of images look nearly the same "
        f"({pair['path']} and {pair['other_path']})",
        f"            all of them: {dataset.name}/near_duplicates.parquet",
    ]


def conflict_lines(classes: list[str], conflicts: dict[str, Any] | None) -> list[str]:
    """The same picture under several labels: the files and their labels."""
    if not conflicts:
        return []
    lines = [f"  labels    {plural(conflicts['images'], 'image')} with several labels:"]
    for (path, label), (other_path, other_label) in conflicts["examples"]:
        lines.append(
            f"            {path} ({classes[label]}) = {other_path} ({classes[other_label]})"
        )
    if more := conflicts["pairs"] - len(conflicts["examples"]):
        lines.append(f"            and {plural(more, 'more pair')}")
    return lines


def similar_names(classes: list[str]) -> list[str]:
    """A line for each group of classes that differ only in case, Unicode form or spaces."""
    groups: dict[str, list[str]] = {}
    for name in classes:
        plain = " ".join(unicodedata.normalize("NFKC", name).casefold().split())
        groups.setdefault(unicodedata.normalize("NFKC", plain), []).append(name)
    similar = [names for names in groups.values() if len(names) > 1]
    lines = [
        f"  classes   {', '.join(map(quoted, names))} differ only in case, Unicode form or spaces: "
        "are they one class?"
        for names in similar[:EXAMPLES]
    ]
    more = len(similar) - len(lines)
    return [*lines, f"            and {plural(more, 'more group')} of classes"] if more else lines


def quoted(name: str) -> str:
    """A name in quotes. Marks that are combined with a letter are escaped, to tell it apart."""
    escaped = (ascii(c)[1:-1] if unicodedata.combining(c) else c for c in name)
    return f"'{''.join(escaped)}'"


def attention_lines(dataset: Dataset, report: dict[str, Any]) -> list[str]:
    """Rejected images, duplicates, absent classes and ignored files."""
    lines = [
        f"  rejected  {plural(row['images'], 'image')}: {row['reason']} ({row['example']})"
        for row in report["rejected"]
    ]
    if report["rejected"]:
        lines.append(f"            all of them: {dataset.name}/rejected.parquet")
    for split, count in report["duplicates"]["across"].items():
        pair = report["duplicates"]["examples"][split][0]
        lines.append(
            f"  leak      {plural(count, 'image')} of {split} also in train, pixel for pixel "
            f"({pair[0]} = {pair[1]})"
        )
    for split, count in report["duplicates"]["within"].items():
        lines.append(f"  repeated  {plural(count, 'image')} of {split} more than once in {split}")
    lines += conflict_lines(dataset.classes, report["duplicates"].get("conflicts"))
    lines += similar_names(dataset.classes)
    if near := report.get("near"):
        lines += near_lines(dataset, near)
    for split, names in report["absent"].items():
        shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
        lines.append(
            f"  absent    {plural(len(names), 'class')} without images in {split}: {shown}"
        )
    return lines + [
        f"  ignored   {row['entries']:,} x {row['reason']} ({row['example']})"
        for row in report["ignored"]
    ]
