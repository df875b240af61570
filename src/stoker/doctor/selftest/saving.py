"""What a save costs training: the time that its thread is blocked, and holds of the lock.

Invariant: a thread that wakes up every half millisecond needs the interpreter lock for that, as
decoding and launching threads do: its longest pause is the longest hold, plus what the kernel's
scheduler adds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from stoker.doctor.selftest.loop_ratio import CLASSES, recipe_of
from stoker.doctor.selftest.rows import Measured, Setup
from stoker.survive.checkpoints import Checkpoints
from stoker.train.device import build_on_device
from stoker.train.state import TrainState

TICK_S = 0.0005
SAVES = 5
COUNTED = 4
"""The longest hold in so many of the saves counts: a scheduler may disturb one."""
MOST_HOLD_MS = 5.0


class Ticker:
    """A thread that notes the longest time between two of its turns."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._over = False

    def _tick(self) -> None:
        before = time.perf_counter()
        while not self._over:
            time.sleep(TICK_S)
            now = time.perf_counter()
            self.longest_s = max(self.longest_s, now - before - TICK_S)
            before = now

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self._tick, name="stoker-ticker", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over = True
            thread.join()


def save_once(state: TrainState, checkpoints: Checkpoints) -> tuple[float, float]:
    """Seconds that the thread of training is blocked, and the longest hold of the lock."""
    ticker = Ticker()
    state.step += 1
    with ticker.running():
        began = time.perf_counter()
        checkpoints.save(state.snapshot({}))
        blocked_s = time.perf_counter() - began
        checkpoints.wait()
    return blocked_s, ticker.longest_s


def measure_saving(setup: Setup) -> Measured:
    """Saves of a model with its optimiser and moving average."""
    recipe = recipe_of(setup, "resnet152", 224, 32, ema=True)
    model, _ = build_on_device(recipe, CLASSES, setup.ranks.device)
    state = TrainState.fresh(recipe, model, setup.ranks.device)
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    state.optimizer.step()  # now it has its momentum
    idle = Ticker()
    with idle.running():
        time.sleep(0.2)
    with TemporaryDirectory(dir=setup.folder) as name:
        checkpoints = Checkpoints(Path(name))
        saves = [save_once(state, checkpoints) for _ in range(SAVES)]
    blocked_ms = 1000 * sorted(blocked for blocked, _ in saves)[COUNTED - 1]
    hold_ms = 1000 * sorted(hold for _, hold in saves)[COUNTED - 1]
    value = (
        f"blocked {blocked_ms:.1f} ms, longest hold of the lock {hold_ms:.1f} ms in {COUNTED} of "
        f"{SAVES} saves ({recipe.model}; without a save {1000 * idle.longest_s:.1f} ms)"
    )
    figures = {"blocked_ms": blocked_ms, "hold_ms": hold_ms, "idle_ms": 1000 * idle.longest_s}
    if not setup.on_gpu:  # on shared cores the scheduler's pauses are longer than any hold
        return Measured(value, figures=figures)
    return Measured(value, f"hold at most {MOST_HOLD_MS:g} ms", hold_ms <= MOST_HOLD_MS, figures)
