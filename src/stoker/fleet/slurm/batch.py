"""The batch file of a job: plain text that a person can read, edit and submit again.

Invariants: every word of the user's is quoted for the shell, and nothing in the file holds a line
break or a control character of theirs. The command runs below srun, because SLURM signals steps,
not batch scripts, at a preemption. It is told to stop before the time limit. The environment is
not in the file: no secret is.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stoker.errors import BadRequest
from stoker.fleet.slurm.site import require_printable
from stoker.text import shown

FILE = "slurm.sh"
GRACE_S, LEAST_GRACE_S = 120, 10
"""Seconds before the time limit at which a command is told to stop; a short limit has a sixth of
it. SLURM looks twice a minute, so it tells up to half a minute earlier."""
PORTS = "$((20000 + SLURM_JOB_ID % 10000))"
"""The port where the nodes of a job meet: another one for each job."""
_PLAIN = re.compile(r"[A-Za-z0-9_.,:;/@%+=*~^!&()\[\]{}|<>?$-]*")
"""Values that sbatch reads as they are, without quotes."""
_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")


@dataclass(frozen=True)
class BatchJob:
    """What to run, and with which options of sbatch."""

    name: str
    words: Sequence[str]
    """The words of a stoker command."""
    folder: Path
    """Where the batch file, the output and the records of the job are."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Options of sbatch by their long names; an empty value is a flag."""
    setup: Sequence[str] = ()
    progress: Sequence[Path] = ()
    """The grids, packed sets and runs that tell how far the job got."""
    tasks: int = 0
    """Tasks of an array; 0: no array."""

    @property
    def file(self) -> Path:
        return self.folder / FILE

    @property
    def nodes(self) -> int:
        """Nodes of the job. Raises BadRequest where --nodes is no number."""
        text = self.options.get("nodes", "1")
        if not (text.isascii() and text.isdecimal() and 0 < int(text[:9]) < 10**6):
            raise BadRequest(f"--nodes must be a number of nodes, not '{shown(text)}'")
        return int(text)

    def output(self, job: str) -> Path:
        """The file with what a job prints."""
        return self.folder / (f"slurm-{job}_*.txt" if self.tasks else f"slurm-{job}.txt")


def batch_text(job: BatchJob, directory: Path) -> str:
    """The text of the batch file of a job that runs in a directory. Raises BadRequest for what
    cannot stand in one."""
    folder = job.folder.absolute()
    for word in [*job.words, *map(str, [directory, folder, sys.executable, *job.progress])]:
        require_printable("the command", word)
    lines = [
        "#!/bin/bash",
        f"# Edit it if you like, and submit it again: sbatch {shlex.quote(str(folder / FILE))}",
        *(sbatch_line(name, value) for name, value in all_options(job, folder).items()),
        "",
        f"cd {shlex.quote(str(directory))} || exit 1",
        *job.setup,
        "",
        *command_lines(job),
        "code=$?",
        "",
        "# Records the end. Queues the job again if it was stopped with everything saved (75), or",
        "# failed, as long as it makes progress.",
        f"exec {end_command(job, folder)}",
    ]
    return "\n".join(lines) + "\n"


def all_options(job: BatchJob, folder: Path) -> dict[str, str]:
    """The options of sbatch, with ours where the user gave no other."""
    if "\\" in str(folder):
        raise BadRequest(f"SLURM writes no output below a backslash: {shown(str(folder))}")
    output = str(folder).replace("%", "%%") + ("/slurm-%A_%a.txt" if job.tasks else "/slurm-%j.txt")
    return {
        "job-name": job.name,
        "output": output,
        "open-mode": "append",
        "requeue": "",
        "signal": f"USR1@{grace_s(job.options.get('time', ''))}",
        "nodes": str(job.nodes),
        "ntasks-per-node": "1",
        **({"array": f"0-{job.tasks - 1}"} if job.tasks else {}),
        **{name: value for name, value in job.options.items() if name != "nodes"},
    }


def command_lines(job: BatchJob) -> list[str]:
    """The lines that run the command: on one node, or on each of several."""
    python = shlex.join([sys.executable, "-P", "-m", "stoker"])
    # srun takes these from its own flags alone.
    cpus = ' --cpus-per-task="$SLURM_CPUS_PER_TASK"' * ("cpus-per-task" in job.options)
    if job.nodes == 1:
        return [f"srun{cpus} {python} {shlex.join(job.words)}"]
    return [
        "# The nodes meet at the address of the first one.",
        'first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        'address=$(scontrol show node "$first" | sed -n "s/.*NodeAddr=\\([^ ]*\\).*/\\1/p")',
        f"srun{cpus} --kill-on-bad-exit=0 {python} {shlex.join(job.words)} \\",
        f'  --nodes {job.nodes} --rendezvous "$address:{PORTS}"',
    ]


def end_command(job: BatchJob, folder: Path) -> str:
    """The command that records the end of a job and decides what comes next."""
    words = [sys.executable, "-P", "-m", "stoker", "requeue", str(folder)]
    for path in job.progress:
        words += ["--progress", str(path)]
    return f'{shlex.join(words)} --code "$code"'


def sbatch_line(name: str, value: str) -> str:
    """One option as sbatch reads it from a batch file: it knows quotes and backslashes."""
    require_printable(f"--{name}", value)
    if not _PLAIN.fullmatch(value):
        value = '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return f"#SBATCH --{name}={value}" if value else f"#SBATCH --{name}"


def grace_s(limit: str) -> int:
    """How many seconds before a time limit the command is told to stop."""
    seconds = limit_s(limit)
    if seconds is None:
        return GRACE_S
    return max(LEAST_GRACE_S, min(GRACE_S, seconds // 6))


def limit_s(text: str) -> int | None:
    """The seconds of a time limit of SLURM: M, M:S, H:M:S, D-H, D-H:M or D-H:M:S; None for other
    texts."""
    match = _TIME.fullmatch(text)
    if not match:
        return None
    days, *rest = match.groups()
    numbers = [int(part) for part in rest if part is not None]
    units = [3600, 60, 1] if days is not None or len(numbers) == 3 else [60, 1]
    clock = sum(number * unit for number, unit in zip(numbers, units, strict=False))
    return int(days or 0) * 86400 + clock


def name_of(text: str) -> str:
    """A text as the name of a folder: letters, digits, dots, dashes and underscores."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")[:100] or "job"
