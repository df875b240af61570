"""stoker launch sky [options] -- train ...: train on a machine that SkyPilot rents and ends."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from stoker.cli import train
from stoker.cli.flags import Parser, flag_values
from stoker.commit import sha256_json
from stoker.errors import FAILED, FINISHED, BadRequest
from stoker.fleet.sky.commands import find_sky, launch
from stoker.fleet.sky.records import LAUNCHED, CloudJob, read_job, write_file, write_job
from stoker.fleet.sky.task import END_COMMANDS, FILE, LaunchCommand, SkyTask, task_text
from stoker.fleet.sky.wheel import NAME as WHEEL
from stoker.fleet.sky.wheel import wheel_bytes
from stoker.fleet.sky.yaml import Plain
from stoker.recipe.model_file import is_own
from stoker.recipe.recipe import Recipe
from stoker.recipe.resolve import resolutions
from stoker.stores.location import refuse_credentials
from stoker.text import plural, say, shown
from stoker.train.model.names import OWN

FOLDER = Path("jobs")
OPTIONS = {
    "gpus": ("NAME:N", "accelerators", "GPUs, such as A10G:1 or A100:8"),
    "instance-type": ("NAME", "instance_type", "the provider's name of a kind of machine"),
    "cpus": ("N", "cpus", "cores, such as 8 or 8+"),
    "memory": ("GB", "memory", "memory, such as 32 or 32+"),
    "disk": ("GB", "disk_size", "disk of the machine"),
}
"""Flags, each with its value, SkyPilot's name and its help."""
AMOUNTS = ("cpus", "memory", "disk")
OURS = ("accelerators", "autostop", "cloud", "infra", "job_recovery", "region", "use_spot", "zone")
"""What --resource cannot set: there are flags for it, or the lease depends on it."""
URL = re.compile(r"[a-z][a-z0-9]*://[^/\s]+\S*")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAME = re.compile(r"[^A-Za-z0-9-]+")
MOST_NAME = 40
"""Characters of a name: some providers allow few."""


def parser() -> Parser:
    sky = Parser(
        prog="stoker launch sky",
        usage="stoker launch sky --bucket URL [options] -- train DATA ...",
        description="Train on a machine that SkyPilot rents. It ends with the job, and when the "
        "job hangs: nothing on this machine is needed for that. The task file is plain text: "
        "jobs/NAME/sky.yaml. The run directory is in the bucket, so a lost spot machine is "
        "replaced by another one, which goes on.",
        examples=(
            "stoker launch sky --gpus A10G:1 --bucket s3://mine/runs -- train photos-packed",
            "stoker launch sky --on-demand --cloud gcp --gpus L4:1 --bucket gs://mine/runs --hours "
            "8 -- train photos-packed --epochs 30",
            "stoker launch sky --dry-run --bucket s3://mine/runs -- train photos-packed",
        ),
    )
    add = sky.add_argument
    add("--bucket", metavar="URL", help="where the run goes: a bucket that exists, with a folder")
    add("--hours", metavar="H", type=float, default=24.0, help="hours of all its machines [24]")
    for name, (metavar, _, help) in OPTIONS.items():
        add(f"--{name}", metavar=metavar, help=help)
    add("--cloud", metavar="NAME", help="aws, gcp, azure, lambda, ... [the cheapest]")
    add("--region", metavar="NAME", help="a region of the cloud")
    add("--spot", action="store_true", default=True, help="a spot machine [yes]")
    add("--on-demand", dest="spot", action="store_false", help="not a spot machine")
    add("--resource", metavar="KEY=VALUE", action="append", default=[], help="any other resource")
    add("--secret", metavar="NAME", action="append", default=[], help="pass on a variable by name")
    add("--job-name", metavar="NAME", help="name of the job and of its folder [train-DATA-HASH]")
    add("--dry-run", action="store_true", help="print the task file; write and launch nothing")
    add("--yes", action="store_true", help="do not let SkyPilot ask before it rents")
    add("--stall", metavar="MINUTES", type=float, help="minutes without progress: a hang [60]")
    add(
        "--end",
        metavar="COMMAND",
        action="append",
        help=f"how the machine ends itself, in turn [{', '.join(END_COMMANDS)}]",
    )
    return sky


def run(arguments: Sequence[str]) -> int:
    words = list(arguments)
    cut = words.index("--") if "--" in words else len(words)
    parsed = parser().parse(words[:cut])
    task = task_of(parsed, words[cut + 1 :])
    folder = FOLDER / task.name
    text = task_text(task, folder / FILE, (folder / WHEEL).absolute())
    if parsed.dry_run:
        say(*text.splitlines(), wrap=False)
        return FINISHED
    sky = find_sky()
    if not (parsed.yes or sys.stdin.isatty()):
        raise BadRequest("there is no terminal on which SkyPilot could ask: add --yes to rent")
    job = CloudJob(task.name, task.managed, time.time(), machine_of(task), task.bucket)
    require_free(folder)
    write_file(folder / WHEEL, wheel_bytes())
    write_file(folder / FILE, text.encode())
    write_job(folder, job)
    hours = plural(task.hours, "hour")
    say(f"task file {folder / FILE}; the machine ends with the job, or after {hours}")
    code = launch(LaunchCommand(task, folder / FILE, parsed.yes, (sky,)).words)
    if code:
        say(
            f"stoker: sky ended with {code}: 'stoker runs --refresh' says whether a machine was "
            "rented",
            stream=sys.stderr,
        )
        return FAILED
    write_job(folder, job.with_state(LAUNCHED, time.time()))
    show_launched(task)
    return FINISHED


def require_free(folder: Path) -> None:
    """Raise BadRequest where an earlier launch of this job may still run."""
    job = read_job(folder)
    if job and not (isinstance(job, CloudJob) and not job.may_be_billed):
        raise BadRequest(
            f"{shown(str(folder))} was launched before, and its end was not read back: 'stoker "
            "runs --refresh' does that; or give another --job-name"
        )


def task_of(parsed: argparse.Namespace, command: Sequence[str]) -> SkyTask:
    """The task of the options and the command. Raises BadRequest where either is wrong."""
    if not command:
        raise BadRequest(
            "no command: write it after --, such as 'stoker launch sky --bucket URL -- train "
            "photos-packed'"
        )
    if command[0] != "train":
        raise BadRequest(
            f"'{shown(command[0])}' cannot be launched on a rented machine: 'train' can"
        )
    if not parsed.bucket or not URL.fullmatch(parsed.bucket):
        raise BadRequest(
            "name a bucket for the run, such as --bucket s3://mine/runs: the machine's own disk is "
            "lost with it"
        )
    for url in (parsed.bucket, *command[1:]):
        refuse_credentials(url)
    for flag, value in (("hours", parsed.hours), ("stall", parsed.stall)):
        if value is not None and not 0 < value < 1e5:
            raise BadRequest(f"--{flag} must be a positive number, not {value:g}")
    if wrong := next((name for name in parsed.secret if not VARIABLE.fullmatch(name)), None):
        raise BadRequest(
            f"--secret {shown(wrong.partition('=')[0])}: name the variable alone; its value is "
            "read from the environment"
        )
    request = train.parser().parse(command[1:])
    if request.nodes or request.rendezvous:
        raise BadRequest("one machine trains there: drop --nodes and --rendezvous")
    recipe = resolutions(request.recipe, flag_values(request))[0].recipe
    data = Path(request.data.rstrip("/"))
    name = name_of(parsed.job_name or f"train-{data.name}-{sha256_json(list(command))[:6]}")
    directory = f"runs/{name_of(Path(request.run).name) if request.run else name}"
    words, mounts = on_the_machine(list(command[1:]), request, recipe, directory)
    return SkyTask(
        name=name,
        words=["train", *words],
        run=directory,
        bucket=f"{parsed.bucket.rstrip('/')}/{Path(directory).name}",
        mounts=mounts,
        resources=resources_of(parsed),
        spot=parsed.spot,
        hours=parsed.hours,
        stall_minutes=parsed.stall,
        extras=[] if is_own(recipe.model) or OWN.fullmatch(recipe.model) else ["timm"],
        secrets=parsed.secret,
        end=parsed.end or END_COMMANDS,
    )


def on_the_machine(
    words: list[str], request: argparse.Namespace, recipe: Recipe, directory: str
) -> tuple[list[str], dict[str, str]]:
    """The words with the paths that they have on the machine, and what to mount there. Raises
    BadRequest for a path that would be missing there."""
    mounts = {}
    data = f"data/{name_of(Path(request.data.rstrip('/')).name)}"
    mounts[data] = request.data if URL.fullmatch(request.data) else packed_set(request.data)
    words = with_value(words, "data", request.data, data)
    files = {"recipe": request.recipe, "weights": recipe.weights, "model": recipe.model_file}
    for flag, file in files.items():
        if not file or (flag == "recipe" and not file.endswith(".toml")):
            continue
        given = getattr(request, flag) or ""
        suffix = ":" + given.rpartition(":")[2] if flag == "model" else ""
        if not given:
            raise BadRequest(
                f"the recipe file names {shown(str(file))}, which the machine does not have: give "
                f"--{flag} as well"
            )
        if not Path(file).exists():
            raise BadRequest(f"--{flag} {shown(str(file))} does not exist")
        place = f"files/{flag}/{name_of(Path(file).stem)}{Path(file).suffix}"
        mounts[place] = str(Path(file).absolute())
        words = with_value(words, flag, given, place + suffix)
    if request.run:
        return with_value(words, "run", request.run, directory), mounts
    return [*words, "--run", directory], mounts


def with_value(words: list[str], name: str, old: str, new: str) -> list[str]:
    """The words of a training command with another value of one argument."""
    for number, word in enumerate(words):
        for text in (new if word == old else "", word.removesuffix(old) + new):
            changed = [*words[:number], text, *words[number + 1 :]]
            if text and word.endswith(old) and getattr(parse(changed), name, None) == new:
                return changed
    raise BadRequest(f"cannot tell which word is the {name}: write it once")


def parse(words: Sequence[str]) -> argparse.Namespace | None:
    try:
        return train.parser().parse(words)
    except BadRequest:
        return None


def packed_set(text: str) -> str:
    """The path of a packed set. Raises BadRequest for anything else."""
    path = Path(text)
    if not path.exists():
        raise BadRequest(f"no packed set at {shown(text)}")
    if not (path / "dataset.json").exists():
        raise BadRequest(
            f"{shown(text)} is not packed, and would be uploaded file by file: 'stoker pack "
            f"{shlex.quote(shown(text))}' first, then launch with the packed set"
        )
    return str(path.absolute())


def resources_of(parsed: argparse.Namespace) -> dict[str, Plain]:
    """The resources as SkyPilot names them. Raises BadRequest for a wrong one."""
    resources: dict[str, Plain] = {}
    if parsed.cloud or parsed.region:
        resources["infra"] = "/".join(filter(None, [parsed.cloud or "*", parsed.region]))
    for flag, (_, key, _) in OPTIONS.items():
        value = getattr(parsed, flag.replace("-", "_"))
        if value is not None and not value.strip():
            raise BadRequest(f"--{flag} is empty")
        if value is not None and flag in AMOUNTS and not value[0].isdecimal():
            raise BadRequest(f"--{flag} must be a number, such as 32 or 32+, not {shown(value)}")
        if value is not None:
            resources[key] = int(value) if key == "disk_size" and value.isdecimal() else value
    for pair in parsed.resource:
        key, equals, text = pair.partition("=")
        if not equals or not re.fullmatch(r"[a-z][a-z0-9_]*", key):
            raise BadRequest(f"--resource {shown(pair)}: write it as key=value")
        if key in OURS:
            raise BadRequest(f"--resource {key}: there is a flag for it, or the lease needs it")
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = text
        resources[key] = value if isinstance(value, bool | int | float | str) else text
    return resources


def name_of(text: str) -> str:
    """A text as the name of a job: a letter, then letters, digits and dashes."""
    name = _NAME.sub("-", text).strip("-")
    name = name if len(name) <= MOST_NAME else f"{name[: MOST_NAME - 7]}-{sha256_json(text)[:6]}"
    return name if name[:1].isalpha() else f"job-{name}".rstrip("-")


def machine_of(task: SkyTask) -> str:
    """The machine in words."""
    resources = task.resources
    kind = resources.get("accelerators") or resources.get("instance_type") or "a machine"
    place = f" on {resources['infra']}" if "infra" in resources else ""
    return f"{kind}{place}, {'spot' if task.spot else 'on demand'}"


def show_launched(task: SkyTask) -> None:
    name = shlex.quote(task.name)
    logs = f"sky jobs logs -n {name}" if task.managed else f"sky logs {name}"
    end = f"sky jobs cancel -n {name}" if task.managed else f"sky down {name}"
    say(f"its output: {logs}; '{end}' ends it")
    say(f"its run: {task.bucket}")
    say("what may be billed: stoker runs --refresh")
