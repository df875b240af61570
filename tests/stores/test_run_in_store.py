"""A run in a store is the run in a folder, whatever happens to the machine that trains it."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chaos.trainers import SAVE_STAGES, Trainers, assert_bit_equal, step_record
from fault_proxy import FaultProxy
from object_store import KEY, SECRET, azurite, missing_azurite, missing_rclone, rclone_s3
from shares import share
from stoker.errors import BAD_REQUEST, FAILED, FINISHED, INTERRUPTED
from stoker.run.directory import Run
from stoker.survive.manifest import names_in
from stores.stored_runs import EPOCHS, LEASE_S, SLOW, StoredRun, command, secrets_in
from waiting import until

pytest.importorskip("obstore", reason="no obstore: pip install obstore")
pytestmark = pytest.mark.exact

COPY_STAGES = ("store:events", "store:marker", "store:files", "store:pruned", "store:committed")
CELLS = 4
"""Of the stages and machines, in one share."""
KILLED = -signal.SIGKILL
STEPS = EPOCHS * 60 // 16
LEASE_S_LONG = 60
"""A lease that does not end while a test waits."""


def kill(stage: str, count: int = 2) -> dict[str, object]:
    return {"fault": "kill", "at": stage, "count": count}


def assert_whole(run: Run) -> None:
    """Every step is in the record once."""
    assert [step for step, *_ in step_record(run)] == list(range(STEPS))


def test_a_run_in_a_store_is_the_run_in_a_folder(stored: StoredRun, reference: Run) -> None:
    assert stored.train("a") == [FINISHED], stored.printed()
    copy = stored.copy()
    assert_bit_equal(copy, reference)
    stored.assert_tidy()
    assert stored.head().released
    assert f"stoker explain {stored.place}" in stored.printed()
    assert not secrets_in(stored.root, stored.variables)
    objects = stored.objects()
    for item in objects.list():
        data, _ = objects.read(item.key)
        assert not [text for text in (KEY, SECRET) if text.encode() in data], item.key


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "stage" in metafunc.fixturenames:
        whole = metafunc.config.getoption("--whole")
        cells = [
            (stage, machine) for stage in (*COPY_STAGES, *SAVE_STAGES) for machine in ("b", "a")
        ]
        chosen = share("stages of a copy", cells, len(cells) // CELLS, whole=whole)
        metafunc.parametrize(("stage", "machine"), chosen)


def test_a_run_killed_at_any_stage_goes_on_elsewhere(
    stored: StoredRun, reference: Run, stage: str, machine: str
) -> None:
    """On machine `b` with nothing but the store, or on `a` with all that was left there."""
    is_rare = stage.startswith(("best", "prune"))
    assert stored.train("a", kill(stage, 1 if is_rare else 3)) == [KILLED], stored.printed()
    assert stored.train(machine) == [FINISHED], stored.printed()
    copy = stored.copy()
    assert_bit_equal(copy, reference)
    assert_whole(copy)
    stored.assert_tidy()


@pytest.mark.rotates(2)
def test_a_checkpoint_ahead_of_the_store_is_kept_where_it_was_made(
    stored: StoredRun, reference: Run
) -> None:
    """The first machine has saved what the store lacks. It goes on from there; after another
    machine has trained, it does not: these steps are in the record of the other one."""
    no_copy = {"fault": "stall", "at": "store:events", "seconds": 600, "count": 2, "again": True}
    assert stored.train("a", no_copy, kill("save:begun", 7)) == [KILLED]
    here = names_in(stored.folder("a") / "checkpoints")
    ahead = [name for name in here if name not in stored.content().checkpoints]
    assert ahead

    assert stored.train("a", no_copy, kill("forward", 3)) == [KILLED]
    start = stored.content()
    assert Run(stored.folder("a")).start_of(2)["step"] == int(ahead[0])  # type: ignore[index]
    assert stored.train("b", kill("forward", 20)) == [KILLED]
    assert stored.content().attempt == start.attempt + 1
    resumed = stored.copy().start_of(3)
    assert resumed and resumed["step"] <= int(ahead[0])

    assert stored.train("a") == [FINISHED], stored.printed()
    copy = stored.copy()
    assert_bit_equal(copy, reference)
    assert_whole(copy)


def test_a_stop_has_everything_in_the_store_before_the_exit(
    stored: StoredRun, reference: Run
) -> None:
    stop = {"fault": "term", "at": "forward", "count": 25}
    assert stored.train("a", stop) == [INTERRUPTED], stored.printed()
    end = stored.copy().end()
    assert end and end["outcome"] == "interrupted"
    assert max(stored.content().checkpoints) == f"{end['step']:09d}"
    shutil.rmtree(stored.root / "a")

    assert stored.train("a") == [FINISHED], stored.printed()
    copy = stored.copy()
    assert (copy.start_of(2) or {})["step"] == end["step"]
    assert_bit_equal(copy, reference)
    assert_whole(copy)


@pytest.mark.rotates(2)
def test_a_working_folder_may_be_deleted_while_nothing_trains(
    stored: StoredRun, reference: Run
) -> None:
    assert stored.train("a", kill("store:committed")) == [KILLED]
    shutil.rmtree(stored.root / "a")
    assert stored.train("a") == [FINISHED], stored.printed()
    assert_bit_equal(stored.copy(), reference)
    # Nothing is left to do: also where nothing but the store knows it.
    assert stored.train("c") == [FINISHED]
    assert f"finished already: stoker explain {stored.place}" in stored.printed()


@pytest.mark.rotates(2)
def test_a_run_that_was_deleted_in_the_store_begins_again(stored: StoredRun) -> None:
    assert stored.train("a", kill("store:committed")) == [KILLED]
    objects = stored.objects()
    objects.delete([item.key for item in objects.list()])
    assert stored.train("a") == [FINISHED], stored.printed()
    assert "no longer has the run that was trained here before" in stored.printed()
    assert stored.copy().attempts() == [1]
    assert_whole(stored.copy())


def at(place: str, root: Path, count: int = 1) -> tuple[dict[str, object], Path, Path]:
    """A fault that stops a process at a place until a file exists; the files that it makes and
    waits for."""
    mark, till = root / "there", root / "go on"
    stall = {"fault": "stall", "at": place, "seconds": 300, "mark": str(mark), "till": str(till)}
    return {**stall, "count": count}, mark, till


def beside(stored: StoredRun, mark: Path, act: Callable[[list[int]], None]) -> Callable[..., None]:
    """What a test does once a run has reached a place."""

    def act_then(pids: list[int]) -> None:
        until(mark.exists, 120)
        act(pids)

    return act_then


@pytest.fixture(scope="module")
def others() -> Iterator[Trainers]:
    """Start processes while the other server waits for its own."""
    server = Trainers()
    yield server
    server.close()


def other_train(others: Trainers, stored: StoredRun, machine: str) -> tuple[list[int], str]:
    """Train on a machine while another one does; exit codes and what was printed."""
    log = stored.root / f"{machine}.log"
    argv = command(stored.data, stored.place)
    codes = others.train(argv, log, variables=stored.machine(machine))
    return codes, " ".join(log.read_text().split())


def test_a_second_machine_is_refused_while_the_first_trains(
    stored: StoredRun, others: Trainers, reference: Run
) -> None:
    stall, mark, till = at("forward", stored.root, 12)
    answers = []

    def start_second(pids: list[int]) -> None:
        answers.append(other_train(others, stored, "b"))
        till.touch()

    codes = stored.train("a", stall, meanwhile=beside(stored, mark, start_second))
    assert codes == [FINISHED], stored.printed()
    assert answers[0][0] == [BAD_REQUEST], answers
    assert (
        f"{stored.place} is trained by another process, on {os.uname().nodename}" in answers[0][1]
    )
    assert stored.copy().attempts() == [1]
    assert_bit_equal(stored.copy(), reference)


def test_a_machine_that_sleeps_too_long_loses_the_run(
    stored: StoredRun, others: Trainers, reference: Run
) -> None:
    stall, mark, till = at("forward", stored.root, 20)
    taken = []

    def take_over(pids: list[int]) -> None:
        os.kill(pids[0], signal.SIGSTOP)
        try:
            taken.append(other_train(others, stored, "b"))
            taken.append(stored.head())  # type: ignore[arg-type]
        finally:
            till.touch()
            os.kill(pids[0], signal.SIGCONT)

    assert stored.train("a", stall, meanwhile=beside(stored, mark, take_over)) == [FAILED]
    assert taken[0][0] == [FINISHED], taken
    assert "this process no longer trains the run" in stored.printed()
    assert "Traceback" not in stored.printed()
    assert stored.head() == taken[1]
    copy = stored.copy()
    assert_bit_equal(copy, reference)
    assert_whole(copy)
    # What it did not know is dropped, and nothing is trained again.
    assert stored.train("a") == [FINISHED]
    assert_bit_equal(stored.copy(), reference)


def test_a_stop_is_heard_while_another_machine_has_the_run(
    stored: StoredRun, others: Trainers, reference: Run
) -> None:
    """A machine that has died, or only stands still: nobody takes its run after a stop request."""
    stall, mark, till = at("forward", stored.root, 20)
    log, ended = stored.root / "log of the other", []

    def stop_second(pids: list[int]) -> None:
        os.kill(pids[0], signal.SIGSTOP)

        def terminate(second: list[int]) -> None:
            until(lambda: log.exists() and "waiting to learn which" in log.read_text())
            os.kill(second[0], signal.SIGTERM)
            ended.append(time.monotonic())

        try:
            holder = stored.head().holder
            words, variables = command(stored.data, stored.place), stored.machine("b")
            codes = others.train(words, log, variables=variables, meanwhile=terminate)
            assert (codes, stored.head().holder) == ([INTERRUPTED], holder), log.read_text()
            assert time.monotonic() - ended[0] < LEASE_S_LONG / 2
        finally:
            till.touch()
            os.kill(pids[0], signal.SIGCONT)

    lease = {"STOKER_LEASE_S": str(LEASE_S_LONG)}
    codes = stored.train("a", stall, variables=lease, meanwhile=beside(stored, mark, stop_second))
    assert codes == [FINISHED], stored.printed()
    assert_bit_equal(stored.copy(), reference)


@pytest.mark.rotates(2)
@pytest.mark.parametrize("fault", ["gone", "slow_down"])
def test_a_store_that_is_away_does_not_hold_up_training(
    stored: StoredRun, proxy: FaultProxy, reference: Run, fault: str
) -> None:
    stall, mark, till = at("forward", stored.root, 8)
    stored.variables = {**stored.variables, "AWS_ENDPOINT_URL": proxy.endpoint}

    def go_away(pids: list[int]) -> None:
        options = {"seconds": 3 * LEASE_S} if fault == "gone" else {}
        proxy.fault(fault, method=".*", times=1 if options else 12, **options)
        till.touch()

    codes = stored.train("a", stall, meanwhile=beside(stored, mark, go_away))
    assert codes == [FINISHED], stored.printed()
    proxy.calm()
    assert_bit_equal(stored.copy(), reference)
    assert_whole(stored.copy())


def test_what_the_store_did_not_take_is_uploaded_by_the_same_command(
    stored: StoredRun, proxy: FaultProxy, reference: Run
) -> None:
    stall, mark, till = at("forward", stored.root, 30)
    stored.variables = {**stored.variables, "AWS_ENDPOINT_URL": proxy.endpoint}

    def go_away(pids: list[int]) -> None:
        proxy.fault("slow_down", method="PUT|POST|DELETE", times=None)
        till.touch()

    codes = stored.train(
        "a",
        stall,
        variables={"STOKER_UPLOAD_S": "2"},
        meanwhile=beside(stored, mark, go_away),
    )
    assert codes == [FAILED]
    assert f"not everything of the run is in {stored.place}" in stored.printed()
    assert f"it is in {stored.folder('a')}: the same command on this machine" in stored.printed()
    proxy.calm()
    assert not stored.copy().finished
    assert stored.train("a") == [FINISHED], stored.printed()
    copy = stored.copy()
    assert copy.attempts() == [1]
    assert_bit_equal(copy, reference)
    stored.assert_tidy()


def test_a_store_without_conditions_is_refused(stored: StoredRun) -> None:
    if reason := missing_rclone():
        pytest.skip(reason)
    with rclone_s3() as server:
        stored.place = f"s3://{server.make_bucket('plain')}/mine"
        stored.variables = server.variables
        assert stored.train("a") == [BAD_REQUEST]
    assert "does not support conditional writes" in stored.printed()
    assert "Traceback" not in stored.printed()


def test_a_run_in_azure(stored: StoredRun, reference: Run) -> None:
    if reason := missing_azurite():
        pytest.skip(reason)
    with azurite() as server:
        stored.place = f"az://{server.make_bucket('runs')}/mine"
        stored.variables = server.variables
        assert stored.train("a", kill("store:committed")) == [KILLED]
        assert stored.train("b") == [FINISHED], stored.printed()
        assert_bit_equal(stored.copy(), reference)


@pytest.mark.rotates(2)
def test_two_ranks_on_one_machine(stored: StoredRun, tmp_path: Path) -> None:
    """The events of all ranks are in the store before a checkpoint that follows them."""
    whole = Run(tmp_path / "whole")
    argv = command(stored.data, whole.path)
    assert stored.trainers.train(argv, tmp_path / "whole.log", ranks=2, faults=[SLOW]) == [0, 0]
    assert KILLED in stored.train("a", {**kill("store:marker"), "rank": 0}, ranks=2)
    assert stored.train("b", ranks=2) == [0, 0], stored.printed()
    assert_bit_equal(stored.copy(), whole)
    ends = [e for rank in (0, 1) for e in stored.copy().attempt_events(2, rank)]
    assert [e["outcome"] for e in ends if e["kind"] == "end"] == ["finished"] * 2
