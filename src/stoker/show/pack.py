"""The summary of a packed set, as a person enjoys it."""

from __future__ import annotations

from typing import Any

from stoker.data.dataset import Dataset
from stoker.text import plural, size


def summary_lines(dataset: Dataset) -> list[str]:
    """What was packed, how it is balanced, and what deserves a look."""
    report: dict[str, Any] = dataset.description["report"]
    storage = dataset.description["storage"]
    counts = ", ".join(f"{split} {count:,}" for split, count in report["images"].items())
    shards = sum(len(split["shards"]) for split in dataset.description["splits"].values())
    small, median, large = (f"{wide}x{high}" for wide, high in report["sizes"]["pixels"])
    lines = [
        f"{dataset.path}: {plural(sum(report['images'].values()), 'image')} ({counts}) in "
        f"{plural(len(dataset.classes), 'class')}, {size(report['sizes']['bytes'])} in "
        f"{plural(shards, 'shard')} ({storage['codec']})",
        f"  sizes     {small} smallest, {median} median, {large} largest",
        f"  balance   {balance_words(report['balance'])}",
    ]
    if dataset.description["held_out"]:
        lines.append(
            f"  held out  {dataset.description['held_out']:.0%} of each class as val, "
            "because there is neither val nor test"
        )
    if report["rotated"]:
        lines.append(f"  turned    {plural(report['rotated'], 'image')} upright (EXIF)")
    lines += attention_lines(dataset, report)
    return lines


def balance_words(balance: dict[str, Any]) -> str:
    (rare, few), (common, many) = balance["fewest"], balance["most"]
    if few == many:
        return f"even: {few:,} training images in each class"
    ratio = f", {many / few:.0f} times as many" if few and many >= 2 * few else ""
    return (
        f"{few:,} ({rare}) to {many:,} ({common}) training images a class, "
        f"median {balance['median']:,}{ratio}"
    )


def near_lines(dataset: Dataset, near: dict[str, Any]) -> list[str]:
    if not near["pairs"]:
        return ["  alike     no two images look nearly the same"]
    pair = near["examples"][0]
    return [
        f"  alike     {plural(near['pairs'], 'pair')} of images look nearly the same "
        f"({pair['path']} and {pair['other_path']})",
        f"            all of them: {dataset.path / 'near_duplicates.parquet'}",
    ]


def attention_lines(dataset: Dataset, report: dict[str, Any]) -> list[str]:
    """Rejects, duplicates, absent classes and what was passed over."""
    lines = [
        f"  rejected  {plural(row['images'], 'image')}: {row['reason']} ({row['example']})"
        for row in report["rejected"]
    ]
    if report["rejected"]:
        lines.append(f"            all of them: {dataset.path / 'rejected.parquet'}")
    for split, count in report["duplicates"]["across"].items():
        pair = report["duplicates"]["examples"][split][0]
        lines.append(
            f"  leak      {plural(count, 'image')} of {split} also in train, pixel for pixel "
            f"({pair[0]} = {pair[1]})"
        )
    for split, count in report["duplicates"]["within"].items():
        lines.append(f"  twins     {plural(count, 'image')} more than once in {split}")
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
