"""W&B: one W&B run for each run, with an id that is made from the run's own.

W&B cannot take values back. So it gets a step when a checkpoint covers it. Where a run goes back
further, the curve is written to a new W&B run, whose id has the next number at its end.

Invariant: before values are handed over, the folder's position says so, so none is given twice: of
a tracker that is killed in that moment, the values of a few seconds are missing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

for _name, _value in {"WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"}.items():
    os.environ.setdefault(_name, _value)  # before the import

import wandb  # noqa: E402

from stoker.history.metrics import MetricPoint  # noqa: E402
from stoker.track.curve import CurvePosition  # noqa: E402
from stoker.track.folder import SinkFolder  # noqa: E402
from stoker.track.sink import FAILED, SinkOptions, plain_key, plain_value  # noqa: E402

INIT_S = 45


class WandbRun:
    """The sink `wandb`."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._folder = SinkFolder(options.out, options.run_id)
        self._position = CurvePosition()
        self._number = 1
        self._run: Any = None

    def open(self) -> CurvePosition:
        self._position = self._folder.open()
        self._number = max(self._folder.sizes.get("number", 1), 1)
        self._begin()
        return self._position

    def _begin(self) -> None:
        options = self._options
        parameters = {plain_key(k): plain_value(v) for k, v in options.parameters.items()}
        tags = {f"run.{plain_key(k)}": plain_value(v) for k, v in options.tags.items()}
        number = f"-{self._number}" if self._number > 1 else ""
        self._run = wandb.init(
            project=plain_key(options.project),
            id=plain_key(options.run_id, 50) + number,
            name=plain_value(options.name, 100) + number,
            config=parameters | tags,
            dir=str(self._folder.path),
            mode="offline" if options.offline else "online",
            resume=None if options.offline else "allow",
            settings=wandb.Settings(
                console="off",
                disable_git=True,
                disable_code=True,
                save_code=False,
                x_disable_stats=True,
                init_timeout=INIT_S,
            ),
        )
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")

    def write(self, points: Sequence[MetricPoint], position: CurvePosition) -> None:
        self._position = position
        self._save()
        for point in points:
            self._run.log({"step": point.step, **point.values})

    def _save(self) -> None:
        self._folder.sizes = {"number": self._number}
        self._folder.save(self._position)

    def back(self, step: int, attempt: int) -> CurvePosition:
        self._run.finish()
        self._number += 1
        self._position = CurvePosition(attempt)
        self._save()
        self._begin()
        return self._position

    def close(self, outcome: str) -> None:
        if self._run:
            self._run.finish(exit_code=1 if outcome == FAILED else 0)
        self._folder.close()


SINK = WandbRun
