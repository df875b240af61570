"""Coefficients, corrections and ranges from the RTX 3090's training rows; held-out errors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import combinations, pairwise

import numpy as np
from benchmarks.planning.counts import TOLERANCE, Row, counts_kept, rows_of
from benchmarks.planning.fitting import coefficients
from benchmarks.planning.splits import FAMILIES, arch_out, family_of, family_out

from stoker.plan.gpu.known import gpu_named
from stoker.plan.gpu.operations import OperationCounts
from stoker.plan.gpu.residual import residuals
from stoker.plan.gpu.terms import likeness, term_seconds

REFERENCE = gpu_named("RTX3090")
RESAMPLES = 20
BINS = 8
"""Groups of newness, as large as each other, for which the range is taken."""
COVERED = 0.9


@dataclass(frozen=True)
class Training:
    """The rows of one layout, ready to fit."""

    rows: list[Row]
    terms: np.ndarray
    seconds: np.ndarray
    places: np.ndarray
    families: list[str]
    architectures: list[str]

    @property
    def in_families(self) -> np.ndarray:
        return np.array([bool(family) for family in self.families])


@dataclass(frozen=True)
class HeldOut:
    """Logarithms of measured by forecast seconds, of rows that were not fitted."""

    errors: np.ndarray
    plain: np.ndarray
    """Errors of the terms alone."""
    newness: np.ndarray

    def where(self, mask: np.ndarray) -> HeldOut:
        return HeldOut(self.errors[mask], self.plain[mask], self.newness[mask])


@cache
def counted(model: str, px: int, precision: str = "amp") -> OperationCounts | None:
    return counts_kept(model, px, precision, "nhwc")


def agrees(row: Row, counts: OperationCounts) -> bool:
    """Whether this version of timm builds the model that was measured. Multiply-adds do not tell:
    the published ones are missing for some models and leave out operations of others."""
    return abs(counts.parameters / 1e6 - row.params_m) <= max(TOLERANCE * row.params_m, 0.01)


def left_out(layout: str) -> tuple[list[str], list[str]]:
    """Models of a layout that timm does not build any more, and that it builds differently."""
    absent, different = [], []
    for row in rows_of():
        if (row.kind, row.gpu, row.layout) == ("train", "RTX3090", layout):
            counts = counted(row.model, row.px)
            if counts is None:
                absent.append(row.model)
            elif not agrees(row, counts):
                different.append(row.model)
    return absent, different


@cache
def training(layout: str) -> Training:
    """The rows of a layout whose models were counted and are those that were measured."""
    pairs = []
    for row in rows_of():
        if (row.kind, row.gpu, row.layout) == ("train", "RTX3090", layout):
            counts = counted(row.model, row.px)
            if counts is not None and agrees(row, counts):
                pairs.append((row, counts))
    return Training(
        [row for row, _ in pairs],
        np.array([term_seconds(c, REFERENCE, row.batch, "fp16") for row, c in pairs]),
        np.array([1 / row.images_per_s for row, _ in pairs]),
        np.array([likeness(c, row.batch) for row, c in pairs]),
        [family_of(row.model) for row, _ in pairs],
        [
            f"{row.px}/{c.parameters}/{sum(op.macs * n for op, n in c.amp.operations):.0f}"
            for row, c in pairs
        ],
    )


def held_out(data: Training, masks: list[np.ndarray]) -> HeldOut:
    """The errors of rows by coefficients and corrections from all the others."""
    errors, plain, newness = (np.full(len(data.rows), np.nan) for _ in range(3))
    for mask in masks:
        if not mask.any():
            continue
        found = coefficients(data.terms[~mask], data.seconds[~mask])
        residual = np.log(data.seconds / np.maximum(data.terms @ found, 1e-12))
        correction, new = residuals(data.places[~mask], residual[~mask]).near(data.places[mask])
        plain[mask], errors[mask] = residual[mask], residual[mask] - correction
        newness[mask] = new
    return HeldOut(errors, plain, newness)


@cache
def by_arch(layout: str) -> HeldOut:
    data = training(layout)
    return held_out(data, arch_out(data.architectures))


@cache
def by_family(layout: str) -> HeldOut:
    data = training(layout)
    return held_out(data, family_out(data.families))


def errors_text(errors: np.ndarray) -> str:
    """Median, 80th percentile and mean of relative errors of the throughput, in per cent."""
    sizes = 100 * np.abs(np.expm1(errors))
    return f"{np.median(sizes):.1f} / {np.quantile(sizes, 0.8):.1f} / {np.mean(sizes):.1f}"


@cache
def coefficient_ranges(layout: str) -> np.ndarray:
    """Least, middle and most of each coefficient over resampled architectures."""
    data = training(layout)
    middle = coefficients(data.terms, data.seconds)
    names = sorted(set(data.architectures))
    chance = np.random.default_rng(0)
    drawn = []
    for _ in range(RESAMPLES):
        counts = dict(
            zip(*np.unique(chance.choice(names, len(names)), return_counts=True), strict=True)
        )
        rows = np.repeat(
            np.arange(len(data.rows)), [counts.get(name, 0) for name in data.architectures]
        )
        drawn.append(coefficients(data.terms[rows], data.seconds[rows]))
    low, high = np.quantile(drawn, (0.05, 0.95), axis=0)
    return np.stack([np.minimum(low, middle), middle, np.maximum(high, middle)], axis=1)


def range_table(samples: list[HeldOut]) -> dict[str, list[float]]:
    """The range of the throughput by newness, from held-out rows: logarithms below and above."""
    newness = np.concatenate([sample.newness for sample in samples])
    errors = np.concatenate([sample.errors for sample in samples])
    good = np.isfinite(errors)
    newness, errors = newness[good], errors[good]
    edges = np.quantile(newness, np.linspace(0, 1, BINS + 1))
    table: dict[str, list[float]] = {"newness": [], "below": [], "above": []}
    for low, high in pairwise(edges):
        inside = (newness >= low) & (newness <= high)
        table["newness"].append(float(np.median(newness[inside])))
        # Measured seconds above the forecast are a throughput below it.
        table["below"].append(float(np.quantile(np.maximum(errors[inside], 0), 0.5 + COVERED / 2)))
        table["above"].append(float(np.quantile(np.maximum(-errors[inside], 0), 0.5 + COVERED / 2)))
    for side in ("below", "above"):  # an architecture further away is never surer
        table[side] = [float(value) for value in np.maximum.accumulate(table[side])]
    return table


def share_inside(sample: HeldOut, table: dict[str, list[float]]) -> float:
    """The share of held-out rows inside their range."""
    good = np.isfinite(sample.errors)
    below = np.interp(sample.newness[good], table["newness"], table["below"])
    above = np.interp(sample.newness[good], table["newness"], table["above"])
    errors = sample.errors[good]
    return float(np.mean((errors <= below) & (-errors <= above)))


def crossed_coverage(layout: str) -> tuple[float, float]:
    """Shares inside ranges that were taken from the other half of the architectures: arch-out and
    family-names-out."""
    data = training(layout)
    half = arch_out(data.architectures, seed=1)
    first = np.logical_or.reduce(half[: len(half) // 2])
    inside = []
    for sample in (by_arch(layout), by_family(layout)):
        shares = []
        for mask in (first, ~first):
            pool = [by_arch(layout).where(~mask), by_family(layout).where(~mask)]
            shares.append(share_inside(sample.where(mask), range_table(pool)))
        inside.append(float(np.mean(shares)))
    return inside[0], inside[1]


def noise() -> np.ndarray:
    """Relative differences between rows of one architecture, layout and batch."""
    groups: dict[tuple[str, str, int], list[float]] = {}
    for layout in ("nhwc", "nchw"):
        data = training(layout)
        for row, name in zip(data.rows, data.architectures, strict=True):
            groups.setdefault((layout, name, row.batch), []).append(row.images_per_s)
    pairs = [pair for rates in groups.values() for pair in combinations(rates, 2)]
    return np.array([max(pair) / min(pair) - 1 for pair in pairs])


def batch_costs() -> list[tuple[str, float, float]]:
    """Milliseconds a step that do not depend on the batch: of MXNet's rows on a V100 (from their
    smallest and largest batch), and of the terms."""
    published = {"resnet50": ((16, 260), (64, 335)), "resnet152": ((16, 104), (32, 131))}
    found = coefficients(training("nhwc").terms, training("nhwc").seconds)
    costs = []
    for model, ((few, slow), (many, fast)) in published.items():
        measured = (1 / slow - 1 / fast) / (1 / few - 1 / many)
        counts = counted(model, 224)
        assert counts is not None
        one, two = (term_seconds(counts, REFERENCE, batch, "fp16") @ found for batch in (1, 2))
        costs.append((model, 1e3 * measured, 1e3 * float(one - two) * 2))
    return costs


def family_rows(layout: str) -> list[tuple[str, int, str, str]]:
    """For each family: rows, errors arch-out, errors family-names-out."""
    data, near, far = training(layout), by_arch(layout), by_family(layout)
    rows = []
    for family in FAMILIES:
        mask = np.array([each == family for each in data.families])
        if mask.any():
            rows.append(
                (
                    family,
                    int(mask.sum()),
                    errors_text(near.errors[mask]),
                    errors_text(far.errors[mask]),
                )
            )
    return rows
