"""Answers about time, devices and links, from runs with known numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from made_runs import RunMaker
from priced_runs import end, new_run, price, start, write
from report_pages import NOW
from stoker.measure.verdict import Claim, Verdict
from stoker.run.directory import Run
from stoker.show.report.elements import PageTable
from stoker.show.report.facts import facts_of
from stoker.show.report.speed import (
    devices_used,
    how_long,
    link_limit,
    moment,
    quantiles,
    rate,
    saving_text,
    step_time,
    traffic,
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Run:
    maker = RunMaker(tmp_path_factory.mktemp("runs") / "run", steps=600, gpus=True)
    return maker.attempt(0, 400, None).attempt(300, 600).run


def test_time_with_and_without_pauses(made: Run) -> None:
    question = how_long(facts_of(made, now=NOW))
    (table,) = [part for part in question.evidence if isinstance(part, PageTable)]
    rows = {str(row[0]): str(row[1]) for row in table.rows}
    assert rows["pauses between attempts"].startswith("4:")
    assert rows["of it starting up"] == "24 s"
    assert rows["first event"] == "2026-09-21 14:13:32 UTC"
    assert "in 2 attempts" in question.answer and "by the wall clock" in question.answer
    assert moment(None) == "unknown"


def test_shares_of_a_step(made: Run) -> None:
    question = devices_used(facts_of(made, now=NOW))
    words = "Yes: 84% of a step was computing, 10% waiting for images, 5% exchanging gradients."
    assert question.answer == words
    (table,) = [part for part in question.evidence if isinstance(part, PageTable)]
    assert list(table.rows[0]) == ["made", "93%", "1.90", "80%", "0.2%"]


def test_cores_that_others_used_are_not_used_well(made: Run) -> None:
    """Waiting for a core is inside of forward and backward: it is no computing."""
    facts = facts_of(made, now=NOW)
    numbers = {"core_wait_share": 0.6, "own_cores": 0.8, "cores": 2}
    claim = Claim("cores.others", 0.6, 0.4, numbers)
    facts = replace(facts, verdict=Verdict(1.0, claim))
    question = devices_used(facts)
    assert question.answer == (
        "Not well: 24% of a step was computing, 10% waiting for images, 5% exchanging gradients, "
        "60% lost to what limited the run."
    )
    (saving,) = [text for text in map(str, question.evidence) if "would take about" in text]
    assert saving.startswith("Without it, the steps of this run would take about")
    saves = replace(facts, verdict=Verdict(1.0, Claim("checkpoint", 0.6, 0.4)))
    assert devices_used(saves).answer.startswith("Yes: 84% of a step was computing")


def test_a_step_by_its_median_and_spread(made: Run) -> None:
    question = step_time(facts_of(made, now=NOW))
    assert question.answer.startswith("288 ms by the median, 288 ms by the mean: 8")
    assert "for 90% of the steps: 600 steps" in str(question.evidence[0])
    assert quantiles([3.0, 1.0, 2.0], [1, 1, 98]) == (2.0, 2.0, 2.0)
    assert quantiles([5.0], [3]) == (5.0, 5.0, 5.0)


def test_one_rank_has_no_link(made: Run) -> None:
    facts = facts_of(made, now=NOW)
    assert link_limit(facts).answer == "No: one rank exchanges no gradients with others."
    texts = [str(part) for part in traffic(facts).evidence]
    assert any("there was one rank" in text for text in texts)
    assert "cannot be compared" in traffic(facts).answer


def events(rank: int, world: int, local: int, exchange: float, **more: Any) -> list[dict[str, Any]]:
    """Steps of a second that exchange 100 MB of gradients in half a second."""
    own = {"world": world, "local_world": local, "local_rank": rank % local, "steps": 40, **more}
    first = start(samples=400, environment={"host": f"h{rank // local}"}, **own)
    steps = [
        {
            "kind": "step", "step": n, "position": 10 * n, "epoch": n / 10, "batch": 20,
            "images": 10, "parts": {"forward": 1 - exchange, "exchange": exchange},
            "sent": {"bytes": 1e8, "seconds": 0.5},
        }
        for n in range(40)
    ]  # fmt: skip
    probe = {"kind": "probe", "step": 5, "seconds": 5.0,
             "network": {"eth0": {"rx_bytes": 5e8, "tx_bytes": 5e8}}}  # fmt: skip
    return [first, *steps[:6], probe, *steps[6:], end(step=40, position=400)]


def linked(path: Path, local: int, exchange: float, capacity: float | None) -> Run:
    run = new_run(path)
    for rank in range(2):
        write(run, 1, rank, events(rank, 2, local, exchange, capacity=capacity))
    return run


def test_the_dollars_of_a_limit_are_those_of_all_machines(tmp_path: Path) -> None:
    """Two machines at a dollar a second: 24 of 40 seconds without the limit are 48 dollars."""
    run = new_run(tmp_path)
    for rank in range(2):
        write(run, 1, rank, events(rank, 2, 1, 0.0, price=price(3600.0), startup_s=0.0))
    verdict = Verdict(1.0, Claim("checkpoint", 0.6, 0.4))
    (saving,) = saving_text(replace(facts_of(run, now=NOW), verdict=verdict))
    assert saving.endswith("would take about 16 s instead of 40 s, and $48.00 less.")


def test_a_full_link_is_the_bottleneck(tmp_path: Path) -> None:
    facts = facts_of(linked(tmp_path, 1, 0.4, 2.2e8), now=NOW)
    question = link_limit(facts)
    assert question.answer == (
        "Yes: waiting for the gradient exchange took 40.0% of a step, and the link was full."
    )
    texts = " ".join(str(part) for part in question.evidence)
    assert "100.0 MB of gradients a step" in texts
    assert "220.0 MB a second (1.76 Gbit/s), measured" in texts
    (table,) = [part for part in question.evidence if isinstance(part, PageTable)]
    assert [row[0] for row in table.rows] == ["h0", "h1"]
    assert "100.0 MB a second (800 Mbit/s)" in table.rows[0]
    both = " ".join(str(part) for part in traffic(facts).evidence)
    assert "are 100.0 MB a second (800 Mbit/s) each way" in both
    assert "Sent over the links of each machine: 100.0 MB" in both


def test_a_link_with_room_is_not(tmp_path: Path) -> None:
    facts = facts_of(linked(tmp_path / "a", 1, 0.02, 1e10), now=NOW)
    assert link_limit(facts).answer.startswith("No: waiting for the gradient exchange took 2.0%")
    slow = facts_of(linked(tmp_path / "b", 1, 0.4, 1e10), now=NOW)
    assert link_limit(slow).answer.startswith("The exchange was, though no link was full")


def test_ranks_of_one_machine_have_no_link_between_them(tmp_path: Path) -> None:
    question = link_limit(facts_of(linked(tmp_path, 2, 0.4, None), now=NOW))
    assert question.answer.startswith("No: all ranks are on one machine")
    assert "no link between machines" in str(question.evidence[0])


def test_rates_are_in_bytes_and_bits() -> None:
    assert rate(1.25e6) == "1.2 MB a second (10 Mbit/s)"


def test_a_run_without_steps_says_so(tmp_path: Path) -> None:
    facts = facts_of(new_run(tmp_path), now=NOW)
    for ask in (devices_used, link_limit, step_time, traffic):
        assert ask(facts).answer == "It is not on record: no step was made."
    assert how_long(facts).answer.startswith("No time is on record")
