"""What limited a run of which only a training log is left: a pure function of the log's means.

Such logs hold two numbers of a step: its time, and its wait for its batch. So the limit is data or
compute, nothing finer. With too few steps to leave the warm-up out, there is no verdict.
"""

from __future__ import annotations

from stoker.measure.logs.runs import FEWEST_STEPS, LoggedRun
from stoker.measure.verdict import Claim, Verdict

DATA_LIMITS = 0.10
"""Data is the limit from this share of a step spent waiting."""
ENOUGH_WITH_WARMUP = 200
"""Steps after which a warm-up no longer decides a mean."""
BURST = 0.5
"""A typical line, or stretch, that shows less than this share of the mean wait hides bursts."""


def verdict_of_log(run: LoggedRun) -> Verdict | None:
    """What limited a run; None where the log is too short to tell."""
    if not has_enough_steps(run):
        return None
    step_s, wait_s, share = run.counted.step_s, run.counted.wait_s, run.counted.share
    work_s = step_s - wait_s
    compute = Claim("compute.log", work_s, details={"wait_s": wait_s, "wait_share": share})
    data = Claim(wait_pattern(run), wait_s, work_s)
    if share >= DATA_LIMITS:
        return Verdict(step_s, data, compute)
    return Verdict(step_s, compute, data if wait_s > 0.01 * work_s else None)


def has_enough_steps(run: LoggedRun) -> bool:
    """Whether the logged steps are more than the start of the run and of its epochs."""
    steps = run.counted.steps // run.ranks
    if run.counted.step_s <= 0:
        return False
    if not run.warmup_steps:
        return steps >= ENOUGH_WITH_WARMUP
    first_lines_only = run.starts.steps == run.counted.steps
    per_epoch = steps // max(run.epochs - 1, 1)
    return per_epoch >= FEWEST_STEPS if first_lines_only else steps >= FEWEST_STEPS


def wait_pattern(run: LoggedRun) -> str:
    """The cause of the waits: steady, in bursts, or at the start of epochs."""
    if run.counted.data_s > 0 and run.starts.data_s > BURST * run.counted.data_s:
        return "data.log_epoch_starts"
    if hides_wait(run) or few_stretches_wait(run):
        return "data.log_bursts"
    return "data.log"


def hides_wait(run: LoggedRun) -> bool:
    """Whether a typical line shows much less wait than the mean."""
    return run.typical_wait_s < BURST * run.counted.wait_s


def few_stretches_wait(run: LoggedRun) -> bool:
    """Whether most stretches between lines hardly wait, and a few wait long."""
    short = [s for s in run.stretches if s.wait_s < BURST / 2 * run.counted.wait_s]
    return len(run.stretches) >= 4 and len(short) > len(run.stretches) / 2
