"""Check the published throughputs and results against themselves, by way of a file of claims.

    python benchmarks/plan_claims.py [--data ../shared/data] [--write CLAIMS.toml]

Each row of published.csv and gpu_throughput.csv becomes a claim. A row of several GPUs gets the
throughput of the row with one GPU and otherwise the same settings. The claims are written as TOML,
read back as `stoker plan --check` does, and checked. Expected: three rows are refused (the p4d row
of 45 s an epoch, and EfficientNet-B4 on 8 V100-32GB in two precisions), no other.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from stoker.plan.claims.check import check_claims
from stoker.plan.claims.claims_file import parse_claims
from stoker.show.plan.claims import claim_lines

DATA = Path(__file__).parents[2] / "shared" / "data"
IMAGES = {"imagenet": 1_281_167, "caltech256": 15_240}
"""Training images. Of Caltech-256 as many as the commands of that study state."""
EXPECTED = Counter(
    {
        ("imagenet-p4d AWS p4d.24xlarge resnet50", "epoch-duration"): 1,
        ("V100-32GB x 8 efficientnet_b4 380 px fp32", "several-gpus"): 1,
        ("V100-32GB x 8 efficientnet_b4 380 px amp-fp16", "several-gpus"): 1,
    }
)
Row = Mapping[str, str]
Values = dict[str, str]


def rows_of(path: Path) -> list[Row]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"')[:200] + '"'


def whole(text: str) -> str:
    """The text where it is a count above 0, otherwise nothing: a range of sizes is no count."""
    return text if text.isdecimal() and int(text) else ""


def published(rows: list[Row]) -> Iterator[Values]:
    """Claims of published.csv, in TOML's own notation."""
    singles: dict[tuple[str, ...], str] = {}

    def settings(row: Row) -> tuple[str, ...]:
        batch = row["global_batch"]
        each = str(int(batch) // int(row["gpus"])) if whole(batch) and whole(row["gpus"]) else ""
        names = ("source", "gpu", "model", "dataset", "px", "precision")
        return (*(row[name] for name in names), each)

    for row in rows:
        if row["gpus"] == "1" and row["img_per_s"]:
            singles[settings(row)] = row["img_per_s"]
    for row in rows:
        minutes = re.match(r"([\d.]+) min", row["note"])
        several = row["gpus"] not in ("0", "1")
        yield {
            "name": quoted(f"{row['source']} {row['machine']} {row['model']}"),
            "model": quoted(row["model"]),
            "gpu": quoted(row["gpu"]) if row["gpu"] != "CPU" else "",
            "precision": quoted(row["precision"]),
            "outcome": quoted(row["outcome"]),
            "gpus": whole(row["gpus"]),
            "images": str(IMAGES.get(row["dataset"], "")),
            "image_size": whole(row["px"]),
            "batch_size": whole(row["global_batch"]),
            "images_per_s": row["img_per_s"],
            "seconds_per_step": row["s_per_step"],
            "seconds_per_epoch": row["s_per_epoch"],
            "epochs": row["epochs"],
            "minutes": minutes[1] if minutes else "",
            "price_per_hour": row["price_per_h"],
            "one_gpu_images_per_s": singles.get(settings(row), "") if several else "",
        }


def throughputs(rows: list[Row]) -> Iterator[Values]:
    """Claims of gpu_throughput.csv, in TOML's own notation."""
    names = ("source", "kind", "gpu", "model", "px", "batch_per_gpu", "precision", "layout")
    singles = {
        tuple(row[name] for name in names): row["img_per_s"] for row in rows if row["gpus"] == "1"
    }
    for row in rows:
        single = singles.get(tuple(row[name] for name in names), "")
        size = f"{row['px']} px {row['precision']}"
        yield {
            "name": quoted(f"{row['gpu']} x {row['gpus']} {row['model']} {size}"),
            "source": quoted(row["source"]),
            "model": quoted(row["model"]),
            "gpu": quoted(row["gpu"]),
            "gpus": whole(row["gpus"]),
            "image_size": whole(row["px"]),
            "batch_per_gpu": whole(row["batch_per_gpu"]),
            "images_per_s": row["img_per_s"],
            "one_gpu_images_per_s": single if row["gpus"] != "1" else "",
        }


def toml_of(claims: Iterator[Values]) -> str:
    return "\n".join(
        "\n".join(["[[claim]]", *(f"{key} = {text}" for key, text in claim.items() if text)]) + "\n"
        for claim in claims
    )


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    flags.add_argument("--data", type=Path, default=DATA)
    flags.add_argument("--write", type=Path, help="keep the claims as a file")
    parsed = flags.parse_args()
    sources = {"published.csv": published, "gpu_throughput.csv": throughputs}
    refused: Counter[tuple[str, str]] = Counter()
    texts = []
    for name, claims_of in sources.items():
        text = toml_of(claims_of(rows_of(parsed.data / name)))
        texts.append(text)
        claims = parse_claims(text, name)
        findings = check_claims(claims)
        pairs = sum(claim.one_gpu_images_per_s is not None for claim in claims)
        epochs = sum(bool(c.images_per_s and c.seconds_per_epoch) for c in claims)
        print(f"{name}: {len(claims):,} claims, {pairs} with one GPU's and several GPUs' rate,")
        print(f"  {epochs} with images/s and seconds an epoch")
        print(*(f"  {line}" for line in claim_lines(claims, findings)), sep="\n")
        refused.update((finding.claim, finding.rule) for finding in findings)
    if parsed.write:
        parsed.write.write_text("\n".join(texts))
    print("as expected" if refused == EXPECTED else f"not as expected: {refused - EXPECTED}")
    return 0 if refused == EXPECTED else 1


if __name__ == "__main__":
    sys.exit(main())
