"""Makes the planner's tables from published rows and prints their held-out errors.

    python benchmarks/plan_fit.py [--write | --check] [--kept]

Counts the operations of 1,100 models first (kept in build/plan-counts; half an hour on two cores,
`python -m benchmarks.planning.counts 0 2` counts a half). --write writes the tables into the
package and the errors into docs/results/plan.md; --check fails where the committed tables differ.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from benchmarks.planning import between, compute_fit, memory_check, several
from benchmarks.planning.counts import keep, rows_of, wanted
from benchmarks.planning.factors import specification_errors
from benchmarks.planning.tables import LAYOUTS, all_tables

from stoker.plan.gpu.terms import TERMS

DOCUMENT = Path(__file__).parents[1] / "docs" / "results" / "plan.md"
TABLES = Path(__file__).parents[1] / "src" / "stoker" / "plan" / "gpu" / "tables"


def compute_lines() -> list[str]:
    lines = ["| rows | split | NHWC | NCHW | limit |", "|---|---|---|---|---|"]
    near = [compute_fit.by_arch(layout) for layout in LAYOUTS]
    far = [compute_fit.by_family(layout) for layout in LAYOUTS]
    inside = [compute_fit.training(layout).in_families for layout in LAYOUTS]
    text = compute_fit.errors_text
    rows = [
        (
            "five families",
            "arch-out",
            [s.errors[m] for s, m in zip(near, inside, strict=True)],
            "4 / 9",
        ),
        ("all models", "arch-out", [s.errors for s in near], "6 / 13"),
        (
            "five families",
            "family-names-out",
            [s.errors[m] for s, m in zip(far, inside, strict=True)],
            "11 / 20",
        ),
        ("all models, terms alone", "arch-out", [s.plain for s in near], ""),
        (
            "terms alone",
            "family-names-out",
            [s.plain[m] for s, m in zip(far, inside, strict=True)],
            "",
        ),
    ]
    for name, split, errors, limit in rows:
        lines.append(f"| {name} | {split} | {' | '.join(map(text, errors))} | {limit} |")
    splits = "arch-out | family-names-out"
    lines += ["", f"| family | rows | NHWC {splits} | NCHW {splits} |"]
    lines += ["|---|---|---|---|---|---|"]
    by_layout = [compute_fit.family_rows(layout) for layout in LAYOUTS]
    for (family, count, a, b), (_, _, c, d) in zip(*by_layout, strict=True):
        lines.append(f"| {family} | {count} | {a} | {b} | {c} | {d} |")
    lines += ["", "| term | NHWC | 5 to 95 % | NCHW | 5 to 95 % |", "|---|---|---|---|---|"]
    found = [compute_fit.coefficient_ranges(layout) for layout in LAYOUTS]
    for name, *values in zip(TERMS, *found, strict=True):
        cells = " | ".join(f"{mid:.2f} | {low:.2f} to {high:.2f}" for low, mid, high in values)
        lines.append(f"| {name} | {cells} |")
    for layout in LAYOUTS:
        absent, different = compute_fit.left_out(layout)
        lines += [
            "",
            f"Left out of {layout}: {len(absent)} names that timm does not have now "
            f"({', '.join(sorted(absent))}), {len(different)} that it builds with other "
            f"parameters ({', '.join(sorted(different))}); "
            f"{len(compute_fit.training(layout).rows)} rows stay.",
        ]
    noise = compute_fit.noise()
    lines += [
        "",
        f"The same architecture, layout and batch under two names ({len(noise)} pairs) differ by "
        f"{100 * np.median(noise):.1f} % in the median, {100 * np.quantile(noise, 0.9):.1f} % at "
        "the 90th percentile.",
        "",
        "| milliseconds a step whatever the batch | MXNet, V100 | terms |",
        "|---|---|---|",
        *(f"| {model} | {a:.0f} | {b:.0f} |" for model, a, b in compute_fit.batch_costs()),
    ]
    return lines


def between_lines() -> list[str]:
    lines = ["| inference on | layout | models | error |"]
    lines += ["|---|---|---|---|"]
    every: list[float] = []
    for gpu, layout in between.INFERENCE_TARGETS:
        errors = [row.error for row in between.carried_inference(gpu, layout)]
        every += errors
        text = compute_fit.errors_text(np.log1p(errors))
        lines.append(f"| {gpu} | {layout} | {len(errors)} | {text} |")
    text = compute_fit.errors_text(np.log1p(every))
    lines.append(f"| all | | {len(every)} | {text} (limit 7 / 14) |")
    for name, damping in (("resnet50's ratio for all models", 0.0), ("the full ratio", 1.0)):
        errors = [
            row.error
            for pair in between.INFERENCE_TARGETS
            for row in between.carried_inference(*pair, damping)
        ]
        text = compute_fit.errors_text(np.log1p(errors))
        lines.append(f"| all, with {name} | | {len(errors)} | {text} |")
    lines += ["", "| training on | precision | model | error |", "|---|---|---|---|"]
    for row in between.carried_training():
        lines.append(f"| {row.gpu} | {row.precision} | {row.model} | {100 * row.error:+.1f} % |")
    errors = np.abs(np.expm1(specification_errors()))
    lines += [
        "",
        f"By specification alone, between {len(errors)} pairs of GPUs: median "
        f"{100 * np.median(errors):.0f} %, 90th percentile {100 * np.quantile(errors, 0.9):.0f} %, "
        f"mean {100 * np.mean(errors):.0f} %.",
    ]
    return lines


def several_lines() -> list[str]:
    errors = compute_fit.errors_text(np.log1p(several.leave_model_out()))
    lines = [f"{len(several.consistent())} rows, leave-model-out: {errors} (limit 2 / 6)."]
    for bits, (low, middle, high, count) in several.ranges().items():
        lines.append(f"{bits}: {middle:.3f} ({low:.3f} to {high:.3f}), {count} rows.")
    odd = [row for row in several.pairs() if row.efficiency > several.MOST]
    names = ", ".join(f"{r.gpu} {r.model} {r.precision} {r.efficiency:.2f}" for r in odd)
    return [*lines, f"Contradictory: {names}."]


def range_lines() -> list[str]:
    lines = ["| layout | arch-out | family-names-out |", "|---|---|---|"]
    for layout in LAYOUTS:
        near, far = compute_fit.crossed_coverage(layout)
        lines.append(f"| {layout} | {100 * near:.0f} % | {100 * far:.0f} % |")
    return lines


def memory_lines() -> list[str]:
    lines = [
        "| layout | rows | same step | within a power of two | optimistic |",
    ]
    lines += ["|---|---|---|---|---|"]
    for layout in LAYOUTS:
        steps = memory_check.batch_steps(layout)
        shares = [np.mean(steps == 0), np.mean(np.abs(steps) <= 1), np.mean(steps > 0)]
        cells = " | ".join(f"{100 * share:.1f} %" for share in shares)
        lines.append(f"| {layout} | {len(steps)} | {cells} |")
    fits = memory_check.published_fits()
    in_place = memory_check.published_fits(memory_check.PYTORCH)
    ran, out = [f for f in fits if f.ran], [f for f in fits if not f.ran]
    lines += [
        "",
        f"published.csv: {sum(f.right for f in ran)} of {len(ran)} rows that ran fit, "
        f"{sum(f.right for f in out)} of {len(out)} out-of-memory rows do not. With activations "
        "that write over their input for MXNet's rows too: "
        f"{sum(f.right for f in in_place if not f.ran)} of {len(out)}.",
    ]
    return lines


PARTS = {
    "compute": compute_lines,
    "between": between_lines,
    "several": several_lines,
    "ranges": range_lines,
    "memory": memory_lines,
}


def put_between_marks(name: str, lines: list[str]) -> None:
    """Write lines between the marks of a part of the document."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, rest = DOCUMENT.read_text().split(begin)
    after = rest.split(end)[1]
    text = "\n".join(lines)
    DOCUMENT.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write the tables into the package")
    parser.add_argument("--check", action="store_true", help="fail where the tables differ")
    parser.add_argument("--kept", action="store_true", help="take what is counted, count no more")
    options = parser.parse_args()
    for case in () if options.kept else dict.fromkeys(wanted(rows_of())):
        keep(*case)
    different = []
    for name, make in PARTS.items():
        lines = make()
        print(f"\n## {name}\n", *lines, sep="\n", flush=True)
        if options.write:
            put_between_marks(name, lines)
    for name, data in all_tables().items():
        path = TABLES / name
        if options.write:
            path.write_bytes(data)
        elif options.check and (not path.exists() or path.read_bytes() != data):
            different.append(name)
    if different:
        print(f"\ndifferent from the committed tables: {', '.join(different)}")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
