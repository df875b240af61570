"""Figures and Markdown tables of the rounds. Ratios are computed within a round, never across
rounds."""

from __future__ import annotations

import os
import platform
import statistics
from pathlib import Path
from typing import Any

from compare.rounds import Row
from compare.sets import Variant
from figures import spread_text
from stoker.host.limits import usable_cores


def machine() -> dict[str, Any]:
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return {
        "cpu": model,
        "cores": usable_cores(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average": round(os.getloadavg()[0], 2),
    }


def machine_line(facts: dict[str, Any]) -> str:
    return (
        f"{facts['cpu']}, {facts['cores']} cores used, Linux {facts['kernel']}, "
        f"Python {facts['python']}, load average at the start {facts['load_average']}"
    )


def per_cpu_s(row: Row) -> list[float]:
    return [figures["images"] / figures["cpu_s"] for figures in row.rounds]


def per_s(row: Row) -> list[float]:
    return [figures["images"] / figures["wall_s"] for figures in row.rounds]


def ratios(row: Row, other: Row | None) -> list[float]:
    if other is None or other.failed or row.failed:
        return []
    return [a / b for a, b in zip(per_cpu_s(row), per_cpu_s(other), strict=True)]


def table(variant: Variant, rows: list[Row]) -> list[str]:
    """The Markdown table of a variant."""
    known = {row.name: row for row in rows}
    lines = [
        f"### {variant.title}",
        "",
        "| loader | images per CPU-second | images per second | ratio | of the limit |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        if row.failed:
            lines.append(f"| {row.title} | not measured: {row.failed.replace('|', '/')} | | | |")
            continue
        to_limit = ratios(row, known.get(variant.limit))
        digits = 3 if variant.raw else 2
        limit = f"{statistics.median(to_limit):.{digits}f}" if to_limit else "-"
        ratio = spread_text(ratios(row, known.get(variant.reference)), digits)
        rate = f"{statistics.median(per_s(row)):.0f}"
        lines.append(
            f"| {row.title} | {spread_text(per_cpu_s(row), 0)} | {rate} | {ratio} | {limit} |"
        )
    return [*lines, ""]


def versions(rows: list[Row]) -> list[str]:
    """Each package once, with all versions where environments differ."""
    packages: dict[str, set[str]] = {}
    for row in rows:
        for package, version in row.versions.items():
            packages.setdefault(package, set()).add(version)
    texts = [
        f"{name} {' and '.join(sorted(numbers))}" for name, numbers in sorted(packages.items())
    ]
    return [f"Versions: {', '.join(texts)}.", ""]


def raw(variant: Variant, rows: list[Row]) -> dict[str, Any]:
    """All rounds, and the figures of the table."""
    known = {row.name: row for row in rows}
    return {
        row.name: {
            "title": row.title,
            "versions": row.versions,
            "failed": row.failed,
            "rounds": row.rounds,
            "images_per_cpu_s": per_cpu_s(row),
            "images_per_s": per_s(row),
            "ratio_to_reference": ratios(row, known.get(variant.reference)),
            "ratio_to_limit": ratios(row, known.get(variant.limit)),
        }
        for row in rows
    }
