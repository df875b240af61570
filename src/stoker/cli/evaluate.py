"""stoker evaluate RUN [DATA]: what a trained model gets right, and what it takes for what."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from stoker.cli.flags import Parser, add_code_flags
from stoker.cli.places import run_folder
from stoker.cli.streams import check_output, write_output
from stoker.errors import FINISHED, BadRequest, StokerError
from stoker.fleet.launcher import is_rank
from stoker.fleet.variables import check_rank_variables, check_ranks
from stoker.recipe.resolve import nearest
from stoker.run.directory import Run
from stoker.stores.location import is_location
from stoker.stores.settings import was_named
from stoker.survive.stopping import UNCHANGED, StopRequest, listening, stops_at_once
from stoker.text import plural, say, shown

if TYPE_CHECKING:
    import torch

    from stoker.data.dataset import Dataset
    from stoker.train.process_group import Ranks
    from stoker.use.classifier import Classifier
    from stoker.use.evaluate import Evaluation
    from stoker.use.selection import Selection

MOST_WORST = 2_000
SHEET_WORST = 50
"""Tiles of a sheet without --worst."""
TTA = ("hflip",)


def parser() -> Parser:
    flags = Parser(
        prog="stoker evaluate",
        usage="stoker evaluate RUN [DATA] [flags]",
        description="Evaluate a trained model: accuracy, calibration, the weakest classes, what is "
        "taken for what, and the images with the highest loss.",
        examples=(
            "stoker evaluate runs/photos-first-look-*       on the run's own validation images",
            "stoker evaluate RUN new-photos --json new.json",
            "stoker evaluate RUN --worst 50 --sheet worst.png   find wrong labels",
        ),
    )
    add = flags.add_argument
    add("run", metavar="RUN", help="a folder that 'stoker train' wrote, or s3://...")
    add(
        "data",
        metavar="DATA",
        nargs="?",
        help="a packed set, a folder CLASS/images, or an archive [the set of the run]",
    )
    add("--split", default="", metavar="NAME", help="[val, or test, or all images of a folder]")
    add("--checkpoint", default="best", metavar="best|last|NAME", help="[best]")
    add("--tta", default="", metavar="hflip", help="average the logits of image and mirror image")
    add("--ranks", type=int, default=1, metavar="N", help="processes on this machine [1]")
    add("--batch-size", type=int, default=0, metavar="N", help="images at once [the run's]")
    add("--threads", type=int, default=0, metavar="N", help="threads that decode [cores]")
    add("--all-classes", action="store_true", help="show every class, not the weakest 20")
    add("--worst", type=int, default=0, metavar="N", help="list the N images with the highest loss")
    add("--sheet", default="", metavar="FILE", help="draw these images with captions as a PNG")
    add("--json", default="", metavar="FILE", help="also write all figures; - for standard output")
    add("--csv", default="", metavar="FILE", help="also write all classes; - for standard output")
    add_code_flags(flags)
    return flags


def run(arguments: Sequence[str]) -> int:
    parsed = parser().parse(arguments)
    check(parsed)
    parsed.run = run_folder(parsed.run, checkpoint=parsed.checkpoint)
    # Before the import of torch: what is no run, or has no set, is answered quickly.
    named = data_of(parsed)
    with listening() as stop:
        if parsed.ranks > 1 and not is_rank():
            return start_ranks(parsed, arguments, named, stop)
        return evaluate_here(parsed, named, stop)


def check(parsed: argparse.Namespace) -> None:
    """Raise BadRequest for flags that cannot be right."""
    check_ranks(parsed.ranks)
    if not is_rank():
        check_rank_variables(os.environ, parsed.ranks)
    for name in ("batch_size", "threads", "worst"):
        if getattr(parsed, name) < 0:
            flag = name.replace("_", "-")
            raise BadRequest(f"--{flag} must be at least 0, not {getattr(parsed, name)}")
    if parsed.worst > MOST_WORST:
        raise BadRequest(f"--worst must be at most {MOST_WORST}, not {parsed.worst}")
    if parsed.tta and parsed.tta not in TTA:
        near = nearest(parsed.tta, TTA)
        hint = f"did you mean '{near}'?" if near else f"it takes {', '.join(TTA)}"
        raise BadRequest(f"--tta {shown(parsed.tta)}: {hint}")
    if parsed.json == parsed.csv == "-":
        raise BadRequest("--json - and --csv - both write to standard output: name a file for one")
    for flag in ("json", "csv"):
        if (file := getattr(parsed, flag)) != "-":
            check_output(f"--{flag}", file)
    if parsed.sheet:
        from stoker.show.sheet import check_sheet

        check_sheet(Path(parsed.sheet))
        parsed.worst = parsed.worst or SHEET_WORST


def data_of(parsed: argparse.Namespace) -> str:
    """The set, folder or archive to evaluate on. Raises BadRequest where there is none."""
    if Run(parsed.run).exists:
        record = Run(parsed.run).record  # refuses a damaged run.json
    elif not Path(parsed.run).is_dir():
        raise BadRequest(f"{shown(parsed.run)} is not a run (no run.json), and not an export")
    elif parsed.data is None:
        raise BadRequest(
            f"{shown(parsed.run)} is not a run, so it does not say which images to evaluate on: "
            f"stoker evaluate {shown(parsed.run)} DATA"
        )
    else:
        record = {}
    if parsed.data is not None:
        if not is_location(parsed.data) and not Path(parsed.data).exists():
            from stoker.data.sources.classes import nothing_at

            raise nothing_at("packed set, folder or archive", parsed.data)
        return str(parsed.data)
    own = record["data"]
    if not was_named(own):
        raise BadRequest(
            f"{shown(parsed.run)} was trained on {shown(own)}, and no command on this machine was "
            "given a location there: if you trust it, name it: "
            f"stoker evaluate {shown(parsed.run)} {shown(own)}"
        )
    if not is_location(own) and not (Path(own) / "dataset.json").is_file():
        raise BadRequest(
            f"the set that {shown(parsed.run)} was trained on is no longer at {shown(own)}: "
            f"name it, or other images: stoker evaluate {shown(parsed.run)} DATA"
        )
    return str(own)


def is_quiet(parsed: argparse.Namespace) -> bool:
    """Whether nothing but data goes to standard output."""
    return "-" in (parsed.json, parsed.csv)


def teller(parsed: argparse.Namespace) -> Callable[..., None]:
    """How lines for people are printed: to standard error where data goes to standard output."""
    return lambda *lines: say(*lines, stream=sys.stderr if is_quiet(parsed) else None)


def start_ranks(
    parsed: argparse.Namespace, arguments: Sequence[str], named: str, stop: StopRequest
) -> int:
    """Pack where that is needed, then have the ranks evaluate; the exit code."""
    from stoker.use.ranks import evaluate_on_ranks

    data = Path(named)
    if not (data / "dataset.json").is_file():
        import torch

        with stops_at_once(stop, "evaluating", UNCHANGED):
            classifier = opened(parsed, torch.device("cpu"))
            data = packed(named, classifier, parsed)
    return evaluate_on_ranks(parsed.ranks, ["evaluate", *arguments], data, lambda: bool(stop))


def evaluate_here(parsed: argparse.Namespace, named: str, stop: StopRequest) -> int:
    """Evaluate in this process; the exit code."""
    with stops_at_once(stop, "evaluating", UNCHANGED):
        from stoker.train.process_group import Ranks

        with stop.held_back():
            ranks = Ranks.join(0, stop)
        try:
            classifier = opened(parsed, ranks.device)
            require_same_checkpoint(classifier, ranks)
            selection, dataset = chosen_images(parsed, named, classifier, ranks)
            evaluation = measured(parsed, classifier, selection, ranks)
        finally:
            ranks.leave()
    # Outside the block: what is written is complete, also if a stop is requested now.
    if evaluation is not None:
        show(parsed, evaluation, classifier, selection, dataset, ranks)
    return FINISHED


def opened(parsed: argparse.Namespace, device: torch.device) -> Classifier:
    from stoker.use.classifier import CodeConsent, open_classifier

    consent = CodeConsent(parsed.trust_code, parsed.model)
    return open_classifier(Path(parsed.run), device, parsed.checkpoint, consent)


def require_same_checkpoint(classifier: Classifier, ranks: Ranks) -> None:
    """Raise StokerError where a run saved a better checkpoint between the reads of two ranks."""
    step = int(classifier.facts.get("step", 0))
    largest, smallest = ranks.largest([step, -step])
    if largest != -smallest:
        raise StokerError(
            "the run saved a better checkpoint just now, which only some ranks have read: give the "
            "same command again"
        )


def chosen_images(
    parsed: argparse.Namespace, named: str, classifier: Classifier, ranks: Ranks
) -> tuple[Selection, Dataset]:
    """The images to evaluate on, and the packed set that they are in."""
    from stoker.data.dataset import Dataset
    from stoker.data.loading.stored_size import enlarged_note
    from stoker.train.attempt.launch import PACKED
    from stoker.use.selection import select, split_to_evaluate, storage_note

    tell, preprocessing = teller(parsed), classifier.preprocessing
    data = Path(os.environ[PACKED]) if is_rank() and PACKED in os.environ else Path(named)
    if not is_location(data) and not Dataset.is_packed(data):
        data = packed(named, classifier, parsed)
    dataset = Dataset(data)
    name = split_to_evaluate(dataset, parsed.split, classifier.facts.get("fingerprint"))
    selection = select(dataset, name, classifier.classes)
    if ranks.first:
        stored = dataset.description["storage"]
        notes = (
            other_images_note(parsed, dataset, classifier),
            storage_note(stored, asdict(preprocessing.storage)),
            enlarged_note(selection.split, stored, preprocessing.image_size),
        )
        tell(*(f"note: {note}" for note in notes if note))
    return selection, dataset


def other_images_note(
    parsed: argparse.Namespace, dataset: Dataset, classifier: Classifier
) -> str | None:
    """A note where the place of the run's own set holds another one now; else None."""
    if parsed.data is not None or dataset.fingerprint == classifier.facts.get("fingerprint"):
        return None
    return f"{shown(dataset.name)} holds other images than those that the run was trained on"


def packed(named: str, classifier: Classifier, parsed: argparse.Namespace) -> Path:
    """The packed set of a folder or an archive, with what is wrong with its images."""
    from stoker.data.dataset import Dataset
    from stoker.show.pack import PackProgress, attention_lines, summary_lines
    from stoker.use.evaluation_set import evaluation_set

    tell, storage = teller(parsed), classifier.preprocessing.storage
    trained_on = classifier.facts.get("fingerprint")
    with closing(PackProgress()) as bar:
        progress = None if is_quiet(parsed) else bar
        packed_set = evaluation_set(named, storage, trained_on, tell, progress)
    if packed_set.is_new:
        dataset = Dataset(packed_set.path)
        report = dataset.description["report"]
        tell(summary_lines(dataset)[0], *attention_lines(dataset, report))
    return packed_set.path


def measured(
    parsed: argparse.Namespace, classifier: Classifier, selection: Selection, ranks: Ranks
) -> Evaluation | None:
    """The evaluation, with its progress on a terminal; None on ranks other than 0."""
    from stoker.show.progress import TimedLines, progress
    from stoker.use.evaluate import EvaluateOptions, evaluate

    options = EvaluateOptions(
        parsed.batch_size, parsed.threads, parsed.tta == "hflip", parsed.worst
    )
    shows = ranks.first and not is_quiet(parsed)
    tell = teller(parsed)
    with closing(progress() if shows else TimedLines()) as bar:

        def update(done: int, total: int) -> None:
            if shows:
                bar.update(done, total, f"{done:,} of {total:,} images")

        def note(text: str) -> None:
            if ranks.first:
                tell(f"note: {text}")

        return evaluate(classifier, selection, ranks, options, update, note)


def show(
    parsed: argparse.Namespace,
    evaluation: Evaluation,
    classifier: Classifier,
    selection: Selection,
    dataset: Dataset,
    ranks: Ranks,
) -> None:
    """Print the evaluation and write the files that were asked for."""
    from stoker.run.evaluation import report_bytes
    from stoker.show.use.evaluate import (
        EvaluationFacts,
        class_table,
        evaluation_lines,
        figures_of,
        worst_lines,
    )
    from stoker.show.use.worst import write_worst

    report = evaluation.report
    facts = EvaluationFacts(
        model=classifier.origin,
        step=classifier.facts.get("step"),
        data=dataset.name,
        is_training_set=dataset.fingerprint == classifier.facts.get("fingerprint"),
        seconds=evaluation.seconds,
        ranks=ranks.world,
        tta=parsed.tta,
        left_out=selection.left_out,
    )
    if not is_quiet(parsed):
        say(*evaluation_lines(report, facts, all_classes=parsed.all_classes), wrap=False)
        if not parsed.sheet:
            say(*worst_lines(report), wrap=False)
    if parsed.sheet:
        write_worst(parsed.sheet, report, selection)
        images, file = len(report.worst), shown(parsed.sheet)
        teller(parsed)(f"the {plural(images, 'image')} with the highest loss: {file}")
    if parsed.csv:
        write_text(parsed.csv, "--csv", class_table(report).encode("utf-8", "backslashreplace"))
    if parsed.json:
        write_text(parsed.json, "--json", report_bytes(figures_of(report, facts)))


def write_text(file: str, flag: str, data: bytes) -> None:
    """Write the text of a flag to its file, or to standard output."""
    if file == "-":
        say(*data.decode().splitlines(), wrap=False)
    else:
        write_output(flag, file, data)
