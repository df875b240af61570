"""The options of SLURM as flags, for the verbs that submit jobs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping

from stoker.errors import BadRequest
from stoker.fleet.slurm.site import Site, checked_options, find_site
from stoker.text import say, shown

OPTIONS = {
    "partition": ("NAME", "partition of the cluster"),
    "account": ("NAME", "account that is charged"),
    "time": ("LIMIT", "time limit of one turn, such as 4:00:00; longer work is queued again"),
    "gres": ("LIST", "what each node must have, such as gpu:1"),
    "mem": ("SIZE", "memory of each node, such as 32G"),
    "constraint": ("LIST", "features that the nodes must have"),
    "cpus-per-task": ("N", "cores of each task"),
}
"""Options of sbatch that have a flag of their own, each with its value and its help."""


def add_slurm_flags(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Add the flags of SLURM; returns them."""
    group = parser.add_argument_group("SLURM")
    flags = [
        group.add_argument(f"--{name}", metavar=metavar, help=help)
        for name, (metavar, help) in OPTIONS.items()
    ]
    site = group.add_argument(
        "--site",
        metavar="FILE",
        help="options and setup lines for every job [slurm.toml here, or in ~/.config/stoker]",
    )
    return [*flags, site]


def site_of(parsed: argparse.Namespace) -> Site:
    """The site file, which is named to the user. Raises BadRequest."""
    site = find_site(parsed.site)
    if site.path:
        lines = [f"--{name} {value}".strip() for name, value in site.options.items()]
        text = "; ".join([*lines, *site.setup]) or "empty"
        say(f"site file {shown(str(site.path))}: {text}", stream=sys.stderr)
    return site


def slurm_options(
    parsed: argparse.Namespace, site: Site, more: Mapping[str, object] | None = None
) -> dict[str, str]:
    """The options of sbatch: those of the site, then the flags. Raises BadRequest."""
    flags = {name: getattr(parsed, name.replace("-", "_")) for name in OPTIONS}
    given = {name: value for name, value in flags.items() if value is not None}
    if empty := next((name for name, value in given.items() if not value), None):
        raise BadRequest(f"--{empty} is empty")
    return {**site.options, **checked_options({**given, **(more or {})}, "options of sbatch")}
