"""Something wrong in each way that has a name, and what is said about it.

    python benchmarks/verdicts.py [--write docs/verdict.md]

Runs the rows of tests/chaos/verdicts.toml, and some that are no faults, and prints the verdict on
each; with --write also between the marks of a document. A row that neighbours on shared cores have
spoilt is run again, and ends the program if it never comes right. Twenty of each, counted: `pytest
tests/chaos/test_verdicts.py --whole`.
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
    """What is said about a row, once it is right."""
    for _ in range(TRIES):
        found = bench.outcome(row, lambda: cluster)  # type: ignore[arg-type,return-value]
        if found.names(row):
            return found.verdict.lines()
    raise SystemExit(f"{row.name}: {found.verdict.limit} in the last of {TRIES} runs")


def told(row: Row, lines: list[str]) -> str:
    words = "\n".join(f"    {line}" for line in lines)
    return f"**{row.name}**: {row.limit}\n\n{words}\n\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    trainers, text = Trainers(), ""
    cluster = None if missing() else Cluster(2)
    try:
        with tempfile.TemporaryDirectory() as place:
            folder = image_folder(
                Path(place) / "photos", classes=4, images=IMAGES // 4, val=50, size=(160, 130)
            )
            bench = Bench(trainers, pack(folder, Path(place) / "packed", workers=1), Path(place))
            for row in [*ROWS, *MORE]:
                if not row.rate or cluster:
                    text += told(row, verdict_on(row, bench, cluster))
    finally:
        trainers.close()
        if cluster:
            cluster.remove()
    print(text)
    if given.write:
        before, rest = given.write.read_text().split(BEGIN)
        given.write.write_text(f"{before}{BEGIN}\n{text}{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
