"""Jobs on a real SLURM: preempted, cancelled, refused, failed, on nodes that die.

Node n3 is the limited job's (conftest.py); the tests here use n1 and n2.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.conftest import EPOCHS_OF_LIMIT, SMALL, Desk, MakeDesk
from stoker.faults import VARIABLE
from stoker.fleet.slurm.ends import STOPPED

pytestmark = [pytest.mark.exact, pytest.mark.timeout(600)]
HERE = "--exclude n3 --time 10"


def test_a_preempted_job_saves_and_goes_on(desk: Desk) -> None:
    job = desk.train("low", f"{HERE} --nodelist n1", 6)
    desk.wait(lambda: desk.steps("low") >= 3)
    high = ("sbatch", "--partition=high", "--nodelist=n1", "--exclusive", "--parsable")
    output = f"--output={desk.folder}/high.txt"
    first = desk.cluster.call(*high, output, "--wrap", "sleep 1").strip()
    assert desk.wait_for_end(first) == "COMPLETED"
    assert desk.wait_for_end(job) == "COMPLETED", desk.everything()
    desk.assert_whole("low", 6)
    assert [end["code"] for end in desk.ends("jobs/low", job)] == [75, 0]
    assert "preempted" in desk.ends("jobs/low", job)[0]["why"]
    assert repeated(desk, "low") == 0


def repeated(desk: Desk, name: str) -> int:
    """Steps that were computed more than once."""
    run = desk.run(name)
    steps = [event["step"] for event in run.events() if event["kind"] == "step"]
    return len(steps) - len(set(steps))


@pytest.mark.rotates(3)
def test_a_cancelled_job_saves_and_is_not_queued_again(desk: Desk) -> None:
    job = desk.train("cancelled", HERE, 100)
    desk.wait(lambda: desk.steps("cancelled") >= 2)
    desk.cluster.call("scancel", job)
    assert desk.wait_for_end(job) == "CANCELLED"
    end = desk.run("cancelled").end()
    assert end and end["outcome"] == "interrupted"


@pytest.fixture
def strange(desk_at: MakeDesk, tmp_path: Path) -> Iterator[Desk]:
    yield desk_at(tmp_path / "a $(touch x) 'b' \"c\" 50% #d", {})


@pytest.mark.rotates(3)
def test_strange_names_are_names(strange: Desk) -> None:
    words = ("train", "packed", *SMALL, "--epochs", "1", "--run", "runs/$(touch y) 'z'")
    job = strange.launch("$(touch n)#x;y", HERE, *words)
    assert strange.wait_for_end(job) == "COMPLETED", strange.everything()
    assert (strange.folder / "runs" / "$(touch y) 'z'" / "run.json").exists()
    assert strange.cluster.field(job, "JobName") == "$(touch"  # the rest follows a space
    assert "finished" in (strange.folder / f"jobs/touch-n-x-y/slurm-{job}.txt").read_text()
    assert not {"x", "y", "n"} & {path.name for path in strange.folder.rglob("*")}


@pytest.mark.rotates(3)
def test_what_is_refused_or_fails_twice_stops_and_the_queue_says_so(desk: Desk) -> None:
    # Refused by the command itself: the run is of another recipe.
    assert desk.wait_for_end(desk.train("done", HERE, 1)) == "COMPLETED"
    refused = desk.launch("refused", HERE, *train_words(1, "--lr", "9"), "--run", "runs/done")
    assert desk.wait_for_end(refused) == "FAILED"
    assert desk.cluster.field(refused, "ExitCode") == "2:0"
    assert [end["code"] for end in desk.ends("jobs/refused", refused)] == [2]
    desk.variables = {VARIABLE: json.dumps([{"fault": "kill", "at": "forward", "step": 5}])}
    failing = desk.train("failing", HERE, 2)
    assert desk.wait_for_end(failing) == "FAILED", desk.everything()
    ends = desk.ends("jobs/failing", failing)
    assert [(end["code"], end["requeued"]) for end in ends] == [(137, True), (137, False)]
    assert desk.cluster.field(failing, "ExitCode") == "137:0"


def train_words(epochs: int, *more: str) -> list[str]:
    return ["train", "packed", *SMALL, "--epochs", str(epochs), *more]


@pytest.mark.rotates(2)
def test_two_nodes_train_together_and_one_dies(desk: Desk) -> None:
    job = desk.train("pair", f"{HERE} --nodes 2", 6, "--yes")
    desk.wait(lambda: desk.steps("pair") >= 8)
    assert desk.run("pair").starts()[0]["world"] == 2
    desk.cluster.kill_node("n2")
    try:
        desk.wait(lambda: desk.cluster.state(job) == "PENDING")
    finally:
        desk.cluster.start_node("n2")
    assert desk.wait_for_end(job) == "COMPLETED", desk.everything()
    desk.assert_whole("pair", 6)
    assert {start["world"] for start in desk.run("pair").starts()} == {2}


@pytest.mark.rotates(3)
def test_a_job_goes_on_elsewhere_when_its_node_dies(desk: Desk) -> None:
    """SLURM queues it again by itself, before the node is back."""
    job = desk.train("alone", HERE, 6)
    desk.wait(lambda: desk.steps("alone") >= 8)
    node = desk.cluster.field(job, "NodeList")
    desk.cluster.kill_node(node)
    try:
        assert desk.wait_for_end(job) == "COMPLETED", desk.everything()
    finally:
        desk.cluster.start_node(node)
    desk.assert_whole("alone", 6)
    assert desk.cluster.field(job, "NodeList") != node
    assert int(desk.cluster.field(job, "Restarts")) >= 1
    assert [end["code"] for end in desk.ends("jobs/alone", job)] == [0]


def test_a_limit_shorter_than_the_work_is_no_limit(limited: tuple[Desk, str]) -> None:
    """Runs last: the job began before all other tests."""
    desk, job = limited
    assert desk.wait_for_end(job) == "COMPLETED", desk.everything()
    desk.assert_whole("limited", EPOCHS_OF_LIMIT)
    codes = [end["code"] for end in desk.ends("jobs/limited", job)]
    assert set(codes[:-1]) <= {*STOPPED}
    assert codes[-1] == 0
    assert len(codes) >= 2
    assert repeated(desk, "limited") == 0, "each turn goes on where the last one stopped"
    text = (desk.folder / f"jobs/limited/slurm-{job}.txt").read_text()
    assert text.count("resumed at step") >= codes.count(75)
