"""The verdict on each fault that has a name.

    python benchmarks/verdicts.py [--write docs/verdict.md]

Runs the rows of tests/chaos/verdicts.toml, and some that are no faults, and prints the verdict on
each. With --write they are also written between the marks of a document. Other programs on shared
cores may disturb a row: it is run again, at most five times, and the program stops where none of
them gives the expected verdict. `pytest tests/chaos/test_verdicts.py --whole` runs each row twenty
times.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from chaos.test_verdicts import Bench
from chaos.trainers import Trainers
from integration.namespaces import Cluster, missing
from samples import image_folder
from stoker.data.packing.pack import pack
from verdict_rows import IMAGES, ROWS, Row

EVALUATING = {"fault": "stall", "at": "evaluation", "again": True, "seconds": 2.0}
MORE = [
    Row("much exchanged", "exchange", [], flags="--model resnet9_w64 --batch-size 4", ranks=2),
    Row("slow evaluation", "evaluation", [EVALUATING], flags="--eval-every 1", steps=250),
]
TRIES = 5
BEGIN, END = "<!-- examples -->\n", "<!-- end of examples -->"


def verdict_on(row: Row, bench: Bench, cluster: Cluster | None) -> list[str]:
    """The lines of the expected verdict on a row. Stops the program where it never comes."""
    for _ in range(TRIES):
        outcome = bench.outcome(row, lambda: cluster)  # type: ignore[arg-type,return-value]
        if outcome.names(row):
            return outcome.verdict.lines()
    raise SystemExit(f"{row.name}: {outcome.verdict.limit} in the last of {TRIES} runs")


def markdown(row: Row, lines: list[str]) -> str:
    text = "\n".join(f"    {line}" for line in lines)
    return f"**{row.name}**: {row.limit}\n\n{text}\n\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", type=Path)
    flags = parser.parse_args()
    trainers, text = Trainers(), ""
    cluster = None if missing() else Cluster(2)
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = image_folder(
                Path(name) / "photos", classes=4, images=IMAGES // 4, val=50, size=(160, 130)
            )
            bench = Bench(trainers, pack(folder, Path(name) / "packed", workers=1), Path(name))
            for row in [*ROWS, *MORE]:
                if not row.rate or cluster:
                    text += markdown(row, verdict_on(row, bench, cluster))
    finally:
        trainers.close()
        if cluster:
            cluster.remove()
    print(text)
    if flags.write:
        before, rest = flags.write.read_text().split(BEGIN)
        flags.write.write_text(f"{before}{BEGIN}\n{text}{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
