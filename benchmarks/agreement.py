"""Top-1 on the same images by every way to use a model: training, evaluate, predict, ONNX.

    python benchmarks/agreement.py RUN SET [--split val] [--ranks 1 2 3]

RUN is a run directory, SET the packed set that it was trained on. The commands `stoker evaluate`
(for each number of ranks), `stoker predict` and `stoker export` are called as a user calls them;
the ONNX export is computed by onnxruntime. Prints a table in Markdown. Exit code 1 where a count of
right answers differs from training's own; that of ONNX may, and the table shows it.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from stoker.data.dataset import Dataset
from stoker.run.directory import Run


def stoker(*words: object) -> str:
    """What a command prints. Raises CalledProcessError where it fails."""
    command = [sys.executable, "-m", "stoker", *map(str, words)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def trained(run: Run) -> int:
    """Right answers in training's own evaluation of the last checkpoint."""
    return int(run.merged("evaluation")[-1]["top1"])


def evaluated(model: Path, data: Path, split: str, *words: object) -> int:
    """Right answers by `stoker evaluate`."""
    figures = json.loads(stoker("evaluate", model, data, "--split", split, "--json", "-", *words))
    return int(figures["top1"])


def predicted(model: Path, data: Path, split: str, *words: object) -> int:
    """Right answers by `stoker predict`, whose rows are in the order of the set."""
    text = stoker("predict", model, data, "--split", split, *words)
    rows = csv.DictReader(io.StringIO(text))
    dataset = Dataset(data)
    labels = dataset.split(split).labels.tolist()
    pairs = zip(rows, labels, strict=True)
    return sum(row["class"] == dataset.classes[label] for row, label in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("set", type=Path)
    parser.add_argument("--split", default=None)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 3])
    given = parser.parse_args()
    dataset = Dataset(given.set)
    split = given.split or dataset.eval_split or "val"
    images, own = dataset.images(split), trained(Run(given.run))
    rows = [("training's evaluation", own, "")]
    last = ("--checkpoint", "last")
    for ranks in given.ranks:
        right = evaluated(given.run, given.set, split, "--ranks", ranks, *last)
        rows.append((f"`stoker evaluate RUN --ranks {ranks}`", right, ""))
    rows.append(("`stoker predict RUN`", predicted(given.run, given.set, split, *last), ""))
    with tempfile.TemporaryDirectory() as place:
        for format in ("safetensors", "onnx"):
            out = Path(place, format)
            stoker("export", given.run, out, "--to", format, *last)
            facts = json.loads((out / "config.json").read_text())["stoker"]["differences"]
            note = "".join(f"logits within {one['logits']:.1e}" for one in facts.values())
            rows.append(
                (f"`stoker evaluate OUT`, {format}", evaluated(out, given.set, split), note)
            )
            rows.append((f"`stoker predict OUT`, {format}", predicted(out, given.set, split), note))
    print(f"| way | right of {images:,} | top-1 | |", "|---|---|---|---|", sep="\n")
    for name, right, note in rows:
        print(f"| {name} | {right:,} | {right / images:.4%} | {note} |")
    exact = {right for name, right, _ in rows if "onnx" not in name}
    raise SystemExit(0 if exact == {own} else "the counts differ")


if __name__ == "__main__":
    main()
