"""Two learning rates, two seeds: which is better? Then the best run, from the files of the sweep.

python examples/sweep.py photos-packed --epochs 5

All other flags are those of `stoker sweep`. The same command goes on where it was stopped. With
pandas the table is a DataFrame; without, plain lines.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import stoker


def sweep(options: argparse.Namespace, flags: list[str]) -> dict[str, Any]:
    """Train all combinations; returns the numbers of `--json`. Ends the program where it fails."""
    figures = options.out / "figures.json"
    options.out.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-m", "stoker", "sweep", options.data, "--out", str(options.out)]
    words += ["--set", f"lr={options.lr}", "--set", f"seed={options.seed}"]
    if code := subprocess.run([*words, "--json", str(figures), *flags]).returncode:
        sys.exit(code)
    loaded: dict[str, Any] = json.loads(figures.read_text())
    return loaded


def show(cells: list[dict[str, Any]]) -> None:
    """Print a line for each run, the best first."""
    columns = [{"settings": cell["label"], **cell["result"]} for cell in cells]
    try:
        import pandas
    except ImportError:
        for row in columns:
            print(f"{row['settings']:<24} {row['top1']} of {row['images']} right")
        return
    table = pandas.DataFrame(columns)
    table["top1"] /= table["images"]
    print(table[["settings", "top1", "loss", "steps"]].to_string(index=False))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", help="a packed set, or a folder of images")
    parser.add_argument("--lr", default="0.05,0.2", help="learning rates [0.05,0.2]")
    parser.add_argument("--seed", default="0,1", help="seeds [0,1]")
    parser.add_argument("--out", type=Path, default=Path("sweeps/lr"))
    options, flags = parser.parse_known_args()
    figures = sweep(options, flags)

    cells = [cell for cell in figures["cells"] if cell["state"] == "done"]
    cells.sort(key=lambda cell: cell["result"]["top1"], reverse=True)
    show(cells)
    best = options.out / "cells" / cells[0]["id"] / "work" / "run"
    recipe = stoker.Run(best).values
    print(f"best: {cells[0]['label']}, a {recipe['model']} with lr {recipe['lr']:g}")
    print(f"its run: {best}")


if __name__ == "__main__":
    main()
