"""Run schedules of the simulated fleet (docs/decisions/030-simulation.md).

python tests/simulate.py                    100,000 schedules of nodes and workers on all cores
python tests/simulate.py --schedules 2000   so many
python tests/simulate.py --area store --schedules 20000
                                            so many of one area alone
python tests/simulate.py fleet 123          one, with every event
python tests/simulate.py --hunt             the first schedule that finds each planted bug
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from functools import partial

from simulation.planted import BUGS
from simulation.schedules import AREAS, Failure, Name, failures, hunted, numbered, trace
from stoker.host.limits import usable_cores

CHUNK = 100
MOST_SHOWN = 10
HUNTED = 20_000


def run_chunk(first: int, area: str | None) -> list[Failure]:
    return list(failures(numbered(first, CHUNK, area)))


def run_all(count: int, processes: int, area: str | None) -> int:
    """Run schedules on some processes; returns how many failed, and prints the first of them."""
    began, failed, firsts = time.monotonic(), 0, range(0, count, CHUNK)
    chunks = partial(run_chunk, area=area)
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for done, chunk in enumerate(pool.imap_unordered(chunks, firsts), 1):
            for failure in chunk:
                failed += 1
                if failed <= MOST_SHOWN:
                    print(f"{failure.name}: {failure.message}")
                    print(f"  every event: python tests/simulate.py {failure.name}", flush=True)
            if done % 50 == 0 or done == len(firsts):
                minutes = (time.monotonic() - began) / 60
                print(f"{done * CHUNK:,} schedules, {failed} failed, {minutes:.1f} min", flush=True)
    return failed


def hunt(bug: str) -> tuple[str, Failure | None]:
    """The first schedule that finds a planted bug; None where none of 20,000 does."""
    area, planted = BUGS[bug]
    with planted():
        return bug, next(failures(hunted(area, HUNTED)), None)


def hunt_all(processes: int, only: str | None) -> int:
    """Returns how many planted bugs, of all areas or of one, were not found."""
    missed, bugs = 0, [bug for bug, (area, _) in BUGS.items() if only in (None, area)]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for bug, failure in pool.imap(hunt, bugs):
            missed += failure is None
            print(f"{bug}: {failure.name if failure else 'NOT FOUND'}", flush=True)
            print(f"  {failure.message if failure else ''}", flush=True)
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("area", nargs="?", choices=AREAS)
    parser.add_argument("number", nargs="?", type=int, default=0)
    parser.add_argument("--schedules", type=int, default=100_000, metavar="N")
    parser.add_argument("--processes", type=int, default=usable_cores(), metavar="N")
    parser.add_argument("--area", dest="only", choices=AREAS, help="schedules of this area alone")
    parser.add_argument("--hunt", action="store_true")
    parsed = parser.parse_args()
    if parsed.area:
        lines = trace(Name(parsed.area, parsed.number))
        print("\n".join(lines))
        return int("FAILED" in lines[-1])
    if parsed.hunt:
        return int(hunt_all(parsed.processes, parsed.only) > 0)
    return int(run_all(parsed.schedules, parsed.processes, parsed.only) > 0)


if __name__ == "__main__":
    sys.exit(main())
