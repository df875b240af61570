"""Fine-tune a trained model on your photographs, and compare it before and after.

python examples/finetune.py photos --weights runs/mine --epochs 3
python examples/finetune.py photos --pretrained --recipe finetune --model resnet18

`photos` has one folder for each class, or is a packed set. All other flags are those of
`stoker train`. The same command resumes a run that was stopped. Needs pandas.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import stoker


def run(*words: str) -> int:
    """Run a stoker command; returns its exit code."""
    return subprocess.run([sys.executable, "-m", "stoker", *words]).returncode


def accuracy_before(weights: Path, data: Path, folder: Path) -> float | None:
    """Top-1 of a run or an exported model on the held-out images; None where it has other classes,
    or is a plain file of weights, which does not name its classes."""
    if not weights.is_dir():
        return None
    file = folder / "before.json"
    if run("evaluate", str(weights), str(data), "--json", str(file)) != 0:
        return None
    figures = json.loads(file.read_text())
    return float(figures["top1"] / figures["images"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("photos", type=Path, help="a folder of photographs, or a packed set")
    parser.add_argument("--weights", type=Path, help="a run, an exported model, or a file")
    parser.add_argument("--pretrained", action="store_true", help="timm's weights (a download)")
    parser.add_argument("--run", type=Path, default=Path("runs/finetuned"))
    options, flags = parser.parse_known_args()
    if bool(options.weights) == options.pretrained:
        parser.error("give either --weights PATH or --pretrained")

    is_packed = (options.photos / "dataset.json").exists()
    data = options.photos if is_packed else stoker.pack(options.photos)
    options.run.parent.mkdir(parents=True, exist_ok=True)
    before, start = None, ["--pretrained"]
    if options.weights:
        before = accuracy_before(options.weights, data, options.run.parent)
        start = ["--weights", str(options.weights)]
    if code := run("train", str(data), "--run", str(options.run), *start, *flags):
        sys.exit(code)

    evaluations = stoker.Run(options.run).frame("evaluation")
    best = evaluations.loc[evaluations.top1.idxmax()]
    print("before: " + (f"{before:.1%} top-1" if before is not None else "not known (a new head)"))
    print(f"after: {best.top1:.1%} top-1 on {best.images:.0f} images, at epoch {best.epoch:.2f}")


if __name__ == "__main__":
    main()
