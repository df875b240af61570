from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from memory_objects import Fault, MemoryObjects, version_of
from simulated import SimulatedClock
from stoker.errors import BadRequest, NewerFormat, StokerError
from stoker.stores.head import FORMAT, KEY, MOST_BYTES, read_head
from stoker.stores.lease import (
    MARGIN,
    HeadLease,
    LeaseHeld,
    LeaseLost,
    NoConditions,
    lasting_clock,
)
from stoker.stores.objects import Denied, StoreError, Version

TTL_S = 60.0
OVER_S = TTL_S * MARGIN + 0.1
"""A lease that was not renewed for so long is free."""


class Machine:
    """A process on a machine, with a clock that a test sets."""

    def __init__(self, objects: MemoryObjects, host: str) -> None:
        self.clock = SimulatedClock()
        self.lease = HeadLease(
            objects, ttl_s=TTL_S, host=host, clock=self.clock.now, sleep=self.clock.sleep
        )

    def later(self, seconds: float) -> None:
        self.clock.sleep(seconds)


def named(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """The change that adds a checkpoint."""
    return lambda content: {"names": [*content.get("names", []), name]}


def names(objects: MemoryObjects) -> list[str]:
    head = read_head(objects)
    assert head is not None
    return list(head.content.get("names", []))


def taken_over(objects: MemoryObjects, holder: Machine) -> Machine:
    """Another machine, which has taken the lease of a holder that was silent for too long."""
    other = Machine(objects, "other")
    with pytest.raises(LeaseHeld):
        other.lease.acquire(0)
    for machine in (holder, other):
        machine.later(OVER_S)
    other.lease.acquire(0)
    return other


@pytest.fixture
def objects() -> MemoryObjects:
    return MemoryObjects()


@pytest.fixture
def holder(objects: MemoryObjects) -> Machine:
    machine = Machine(objects, "node7")
    assert machine.lease.acquire(0) == {}
    return machine


def test_a_lease_goes_from_one_process_to_the_next(objects: MemoryObjects) -> None:
    a, b = Machine(objects, "a"), Machine(objects, "b")
    assert a.lease.acquire(0) == {}
    assert a.lease.commit(named("000000010")) == {"names": ["000000010"]}
    first = a.lease.holder
    a.lease.release()
    assert (a.lease.held, a.lease.holder) == (False, "")
    assert b.lease.acquire(0) == {"names": ["000000010"]}
    assert b.lease.held
    assert b.lease.holder != first


def test_another_process_is_refused_and_told_by_whom(
    objects: MemoryObjects, holder: Machine
) -> None:
    other = Machine(objects, "other")
    with pytest.raises(LeaseHeld, match="node7") as caught:
        other.lease.acquire(0)
    assert caught.value.head.holder == holder.lease.holder
    assert not other.lease.held


def test_the_name_of_a_host_does_not_reach_the_terminal_as_it_is(objects: MemoryObjects) -> None:
    Machine(objects, "\x1b[2J" * 100).lease.acquire(0)
    with pytest.raises(LeaseHeld) as caught:
        Machine(objects, "other").lease.acquire(0)
    assert str(caught.value).isprintable()


def test_a_lease_is_held_for_its_time_and_renewed(holder: Machine) -> None:
    holder.later(TTL_S - 0.1)
    assert holder.lease.held
    holder.lease.renew()
    holder.later(TTL_S - 0.1)
    assert holder.lease.held
    holder.later(0.2)
    assert not holder.lease.held


@pytest.mark.parametrize("method", ["create", "replace"])
def test_the_time_counts_from_the_beginning_of_a_request(
    objects: MemoryObjects, method: str
) -> None:
    machine = Machine(objects, "slow")

    def pass_time(name: str, key: str) -> None:
        if name == method:
            machine.later(40)

    objects.before = pass_time
    machine.lease.acquire(0)
    if method == "replace":
        machine.lease.renew()
    machine.later(TTL_S - 40 - 0.1)
    assert machine.lease.held
    machine.later(0.2)
    assert not machine.lease.held


def test_a_store_that_answers_too_slowly_gives_no_lease(objects: MemoryObjects) -> None:
    machine = Machine(objects, "slow")
    objects.before = lambda name, key: machine.later(TTL_S + 1)
    with pytest.raises(StoreError, match=r"60\.0 s"):
        machine.lease.acquire(0)
    assert not machine.lease.held


def test_a_lease_that_is_renewed_is_not_taken(objects: MemoryObjects, holder: Machine) -> None:
    other = Machine(objects, "other")
    for _ in range(20):
        for machine in (holder, other):
            machine.later(TTL_S / 2)
        holder.lease.renew()
        with pytest.raises(LeaseHeld):
            other.lease.acquire(0)


def test_a_lease_is_taken_once_it_was_seen_unchanged_for_long_enough(
    objects: MemoryObjects, holder: Machine
) -> None:
    other = Machine(objects, "other")
    other.later(1000)
    for _ in range(2):
        with pytest.raises(LeaseHeld):
            other.lease.acquire(0)
        other.later(TTL_S * MARGIN - 1)
    with pytest.raises(LeaseHeld):
        # Seen for the first time only now: the time before does not count.
        Machine(objects, "third").lease.acquire(0)
    other.later(2)
    other.lease.acquire(0)


def test_patience_outlasts_a_dead_holder(objects: MemoryObjects, holder: Machine) -> None:
    other = Machine(objects, "other")
    with pytest.raises(LeaseHeld):
        other.lease.acquire(TTL_S)
    assert other.clock.now() == TTL_S
    other.lease.acquire(TTL_S)
    assert TTL_S * MARGIN < other.clock.now() < TTL_S * MARGIN + 5


def test_another_processs_time_counts_not_ones_own(objects: MemoryObjects) -> None:
    slow = HeadLease(objects, ttl_s=1000, host="slow", clock=lambda: 0.0)
    slow.acquire(0)
    other = Machine(objects, "other")
    with pytest.raises(LeaseHeld):
        other.lease.acquire(1000)


def test_a_holder_that_has_lost_its_lease_commits_nothing(
    objects: MemoryObjects, holder: Machine
) -> None:
    other = taken_over(objects, holder)
    other.lease.commit(named("mine"))
    before = dict(objects.content)
    for act in (holder.lease.renew, lambda: holder.lease.commit(named("late"))):
        with pytest.raises(LeaseLost):
            act()
    holder.lease.release()
    assert objects.content == before
    assert not holder.lease.held
    assert other.lease.held


def test_a_holder_that_slept_goes_on_where_no_process_took_its_lease(
    objects: MemoryObjects, holder: Machine
) -> None:
    holder.later(10 * TTL_S)
    assert not holder.lease.held
    holder.lease.commit(named("000000010"))
    assert holder.lease.held
    assert names(objects) == ["000000010"]


def test_a_lease_that_ended_unnoticed_is_lost_to_the_first_who_looks(
    objects: MemoryObjects, holder: Machine
) -> None:
    taken_over(objects, holder)
    with pytest.raises(LeaseLost, match="other has taken it over"):
        holder.lease.renew()
    with pytest.raises(LeaseLost):
        holder.lease.renew()


@pytest.mark.parametrize("error", [StoreError("timed out"), None])
def test_a_lost_answer_is_not_a_failure(objects: MemoryObjects, error: StoreError | None) -> None:
    """Nor where the store's client sent the write again, and was told of a conflict."""
    machine = Machine(objects, "node7")

    def lose(method: str) -> None:
        if error is not None:
            objects.faults.append(Fault(method, applied=True, error=error))
        else:
            objects.before = repeat

    def repeat(method: str, key: str) -> None:
        if method in ("create", "replace"):
            objects.before = lambda method, key: None
            objects.content[key] = sent[-1]

    sent = record(objects)
    lose("create")
    machine.lease.acquire(0)
    lose("replace")
    machine.lease.renew()
    lose("replace")
    assert machine.lease.commit(named("000000010")) == {"names": ["000000010"]}
    assert machine.lease.held
    assert names(objects) == ["000000010"]


def record(objects: MemoryObjects) -> list[bytes]:
    """The bytes of all writes from now on, applied or not."""
    sent: list[bytes] = []
    create, replace, write = objects.create, objects.replace, objects.write

    def recorded_create(key: str, data: bytes) -> Version:
        sent.append(data)
        return create(key, data)

    def recorded_replace(key: str, data: bytes, version: Version) -> Version:
        sent.append(data)
        return replace(key, data, version)

    def recorded_write(key: str, data: bytes) -> Version:
        sent.append(data)
        return write(key, data)

    objects.create, objects.replace = recorded_create, recorded_replace  # type: ignore[method-assign]
    objects.write = recorded_write  # type: ignore[method-assign]
    return sent


def test_a_write_that_failed_changes_nothing_and_is_tried_again(
    objects: MemoryObjects, holder: Machine
) -> None:
    objects.faults.append(Fault("replace", times=2))
    for act in (holder.lease.renew, lambda: holder.lease.commit(named("000000010"))):
        with pytest.raises(StoreError):
            act()
    assert holder.lease.held
    assert names(objects) == []
    holder.lease.commit(named("000000020"))
    assert names(objects) == ["000000020"]


def test_a_commit_that_is_applied_after_it_was_given_up_stays(
    objects: MemoryObjects, holder: Machine
) -> None:
    sent = record(objects)
    objects.faults += [Fault("replace"), Fault("read")]
    with pytest.raises(StoreError):
        holder.lease.commit(named("late"))
    objects.content[KEY] = sent[-1]
    holder.lease.commit(named("next"))
    assert names(objects) == ["late", "next"]
    assert holder.lease.held


def test_a_renewal_that_is_applied_late_counts_from_its_own_beginning(
    objects: MemoryObjects, holder: Machine
) -> None:
    """The next one finds it applied, and must not take it for itself."""
    sent = record(objects)
    holder.later(10)
    objects.faults += [Fault("replace")]
    with pytest.raises(StoreError):
        holder.lease.renew()
    objects.content[KEY] = sent[-1]
    holder.later(40)
    objects.faults += [Fault("replace", times=2)]
    with pytest.raises(StoreError):
        holder.lease.renew()
    assert holder.lease.held
    holder.later(TTL_S - 40 - 0.1)
    assert holder.lease.held
    holder.later(0.2)
    assert not holder.lease.held


def test_no_two_writes_have_the_same_bytes(objects: MemoryObjects) -> None:
    """So that no version comes back, and no late write finds its condition true again."""
    sent = record(objects)
    machine = Machine(objects, "node7")
    for round_ in range(3):
        machine.lease.acquire(0)
        objects.faults += [Fault("replace"), Fault("replace", applied=True), Fault("replace")]
        for _ in range(6):
            try:
                machine.lease.renew()
            except StoreError:
                continue
        machine.lease.commit(named(str(round_)))
        machine.lease.release()
    assert len(sent) > 20
    assert len({version_of(data) for data in sent}) == len(sent)


def test_an_acquisition_that_is_applied_late_is_used_by_no_other(objects: MemoryObjects) -> None:
    sent = record(objects)
    machine = Machine(objects, "node7")
    objects.faults.append(Fault("create"))
    with pytest.raises(StoreError):
        machine.lease.acquire(0)
    objects.content[KEY] = sent[-1]
    with pytest.raises(LeaseHeld):
        Machine(objects, "other").lease.acquire(0)
    machine.lease.acquire(0)  # at once: it knows that the lease is its own, and gives it up
    assert machine.lease.held


def test_an_acquisition_whose_answer_nobody_awaited_is_given_up(objects: MemoryObjects) -> None:
    """As where a stop request interrupts the process just then: the next one does not wait."""
    sent = record(objects)
    machine = Machine(objects, "node7")
    objects.faults.append(Fault("create"))
    with pytest.raises(StoreError):
        machine.lease.acquire(0)
    objects.content[KEY] = sent[-1]
    machine.lease.release()
    other = Machine(objects, "other")
    other.lease.acquire(0)
    machine.lease.release()
    assert other.lease.held
    other.lease.renew()


def test_the_lease_of_a_process_that_has_ended_is_taken_at_once_by_its_id(
    objects: MemoryObjects, holder: Machine
) -> None:
    holder.lease.commit(named("000000010"))
    next_one = Machine(objects, "node7")
    for earlier in ("", "0" * 16):
        with pytest.raises(LeaseHeld):
            next_one.lease.acquire(0, earlier=earlier)
    assert next_one.lease.acquire(0, earlier=holder.lease.holder) == {"names": ["000000010"]}
    with pytest.raises(LeaseLost):
        holder.lease.commit(named("late"))


def test_a_store_that_fails_is_asked_again_while_patience_lasts(objects: MemoryObjects) -> None:
    machine = Machine(objects, "node7")
    objects.faults.append(Fault("read", times=3))
    machine.lease.acquire(60)
    assert machine.lease.held
    objects.faults.append(Fault("read", times=1000))
    with pytest.raises(StoreError):
        Machine(objects, "other").lease.acquire(60)


def test_a_refusal_is_told_at_once(objects: MemoryObjects) -> None:
    machine = Machine(objects, "node7")
    for method in ("read", "create"):
        objects.faults.append(Fault(method, error=Denied("no such bucket")))
        with pytest.raises(Denied):
            machine.lease.acquire(600)
    machine.lease.acquire(0)
    objects.faults.append(Fault("replace", error=Denied("the token has expired")))
    with pytest.raises(Denied):
        machine.lease.renew()
    assert machine.lease.held
    assert machine.clock.now() == 0


def test_a_released_lease_is_not_held_while_the_request_is_on_its_way(
    objects: MemoryObjects, holder: Machine
) -> None:
    held = []
    objects.before = lambda method, key: held.append(holder.lease.held)
    holder.lease.release()
    assert held == [False]
    with pytest.raises(LeaseLost):
        holder.lease.renew()


@pytest.mark.parametrize("applied", [True, False])
def test_a_release_raises_nothing(objects: MemoryObjects, holder: Machine, applied: bool) -> None:
    objects.faults.append(Fault("*", times=5, applied=applied))
    holder.lease.release()
    assert not holder.lease.held
    objects.faults.clear()
    holder.lease.acquire(0)
    assert holder.lease.held


@pytest.mark.parametrize("data", [b"", b"{}", b"<html>sign in</html>", b" " * (MOST_BYTES + 1)])
def test_a_damaged_head_is_never_taken_over(objects: MemoryObjects, data: bytes) -> None:
    objects.content[KEY] = data
    with pytest.raises(StoreError):
        Machine(objects, "node7").lease.acquire(0)
    assert objects.content == {KEY: data}


def test_a_head_of_a_newer_version_is_left_alone(objects: MemoryObjects) -> None:
    data = b'{"format": %d}' % (FORMAT + 1)
    objects.content[KEY] = data
    with pytest.raises(NewerFormat):
        Machine(objects, "node7").lease.acquire(600)
    assert objects.content == {KEY: data}


@pytest.mark.parametrize("data", [b"damaged", b'{"format": 99}', None])
def test_a_holder_whose_head_is_gone_or_damaged_has_lost_it(
    objects: MemoryObjects, holder: Machine, data: bytes | None
) -> None:
    objects.content.pop(KEY)
    if data is not None:
        objects.content[KEY] = data
    with pytest.raises(LeaseLost):
        holder.lease.commit(named("000000010"))
    assert objects.content.get(KEY) == data
    assert not holder.lease.held


def test_content_that_does_not_fit_is_refused_and_the_lease_stays(
    objects: MemoryObjects, holder: Machine
) -> None:
    before = dict(objects.content)
    with pytest.raises(StoreError):
        holder.lease.commit(named("x" * MOST_BYTES))
    with pytest.raises(TypeError):
        holder.lease.commit(lambda content: {"path": object()})
    assert objects.content == before
    holder.lease.commit(named("000000010"))
    assert names(objects) == ["000000010"]


def test_the_content_is_the_callers_own_copy(objects: MemoryObjects, holder: Machine) -> None:
    content = holder.lease.commit(named("000000010"))
    content["names"].append("not committed")

    def spoil(content: dict[str, Any]) -> dict[str, Any]:
        content["names"].clear()
        raise StokerError("changed its mind")

    with pytest.raises(StokerError):
        holder.lease.commit(spoil)
    holder.lease.renew()
    assert names(objects) == ["000000010"]


def test_a_store_without_conditions_gives_no_lease() -> None:
    objects = MemoryObjects(conditional=False)
    with pytest.raises(NoConditions) as caught:
        Machine(objects, "node7").lease.acquire(0)
    assert isinstance(caught.value, BadRequest)
    assert objects.content == {}


def test_without_conditions_all_works_for_one_process_and_another_is_noticed() -> None:
    objects = MemoryObjects(conditional=False)
    a, b = Machine(objects, "a"), Machine(objects, "b")
    assert a.lease.acquire(0, unlocked=True) == {}
    a.lease.commit(named("000000010"))
    a.lease.renew()
    with pytest.raises(LeaseHeld):
        b.lease.acquire(0, unlocked=True)
    b.later(OVER_S)
    assert b.lease.acquire(0, unlocked=True) == {"names": ["000000010"]}
    with pytest.raises(LeaseLost):
        a.lease.commit(named("late"))
    objects.faults.append(Fault("write", applied=True))
    b.lease.commit(named("000000020"))
    assert names(objects) == ["000000010", "000000020"]


def test_threads_that_renew_and_commit_do_not_disturb_each_other(objects: MemoryObjects) -> None:
    lease = HeadLease(objects, host="node7")
    lease.acquire(0)
    failures: list[BaseException] = []

    def repeat(act: Callable[[int], object]) -> None:
        try:
            for number in range(50):
                act(number)
        except BaseException as error:
            failures.append(error)

    threads = [
        threading.Thread(target=repeat, args=(act,))
        for act in (
            lambda number: lease.renew(),
            lambda number: lease.commit(named(f"a{number}")),
            lambda number: lease.commit(named(f"b{number}")),
        )
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert sorted(names(objects)) == sorted(f"{kind}{n}" for kind in "ab" for n in range(50))


def test_processes_that_hold_the_lease_in_turns_lose_no_commit(objects: MemoryObjects) -> None:
    def work(host: str) -> None:
        lease = HeadLease(objects, host=host, sleep=lambda seconds: None)
        for number in range(10):
            lease.acquire(600)
            lease.commit(named(f"{host}{number}"))
            lease.release()

    threads = [threading.Thread(target=work, args=(host,)) for host in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(names(objects)) == sorted(f"{host}{n}" for host in "abc" for n in range(10))


def test_the_clock_never_goes_back() -> None:
    times = [lasting_clock() for _ in range(100)]
    assert times == sorted(times)


@pytest.mark.parametrize("ttl_s", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_that_no_lease_can_have_is_an_error(objects: MemoryObjects, ttl_s: float) -> None:
    with pytest.raises(ValueError, match="ttl_s"):
        HeadLease(objects, ttl_s=ttl_s, host="node7")
