"""stoker export RUN OUT: a trained model as files that other programs load."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stoker.cli.flags import Parser, add_code_flags
from stoker.cli.places import run_folder
from stoker.errors import FINISHED
from stoker.run.directory import Run
from stoker.survive.stopping import UNCHANGED, listening, stops_at_once
from stoker.text import say, shown
from stoker.use.export.target import formats_of, require_target

EXAMPLES = (
    "stoker export runs/photos-first-look-1a2b3c4d5e photos-model",
    "stoker export runs/mine model --to safetensors,torch,onnx",
)


def parser() -> Parser:
    flags = Parser(
        EXAMPLES,
        prog="stoker export",
        description="Write a run's model into the folder OUT, with its classes, its preprocessing "
        "and a model card. OUT appears complete or not at all. 'stoker predict OUT' and 'stoker "
        "evaluate OUT' use it.",
    )
    add = flags.add_argument
    add("run", metavar="RUN", help="a run directory")
    add("out", metavar="OUT", help="the folder to write; it must be new or empty")
    add(
        "--to",
        default="safetensors",
        metavar="FORMAT,...",
        help="safetensors (weights; timm loads them), torch (a .pt2 file that runs with PyTorch "
        "alone), onnx (needs the extra onnx) [safetensors]",
    )
    add(
        "--checkpoint",
        default="best",
        metavar="NAME",
        help="best, last, or a folder of the run's checkpoints [best]",
    )
    add("--overwrite", action="store_true", help="replace OUT where it is an export")
    add_code_flags(flags)
    return flags


def run(words: Sequence[str]) -> int:
    parsed = parser().parse(words)
    formats, out = formats_of(parsed.to), Path(parsed.out)
    folder = run_folder(parsed.run, checkpoint=parsed.checkpoint)
    Run(folder).record  # noqa: B018  refuses what is no run, before torch is imported
    require_target(out, overwrite=parsed.overwrite)
    say(f"exporting {shown(parsed.run)} to {', '.join(formats)}")

    from stoker.show.use.export import lines
    from stoker.use.classifier import CodeConsent
    from stoker.use.export.write import ExportOptions, export_run

    consent = CodeConsent(parsed.trust_code, parsed.model)
    options = ExportOptions(formats, parsed.checkpoint, parsed.overwrite, consent)
    with listening() as stop, stops_at_once(stop, "exporting", UNCHANGED):
        report = export_run(Path(folder), out, options, stop)
    say(*lines(report, out))
    return FINISHED
