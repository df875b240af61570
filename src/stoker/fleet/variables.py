"""The variables with which torchrun tells a process its rank, and what is wrong with them.

Invariant: a process is a rank of ours, or of a complete and consistent set of variables, or alone.
Variables of schedulers, such as SLURM_PROCID, mean nothing here.
"""

from __future__ import annotations

from collections.abc import Mapping

from stoker.errors import BadRequest
from stoker.host.limits import usable_cores
from stoker.text import shown

NUMBERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
MEETING = ("MASTER_ADDR", "MASTER_PORT")
LEAST_LIMIT, RANKS_PER_CORE = 64, 8
"""Each rank is a process of half a gigabyte: a mistyped number would stop the machine."""
ADVICE = "if it is left over, run 'unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE'"


def check_ranks(ranks: int) -> None:
    """Raise BadRequest for a number of ranks that this machine cannot hold."""
    most = max(LEAST_LIMIT, RANKS_PER_CORE * usable_cores())
    if not 1 <= ranks <= most:
        limit = f"at most {most} on this machine" if ranks > most else "at least 1"
        raise BadRequest(f"--ranks must be {limit}, not {ranks}")


def check_rank_variables(environ: Mapping[str, str], ranks: int = 1) -> None:
    """Raise BadRequest for variables of a rank that are incomplete, wrong, or against --ranks."""
    numbers: dict[str, int] = {}
    for name in NUMBERS:
        text = environ.get(name)
        if text is None:
            continue
        if not (text.isascii() and text.isdecimal()) or len(text) > 9:
            raise BadRequest(f"{name}={shown(text)[:40]} in the environment is no number: {ADVICE}")
        numbers[name] = int(text)
        if name.endswith("SIZE") and not numbers[name]:
            raise BadRequest(f"{name}=0 in the environment must be at least 1: {ADVICE}")
    rank, local_rank = numbers.get("RANK", 0), numbers.get("LOCAL_RANK", 0)
    world = numbers.get("WORLD_SIZE", 1)
    most = numbers.get("LOCAL_WORLD_SIZE", world)
    for name, value, limit in (("RANK", rank, world), ("LOCAL_RANK", local_rank, most)):
        if value >= limit:
            raise BadRequest(
                f"{name}={value} in the environment needs {limit + 1} ranks or more, and "
                f"there {'is 1' if limit == 1 else f'are {limit}'}: {ADVICE}"
            )
    if world == 1:
        return
    missing = [name for name in ("RANK", "LOCAL_RANK", *MEETING) if not environ.get(name)]
    if missing:
        raise BadRequest(
            f"WORLD_SIZE={world} is in the environment and {missing[0]} is not: {ADVICE}; "
            "--ranks N and torchrun set all of them"
        )
    port = environ["MASTER_PORT"]
    if not (port.isascii() and port.isdecimal() and 0 < int(port[:9]) < 1 << 16):
        raise BadRequest(f"MASTER_PORT={shown(port)[:40]} in the environment is no port: {ADVICE}")
    if ranks > 1:
        raise BadRequest(
            f"--ranks {ranks} starts ranks, and WORLD_SIZE={world} in the environment says that "
            f"this process is one already: drop --ranks; {ADVICE}"
        )
