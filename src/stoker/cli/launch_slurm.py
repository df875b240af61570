"""stoker launch slurm [options] -- VERB ...: a command of Stoker as a job of SLURM."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from stoker.cli import VERBS
from stoker.cli.flags import Parser
from stoker.cli.slurm_flags import add_slurm_flags, site_of, slurm_options
from stoker.commit import sha256_json
from stoker.errors import FINISHED, BadRequest
from stoker.fleet.slurm.batch import BatchJob, batch_text, name_of
from stoker.fleet.slurm.commands import live, submit
from stoker.recipe.resolve import nearest
from stoker.stores.location import is_location
from stoker.text import say, shown

FOLDER = Path("jobs")
KEPT = {"train": ("run", "runs"), "sweep": ("out", "sweeps"), "tickets": ("out", "tickets")}
"""Where a verb keeps its work: the flag, and the folder that a job names where none is given."""


def parser() -> Parser:
    launch = Parser(
        prog="stoker launch slurm",
        usage="stoker launch slurm [options] -- VERB ...",
        description="Submit a command of Stoker as a job of SLURM. Before its time limit, and when "
        "it is preempted, the command saves and the job is queued again, as long as it makes "
        "progress. The batch file is plain text: jobs/NAME/slurm.sh. All other options, such as "
        "--qos=long, are passed on to sbatch.",
        examples=(
            "stoker launch slurm --time 4:00:00 --gres gpu:1 -- train photos-packed",
            "stoker launch slurm --nodes 2 --time 8:00:00 -- train photos-packed --ranks 4",
            "stoker launch slurm --dry-run --time 30 -- pack photos",
        ),
    )
    add = launch.add_argument
    add("--job-name", metavar="NAME", help="name of the job and of its folder [VERB-DATA-HASH]")
    add("--nodes", metavar="N", help="machines that train together [1]")
    add("--dry-run", action="store_true", help="print the batch file; write and submit nothing")
    add_slurm_flags(launch)
    return launch


def run(arguments: Sequence[str]) -> int:
    words = list(arguments)
    cut = words.index("--") if "--" in words else len(words)
    flags = parser()
    parsed, others = flags.parse_known_args(words[:cut])
    command = words[cut + 1 :]
    if not command:
        raise BadRequest(
            "no command: write it after --, such as 'stoker launch slurm --time 60 -- train photos'"
        )
    job = job_of(parsed, others, command)
    if parsed.dry_run:
        say(*batch_text(job, Path.cwd()).splitlines(), wrap=False)
        return FINISHED
    if running := next(iter(live(job.folder)), None):
        raise BadRequest(
            f"job {running} does this already: 'scancel {running}' ends it, or give this one "
            "another --job-name"
        )
    show_submitted(job, submit(job), command[0])
    return FINISHED


def job_of(parsed: argparse.Namespace, others: Sequence[str], command: Sequence[str]) -> BatchJob:
    """The job of the options and the command. Raises BadRequest where either is wrong."""
    verb = command[0]
    verbs = [each for each in VERBS if each not in ("launch", "requeue")]
    if verb not in verbs:
        near = None if verb in VERBS else nearest(verb, verbs)
        hint = f"did you mean '{near}'?" if near else "write a command of Stoker, such as 'train'"
        raise BadRequest(f"'{shown(verb)}' cannot be launched: {hint}")
    module, words = import_module(f"stoker.cli.{verb.replace('-', '_')}"), list(command[1:])
    if verb == "bench":
        module, words = module.subject_of(words)
    request = module.parser().parse(words)
    first = next((word for word in words if not word.startswith("-")), "")
    subject = Path(getattr(request, "data", "") or getattr(request, "source", "") or first).name
    name = parsed.job_name or f"{verb}-{name_of(subject)}-{sha256_json(list(command))[:6]}"
    more = {**passed_on(others), **({"nodes": parsed.nodes} if parsed.nodes else {})}
    site = site_of(parsed)
    kept, words = with_kept_work(verb, request, list(command), name_of(name))
    job = BatchJob(
        name=name,
        words=words,
        folder=FOLDER / name_of(name),
        options=slurm_options(parsed, site, more),
        setup=site.setup,
        progress=kept,
    )
    if job.nodes > 1 and (verb != "train" or request.nodes or request.rendezvous):
        raise BadRequest(
            f"--nodes {job.nodes} names the nodes and where they meet: drop --nodes and "
            "--rendezvous after --"
            if verb == "train"
            else f"--nodes {job.nodes}: only 'train' runs on several machines"
        )
    return job


def with_kept_work(
    verb: str, request: argparse.Namespace, words: list[str], name: str
) -> tuple[list[Path], list[str]]:
    """Where the command keeps its work, by which the job's progress is seen, and the command with
    that place named."""
    if verb == "pack":
        return [packed_set(request.source, request.out)], words
    if verb not in KEPT:
        return [], words
    flag, folder = KEPT[verb]
    place = Path(getattr(request, flag) or f"{folder}/{name}")
    if not getattr(request, flag):
        words = [*words, f"--{flag}", str(place)]
    is_packed = is_location(request.data) or (Path(request.data) / "dataset.json").exists()
    return [*([] if is_packed else [packed_set(request.data, None)]), place], words


def packed_set(source: str, out: str | None) -> Path:
    """The folder that a source is packed into. Raises BadRequest where there is no source."""
    from stoker.data.packing.pack import default_out
    from stoker.data.sources.classes import nothing_at

    if source == "-":
        raise BadRequest("a job has no standard input: name a folder, an archive or a table")
    if not Path(source).exists():
        raise nothing_at("folder, archive or table", source)
    return Path(out) if out else default_out(source)


def passed_on(words: Sequence[str]) -> dict[str, object]:
    """Options for sbatch that are not ours: --name=value, --name value, or --name alone. Raises
    BadRequest for other words."""
    options: dict[str, object] = {}
    last = ""
    for word in words:
        name, equals, value = word.removeprefix("--").partition("=")
        if word.startswith("--"):
            options[name] = value if equals else True
            last = "" if equals else name
        elif last:
            options[last], last = word, ""
        else:
            raise BadRequest(
                f"'{shown(word)}' is no option: write options of sbatch as --name=value"
            )
    return options


def show_submitted(job: BatchJob, number: str, verb: str) -> None:
    output = shlex.quote(str(job.output(number)))
    say(f"job {number} is submitted: {job.file}")
    say(f"its output: tail -F {output}")
    say(f"the queue: squeue -j {number}; 'scancel {number}' ends it, and it saves first")
    if verb == "train" and job.progress:
        say(f"its run: stoker explain {shlex.quote(str(job.progress[-1]))}")
