"""The verdict on a whole run."""

from __future__ import annotations

from stoker.measure.facts import Facts
from stoker.measure.facts_from_events import facts_of_run
from stoker.measure.verdict import Verdict, verdict_of
from stoker.run.directory import Run


def verdict_of_run(run: Run) -> Verdict | None:
    """The verdict on the latest attempt that has enough steps for one; None where none has."""
    measured = facts_and_verdict(run)
    return measured[1] if measured else None


def facts_and_verdict(run: Run) -> tuple[Facts, Verdict] | None:
    """What was measured in the latest attempt that has enough steps for a verdict, and this
    verdict; None where none has."""
    for attempt in reversed(run.attempts()):
        facts = facts_of_run(run, attempt)
        verdict = verdict_of(facts)
        if facts and verdict:
            return facts, verdict
    return None
