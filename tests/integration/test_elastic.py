"""Nodes that join and leave: two machines with one disk, killed, cut off, and asked to leave.

Every time is read from the run directory: the moment of the first step of an attempt with so many
ranks, against the moment of the fault.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.namespaces import missing
from integration.site import BATCH, IMAGES, LOST, Record, Site, site_of
from measured import held, measured

no_machines = missing()
pytestmark = [
    pytest.mark.alone,
    pytest.mark.rotates(6),
    pytest.mark.skipif(no_machines is not None, reason=no_machines or ""),
    pytest.mark.timeout(1500),
    pytest.mark.slow,
    measured(),
]


@pytest.fixture
def site(disk: Path, tmp_path: Path) -> Iterator[Site]:
    with site_of(2, disk, tmp_path, epochs=120) as site:
        yield site


@pytest.mark.parametrize("victim", [0, 1], ids=["rank 0", "rank 1"])
def test_a_node_is_killed_and_comes_back(site: Site, record_property: Record, victim: int) -> None:
    began, name = time.time(), site.machines[victim].name
    site.host = survivor = 1 - victim
    first, second = site.start(survivor), site.start(victim)
    record_property("start_s", site.trains(world=2, after=began))

    killed = time.time()
    site.machines[victim].kill()
    alone_s = site.trains(world=1, after=killed)
    record_property("alone_s", alone_s)
    held(alone_s < 25, alone_s)
    assert second.wait() == -signal.SIGKILL
    site.wait(lambda: f"lost rank {victim} on {name}" in site.printed(survivor))
    assert "Traceback" not in site.everything()

    back = time.time()
    second = site.start(victim)
    together_s = site.trains(world=2, after=back)
    record_property("together_s", together_s)
    held(together_s < 25, together_s)
    hosts = {
        event["environment"]["host"]
        for rank in range(2)
        for event in site.run.attempt_events(site.run.attempts()[-1], rank)
        if event["kind"] == "attempt"
    }
    assert hosts == {"node-a", "node-b"}

    site.finish(first, second)
    site.assert_whole()


def test_a_link_is_down_for_half_a_minute(site: Site, record_property: Record) -> None:
    """The node that is cut off ends with 75, nothing of it stays; the other goes on alone."""
    began = time.time()
    first, second = site.start(0), site.start(1)
    site.trains(world=2, after=began)

    cut = time.time()
    site.machines[1].link("down")
    left_s = site.left(second, cut)
    record_property("cut_off_node_ended_s", left_s)
    held(left_s < 45, left_s)
    assert LOST in site.printed(1)
    assert not site.machines[1].processes()
    time.sleep(max(0.0, cut + 30 - time.time()))
    site.machines[1].link("up")
    alone_s = site.trains(world=1, after=cut)
    record_property("alone_s", alone_s)
    held(alone_s < 45, alone_s)
    assert first.poll() is None

    second = site.start(1)
    site.finish(first, second)
    site.assert_whole()


def test_the_host_of_the_rendezvous_is_killed(site: Site, record_property: Record) -> None:
    began = time.time()
    _, second = site.start(0), site.start(1)
    site.trains(world=2, after=began)

    killed = time.time()
    site.machines[0].kill()
    ended_s = site.left(second, killed)
    record_property("ended_s", ended_s)
    held(ended_s < 40, ended_s)
    assert not site.machines[1].processes()
    assert LOST in site.printed(1)
    assert "lost rank 0 on node-a" in site.printed(1)
    assert "Traceback" not in site.everything()

    again = time.time()
    launchers = site.start(0), site.start(1)
    record_property("resumed_s", site.trains(world=2, after=again))
    site.finish(*launchers)
    site.assert_whole()


def test_a_node_leaves_on_request_and_listens_on_its_own_address(
    site: Site, record_property: Record
) -> None:
    began = time.time()
    first, second = site.start(0, "--ranks", "2"), site.start(1, "--ranks", "2")
    site.trains(world=4, after=began)
    for machine in site.machines:
        listeners = machine.listeners()
        assert listeners
        assert {address.rpartition(":")[0] for address in listeners} == {machine.address}

    asked_at = time.time()
    second.send_signal(signal.SIGUSR1)
    left_s = site.left(second, asked_at)
    record_property("left_s", left_s)
    held(left_s < 30, left_s)
    assert not site.machines[1].processes()
    record_property("alone_s", site.trains(world=2, after=asked_at))
    asked_at = time.time()
    first.send_signal(signal.SIGTERM)
    left_s = site.left(first, asked_at)
    held(left_s < 30, left_s)
    starts = site.run.starts()
    assert starts[1]["step"] == next(
        event["step"] for event in site.run.attempt_events(1) if event["kind"] == "end"
    ), "all that was done before somebody left is saved"


def test_a_run_on_a_slow_link_needs_consent(site: Site) -> None:
    """Nothing is trained without --yes; a larger batch after a refusal needs no consent."""
    for machine in site.machines:
        machine.rate("10mbit")
    flags = ("--nodes", "2", "--model", "resnet9_w16", "--epochs", "1", "--eval-every", "1")
    launchers = site.start(0, *flags, yes=False), site.start(1, *flags, yes=False)
    site.finish(*launchers, code=2)
    for number in range(2):
        printed = " ".join(site.printed(number).split())
        assert printed.count("looks like a 10 Mbit/s port") == 1
        assert "--yes trains anyway" in printed
        assert "Traceback" not in printed
    assert not site.run.steps()

    # The advice of the refusal is followed: nothing was trained that --allow-change could keep.
    # A yes on one of them is enough.
    flags += ("--batch-size", str(2 * BATCH))
    site.finish(site.start(0, *flags), site.start(1, *flags, yes=False))
    assert len(list(site.run.steps())) == IMAGES / BATCH / 2
