"""The forecast of runs on spot machines against simulated runs.

    python benchmarks/spot.py [--runs 10000] [--seed 0]

Each cell simulates runs event by event: a start, work until the next save, a save, and the loss of
the machine at any moment of them. How often a run saves is decided by the product's own code
(stoker.survive.save_interval): the first save of an attempt comes after UNKNOWN_S, each later one
after what `derive` says. The formula of stoker.plan.spot does not see any of this. The table has
the errors of its expected values, and the share of simulated runs inside its stated 90 % range.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stoker.plan.spot import SpotTerms, forecast_spot
from stoker.survive.save_interval import UNKNOWN_S, derive

HOURS = (0.75, 6.0, 48.0)
BETWEEN = (1.0, 4.0, 24.0)
SAVES = (0.2, 5.0, 30.0)
STARTS = (60.0, 600.0)
LARGEST_ERROR = 0.02
START, WORK, SAVE = 0, 1, 2


@dataclass
class Simulated:
    """Machine seconds, interruptions and redone seconds of each run."""

    machine_s: NDArray[np.float64]
    lost: NDArray[np.int64]
    redone_s: NDArray[np.float64]


def simulate(work_s: float, terms: SpotTerms, runs: int, seed: int) -> Simulated:
    """Runs that advance by one event at a time, all of them side by side."""
    draw = np.random.default_rng(seed)
    mean_s = 3600 * terms.hours_between / terms.machines
    machine_s, redone_s = np.zeros(runs), np.zeros(runs)
    lost = np.zeros(runs, np.int64)
    phase, first = np.zeros(runs, np.int64), np.ones(runs, bool)
    done_s, saved_s = np.zeros(runs), np.zeros(runs)
    lasts_s = draw.exponential(mean_s, runs)  # what is left of the present machine
    later_s = derive(terms.save_s, terms.hours_between).seconds
    active = np.arange(runs)
    while len(active):
        kind, early = phase[active], first[active]
        interval = np.where(early, UNKNOWN_S, later_s)
        work = np.minimum(interval, work_s - done_s[active])
        length = np.choose(kind, [terms.start_s, work, terms.save_s])
        left = lasts_s[active]
        broken = left < length
        used = np.where(broken, left, length)
        machine_s[active] += used
        lasts_s[active] -= used

        whole = active[~broken]
        ended = phase[whole].copy()
        worked = whole[ended == WORK]
        done_s[worked] += work[~broken][ended == WORK]
        stored = whole[ended == SAVE]
        saved_s[stored], first[stored] = done_s[stored], False
        phase[whole] = np.where(ended == WORK, SAVE, WORK)

        gone = active[broken]
        cut, used_gone = phase[gone], used[broken]
        lost[gone] += 1
        if terms.notice:
            busy = gone[cut == WORK]
            done_s[busy] += used_gone[cut == WORK]
            machine_s[busy] += terms.save_s
            saving = gone[cut == SAVE]
            machine_s[saving] += terms.save_s - used_gone[cut == SAVE]
            saved_s[gone] = done_s[gone]
        else:
            partial = np.where(cut == START, 0.0, used_gone)
            redone_s[gone] += partial + done_s[gone] - saved_s[gone]
            done_s[gone] = saved_s[gone]
        phase[gone], first[gone] = START, True
        lasts_s[gone] = draw.exponential(mean_s, len(gone))
        active = active[~((saved_s[active] >= work_s - 1e-6) & (phase[active] != START))]
    return Simulated(machine_s, lost, redone_s)


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    flags.add_argument("--runs", type=int, default=10_000)
    flags.add_argument("--seed", type=int, default=0)
    parsed = flags.parse_args()
    print(
        "| work h | h between | save s | start s | notice | interruptions | redone h | machine h |"
        " forecast h | error % | 90 % range h | held % |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    errors, held = [], []
    for number, (hours, between, save_s, start_s, notice) in enumerate(
        itertools.product(HOURS, BETWEEN, SAVES, STARTS, (False, True))
    ):
        terms = SpotTerms(hours_between=between, start_s=start_s, save_s=save_s, notice=notice)
        forecast = forecast_spot(hours, terms)
        runs = simulate(3600 * hours, terms, parsed.runs, parsed.seed + number)
        machine_h = runs.machine_s / 3600
        mean = float(machine_h.mean())
        error = forecast.machine_h / mean - 1
        inside = (machine_h >= forecast.low_h - 1e-9) & (machine_h <= forecast.high_h + 1e-9)
        errors.append(abs(error))
        held.append(float(inside.mean()))
        print(
            f"| {hours:g} | {between:g} | {save_s:g} | {start_s:g} | {'yes' if notice else 'no'} "
            f"| {runs.lost.mean():.2f} ({forecast.interruptions:.2f}) "
            f"| {runs.redone_s.mean() / 3600:.3f} ({forecast.redone_h:.3f}) | {mean:.3f} "
            f"| {forecast.machine_h:.3f} | {100 * error:+.2f} "
            f"| {forecast.low_h:.3f} to {forecast.high_h:.3f} | {100 * held[-1]:.1f} |"
        )
    print(
        f"\n{len(errors)} cells of {parsed.runs:,} runs: error at most {100 * max(errors):.2f} %, "
        f"median {100 * float(np.median(errors)):.2f} %; the 90 % range held in "
        f"{100 * min(held):.1f} to {100 * max(held):.1f} % of a cell's runs, "
        f"{100 * float(np.mean(held)):.1f} % of all"
    )
    return 0 if max(errors) <= LARGEST_ERROR else 1


if __name__ == "__main__":
    sys.exit(main())
