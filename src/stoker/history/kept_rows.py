"""A run whose rows are read once, for a reader that needs its history, its cost and its verdict.

Invariants: rows are those of `Run.attempt_rows`, up to the moment of the first look, and stay in
memory: for a report that is written at once, not for a display that goes on.
"""

from __future__ import annotations

from collections.abc import Iterator

from stoker.history.history import RunHistory
from stoker.run.directory import Run
from stoker.run.kinds import Event
from stoker.run.rows import NEVER


class KeptRows(Run):
    """A run with its rows in memory, cut where a later attempt repeated the steps."""

    def __init__(self, run: Run) -> None:
        super().__init__(run.path)
        self.damage = run.damage
        self._cuts = run.lost_from()
        self._rows: dict[tuple[int, int], list[Event]] = {}

    def lost_from(self) -> dict[int, int]:
        return self._cuts

    def attempt_rows(self, attempt: int, rank: int = 0, cut: int = NEVER) -> Iterator[Event]:
        """The rows of one attempt and rank; see `Run.attempt_rows`. Rows that are cut elsewhere are
        read again."""
        if cut != self._cuts.get(attempt):
            return super().attempt_rows(attempt, rank, cut)
        key = attempt, rank
        if key not in self._rows:
            self._rows[key] = list(super().attempt_rows(attempt, rank, cut))
        return iter(self._rows[key])

    def history(self) -> RunHistory:
        """What `history_of` returns for this run."""
        history = RunHistory(self, self._cuts)
        for attempt in sorted(filter(None, self._cuts)):
            for rank in self.ranks(attempt):
                for row in self.attempt_rows(attempt, rank, self._cuts[attempt]):
                    history.take(attempt, rank, row)
        return history
