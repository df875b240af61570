"""What bound a run of which nothing is left but its log: a pure function of the log's means.

Such logs know two things of a step: how long it took, and how long it waited for its batch. So the
limit is data or compute, and nothing finer. Where too few steps are logged to leave the warm-up
out, nothing is said.
"""

from __future__ import annotations

from stoker.measure.logs.runs import FEWEST_STEPS, Block
from stoker.measure.verdict import Verdict

DATA_BINDS = 0.10
"""Share of a step spent waiting above which data binds."""
ENOUGH_WITH_WARMUP = 200
"""Steps after which a warm-up no longer decides a mean."""
BURST = 0.5
"""A typical line, or stretch, that shows less than this part of the mean wait hides bursts."""

WORDS = {
    "compute": "compute: the network itself, not its data",
    "data": "data: the network waited for its batches",
    "bursts": "data: the network waited for its batches, in bursts",
    "starts": "data: the network waited for its first batches at each epoch's start",
}
ACTIONS = {
    "compute": "mixed precision, channels-last, a smaller image or model, or a faster GPU",
    "data": "more loader workers; where all cores are busy, cheaper decoding (stoker pack FOLDER)",
    "bursts": "more loader workers or cheaper decoding (stoker pack FOLDER); "
    "a longer queue only moves the wait",
    "starts": "keep the loader's workers from epoch to epoch (persistent_workers=True)",
}


def judge(block: Block) -> Verdict | None:
    """What bound a run; None where the log is too short to say."""
    judged = block.judged
    if not is_enough(block):
        return None
    is_data = judged.share >= DATA_BINDS
    kind = pattern(block) if is_data else "compute"
    own_s = judged.step_s - judged.wait_s
    waiting = f"{judged.wait_s:.3f} of {judged.step_s:.3f} s"
    return Verdict(
        limit="data" if is_data else "compute",
        words=WORDS[kind],
        evidence=f"{judged.share:.0%} of a step is waiting by the mean ({waiting})"
        if is_data
        else f"{1 - judged.share:.1%} of a step is work by the mean (it waits {waiting})",
        action=ACTIONS[kind],
        step_s=judged.step_s,
        without_s=own_s if is_data else None,
        runner_up=runner_up(judged.wait_s, own_s, is_data),
    )


def runner_up(wait_s: float, own_s: float, is_data: bool) -> str:
    """What would bind next, where there is anything of it."""
    if is_data:
        return f"compute, {own_s:.3f} s a step"
    return f"data, {wait_s:.3f} s a step" if wait_s > 0.01 * own_s else ""


def is_enough(block: Block) -> bool:
    """Whether what is logged is the run, rather than its beginning or its epochs' beginnings."""
    steps = block.judged.steps // block.ranks
    if block.judged.step_s <= 0:
        return False
    if not block.warmup_steps:
        return steps >= ENOUGH_WITH_WARMUP
    first_lines_only = block.starts.steps == block.judged.steps
    per_epoch = steps // max(block.epochs - 1, 1)
    return per_epoch >= FEWEST_STEPS if first_lines_only else steps >= FEWEST_STEPS


def pattern(block: Block) -> str:
    """How a run waits: steadily, in bursts, or at the start of its epochs."""
    judged = block.judged
    if judged.data_s > 0 and block.starts.data_s > BURST * judged.data_s:
        return "starts"
    if hides_wait(block) or few_stretches_wait(block):
        return "bursts"
    return "data"


def hides_wait(block: Block) -> bool:
    """Whether a typical line shows much less wait than there is."""
    return block.typical_wait_s < BURST * block.judged.wait_s


def few_stretches_wait(block: Block) -> bool:
    """Whether most of the time between lines is quiet and a little of it is not."""
    quiet = [s for s in block.stretches if s.wait_s < BURST / 2 * block.judged.wait_s]
    return len(block.stretches) >= 4 and len(quiet) > len(block.stretches) / 2
