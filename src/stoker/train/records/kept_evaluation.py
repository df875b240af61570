"""Keeps the last evaluation of a run in its directory.

Invariants: rank 0 writes, before the checkpoint that counts the evaluation as done, so that a
resumed run never lacks it. The file is replaced as a whole. A failed write is a note and never ends
a run.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from stoker.commit import write_bytes
from stoker.data.dataset import SplitIndex
from stoker.errors import StokerError
from stoker.run.evaluation import MOST_WORST, NAME, report_bytes, report_data
from stoker.text import one_line
from stoker.train.evaluate import Accuracy, Answers
from stoker.train.records.tally import highest_losses, report_of, worst_samples


@dataclass(frozen=True)
class EvaluationKeeper:
    """Writes evaluation.json for the evaluations of one attempt."""

    run_path: Path
    split: SplitIndex
    classes: list[str]
    report: Callable[[str], None]
    """Takes a note for the user."""

    def __call__(self, step: int, position: int, accuracy: Accuracy, answers: Answers) -> None:
        """Replace the kept evaluation by the one after this step."""
        file = self.run_path / NAME
        try:
            self.remove_drafts()  # of processes that were killed: one at a time trains a run
            write_bytes(file, self.content(step, position, accuracy, answers))
        except (OSError, StokerError) as error:
            reason = getattr(error, "strerror", None) or one_line(str(error))
            self.report(f"cannot keep the evaluation in {file}: {reason}")
            with suppress(OSError):
                self.remove_drafts()

    def remove_drafts(self) -> None:
        for draft in self.run_path.glob(f".{NAME}.*.tmp"):
            draft.unlink(missing_ok=True)

    def content(self, step: int, position: int, accuracy: Accuracy, answers: Answers) -> bytes:
        """The bytes of evaluation.json. Raises StokerError where the index is gone."""
        labels, chosen = self.split.labels[:], highest_losses(answers.loss, MOST_WORST)
        samples = np.arange(len(labels), dtype=np.int64)
        paths = self.split.rows.paths_of(chosen.tolist())
        report = report_of(self.split.name, self.classes, labels, accuracy, answers)
        worst = worst_samples(chosen, samples, paths, labels, answers)
        # The checkpoint of this step has this name, if one was saved.
        facts = {"step": step, "position": position, "checkpoint": f"{step:09d}"}
        return report_bytes(report_data(replace(report, worst=worst), **facts))
