"""stoker predict RUN IMAGES...: the classes of images, as rows of CSV or JSON."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from stoker.cli.flags import Parser, add_code_flags
from stoker.cli.places import run_folder
from stoker.cli.streams import check_output
from stoker.errors import FAILED, FINISHED, BadRequest
from stoker.survive.stopping import UNCHANGED, listening, stops_at_once
from stoker.text import say, shown

if TYPE_CHECKING:
    from stoker.show.use.predict import PredictProgress
    from stoker.use.image_stream import ImageSource
    from stoker.use.predict import Predictor

FORMATS = ("csv", "jsonl")
FEATURE_SUFFIXES = (".npy", ".parquet")
CUT = "the rows so far are written: the same command starts again"


def parser() -> Parser:
    flags = Parser(
        prog="stoker predict",
        usage="stoker predict RUN IMAGES... [flags]",
        description="Classify images with the model of a run. IMAGES are files, folders, quoted "
        "patterns ('photos/**/*.jpg'), tar or zip archives, packed sets, or - for a list of paths "
        "(or an archive) from standard input. Rows have the order of the images. An image that "
        "cannot be used is a row with an error. Exit codes: 0 done, 1 no image could be used, "
        "2 no images, or a bad request.",
        examples=[
            "stoker predict runs/mine photos > classes.csv",
            "stoker predict runs/mine new.tar --out classes.jsonl --top 3",
            "find . -name '*.jpg' -print0 | stoker predict runs/mine - --null",
        ],
    )
    add = flags.add_argument
    add("run", metavar="RUN", help="a run directory, s3://BUCKET/RUN, or an export")
    add("images", metavar="IMAGES", nargs="+")
    add("--out", default="", metavar="FILE", help="write rows to a file, complete or not at all")
    add("--format", default="", metavar="|".join(FORMATS), help="[by the name of --out, else csv]")
    add("--top", type=int, default=5, metavar="N", help="classes of each image [5]")
    add(
        "--features",
        default="",
        metavar="FILE",
        help="also write the vectors before the model's head: .npy or .parquet, a row for each row",
    )
    add("--checkpoint", default="best", metavar="NAME", help="best, last or its name [best]")
    add("--split", default="", metavar="NAME", help="of a packed set [all of it]")
    add("--null", action="store_true", help="paths on standard input end with a zero byte")
    add("--batch-size", type=int, default=0, metavar="N", help="images at once [eval_batch_size]")
    add("--threads", type=int, default=0, metavar="N", help="threads that decode [cores]")
    add_code_flags(flags)
    return flags


def run(words: Sequence[str]) -> int:
    parsed = parser().parse(words)
    check(parsed)

    # Imported here, so that --help and wrong flags are answered without pyarrow.
    from stoker.use.image_stream import image_sources

    sources = image_sources(parsed.images, parsed.split, null=parsed.null)
    outcome = UNCHANGED if parsed.out else CUT
    with listening() as stop, stops_at_once(stop, "predicting", outcome):
        return predict_and_show(parsed, sources)


def check(parsed: argparse.Namespace) -> None:
    """Raise BadRequest for flags that cannot be followed."""
    if parsed.format not in ("", *FORMATS):
        raise BadRequest(f"--format must be one of {', '.join(FORMATS)}, not '{parsed.format}'")
    for name, least in (("top", 1), ("batch_size", 0), ("threads", 0)):
        if getattr(parsed, name) < least:
            flag = name.replace("_", "-")
            raise BadRequest(f"--{flag} must be at least {least}, not {getattr(parsed, name)}")
    if parsed.features and not parsed.features.endswith(FEATURE_SUFFIXES):
        raise BadRequest(
            f"--features {shown(parsed.features)}: its name must end in "
            f"{' or '.join(FEATURE_SUFFIXES)}"
        )
    parsed.run = run_folder(parsed.run, checkpoint=parsed.checkpoint)
    if not Path(parsed.run).is_dir():
        raise BadRequest(f"no run or export at {shown(parsed.run)}")
    check_output("--out", parsed.out)
    check_output("--features", parsed.features)
    out, features = Path(parsed.out), Path(parsed.features)
    if parsed.features and features.exists() and not features.is_file():
        raise BadRequest(f"--features {shown(parsed.features)} is no regular file: name another")
    if parsed.features and parsed.out and out.resolve() == features.resolve():
        raise BadRequest("--out and --features are the same file: name two")


def predict_and_show(parsed: argparse.Namespace, sources: list[ImageSource]) -> int:
    """Predict all images, write the rows and say what they came to; the exit code. Raises
    BadRequest where there is no image."""
    from stoker.show.use.predict import PredictProgress, ignored_lines, no_images, notes
    from stoker.use.classifier import CodeConsent, open_classifier
    from stoker.use.predict import Predictor, own_device_alone

    consent = CodeConsent(parsed.trust_code, parsed.model)
    classifier = open_classifier(Path(parsed.run), own_device_alone(), parsed.checkpoint, consent)
    say(*notes(classifier, sources), stream=sys.stderr)
    predictor = Predictor(
        classifier,
        top=parsed.top,
        batch_size=parsed.batch_size,
        threads=parsed.threads,
        features=bool(parsed.features),
    )
    rows_on_terminal = not parsed.out and sys.stdout.isatty()
    with closing(PredictProgress(total_of(sources), rows_on_terminal)) as bar, closing(predictor):
        try:
            write_answers(parsed, predictor, sources, bar)
        except BrokenPipeError:
            return FINISHED  # such as `| head`: the reader has enough
    if not bar.images:
        raise BadRequest(no_images(parsed.images, sources))
    say(*bar.lines(classifier.origin), *ignored_lines(sources), stream=sys.stderr)
    return FAILED if bar.broken_images == bar.images else FINISHED


def total_of(sources: list[ImageSource]) -> int:
    """How many images there are; 0 where that is not known."""
    counts = [source.count for source in sources]
    return sum(counts) if all(counts) else 0


def write_answers(
    parsed: argparse.Namespace,
    predictor: Predictor,
    sources: list[ImageSource],
    bar: PredictProgress,
) -> None:
    """Write a row for each image. Files appear only where there is an image. Raises BrokenPipeError
    where the reader of the rows is gone."""
    from stoker.use.rows import FeatureWriter, RowWriter, row_file

    answers = predictor.answers(sources)
    with ExitStack() as files:
        files.enter_context(closing(answers))
        first = next(answers, None)
        if first is None:
            return
        file = files.enter_context(row_file(parsed.out))
        format = parsed.format or format_of(parsed.out)
        rows = RowWriter(file, parsed.out, format, predictor.classes, predictor.top)
        writers: list[RowWriter | FeatureWriter] = [rows]
        if parsed.features:
            writers.append(files.enter_context(FeatureWriter.open(parsed.features)))
        for some in chain([first], answers):
            for writer in writers:
                writer.write(some)
            bar.update(some.names, some.errors)


def format_of(out: str) -> str:
    """The format that the name of a file says; csv where it says none."""
    suffix = Path(out).suffix.removeprefix(".").lower()
    return suffix if suffix in FORMATS else FORMATS[0]
