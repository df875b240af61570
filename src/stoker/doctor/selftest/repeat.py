"""`--deterministic`: the same weights from the same command, also after a kill in mid-epoch."""

from __future__ import annotations

import signal

from stoker.doctor.selftest.commands import Train
from stoker.doctor.selftest.rows import Measured, NotRun, Setup
from stoker.errors import FINISHED

FLAGS = (
    "--deterministic --epochs 4 --ema --mixup-alpha 0.2 --cutmix-prob 0.5 --lr 0.02 "
    "--checkpoint-interval 0.05"
)
LIMIT = "equal, bit for bit"


def first_run(setup: Setup) -> Train:
    """The run that others are compared with, made by the first check that needs it."""
    train = Train(setup, "repeat-1", FLAGS)
    if not train.run.finished:
        train.require(train.finish(), [FINISHED])
    return train


def measure_repeat(setup: Setup) -> Measured:
    """Two runs of one command, in two folders."""
    if setup.quick:
        raise NotRun("--quick leaves it to repeat-kill, which compares two runs as well")
    one, other = first_run(setup), Train(setup, "repeat-2", FLAGS)
    other.require(other.finish(), [FINISHED])
    equal = one.weights() == other.weights()
    steps = len(one.run.steps())
    value = f"weights {'equal' if equal else 'DIFFER'} after {steps} steps, twice"
    return Measured(value, LIMIT, equal, {"equal": equal, "steps": steps})


def measure_kill(setup: Setup) -> Measured:
    """A run that is killed in the middle of an epoch, then the same command."""
    one, killed = first_run(setup), Train(setup, "repeat-kill", FLAGS)
    steps = len(one.run.steps())
    step = steps * 5 // 8  # the middle of the third of four epochs
    code = killed.finish({"fault": "kill", "at": "backward", "step": step})
    killed.require(code, [-signal.SIGKILL])
    killed.require(killed.finish(), [FINISHED])
    equal, resumed = one.weights() == killed.weights(), killed.run.starts()[-1]["step"]
    value = f"weights {'equal' if equal else 'DIFFER'}: killed in step {step}, went on from step "
    value += f"{resumed}, {steps} steps in all"
    figures = {"equal": equal, "killed_in": step, "resumed_at": resumed, "steps": steps}
    return Measured(value, LIMIT, equal, figures)
