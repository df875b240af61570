"""Rounds to figures, figures to Markdown. Ratios are made within a round, never across rounds."""

from __future__ import annotations

import os
import platform
import statistics
from pathlib import Path
from typing import Any

from compare.rounds import Row
from compare.sets import Variant
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


def machine_line(found: dict[str, Any]) -> str:
    return (
        f"{found['cpu']}, {found['cores']} cores used, Linux {found['kernel']}, "
        f"Python {found['python']}, load average at the start {found['load_average']}"
    )


def per_cpu_s(row: Row) -> list[float]:
    return [found["images"] / found["cpu_s"] for found in row.rounds]


def per_s(row: Row) -> list[float]:
    return [found["images"] / found["wall_s"] for found in row.rounds]


def ratios(row: Row, other: Row | None) -> list[float]:
    if other is None or other.failed or row.failed:
        return []
    return [a / b for a, b in zip(per_cpu_s(row), per_cpu_s(other), strict=True)]


def spread(values: list[float], digits: int) -> str:
    if not values:
        return "-"
    middle, least, most = statistics.median(values), min(values), max(values)
    return f"{middle:.{digits}f} ({least:.{digits}f} to {most:.{digits}f})"


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
        ratio = spread(ratios(row, known.get(variant.reference)), digits)
        rate = f"{statistics.median(per_s(row)):.0f}"
        lines.append(f"| {row.title} | {spread(per_cpu_s(row), 0)} | {rate} | {ratio} | {limit} |")
    return [*lines, ""]


def versions(rows: list[Row]) -> list[str]:
    """Each package once, with the peers' own version where an environment has another."""
    found: dict[str, set[str]] = {}
    for row in rows:
        for package, version in row.versions.items():
            found.setdefault(package, set()).add(version)
    shown = [f"{package} {' and '.join(sorted(each))}" for package, each in sorted(found.items())]
    return [f"Versions: {', '.join(shown)}.", ""]


def raw(variant: Variant, rows: list[Row]) -> dict[str, Any]:
    """All rounds and what the table is made of."""
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
