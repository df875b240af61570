"""Machines whose own name is 127.0.1.1 in /etc/hosts, as Debian installs them: they meet at the
name of the first one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.namespaces import missing
from integration.site import Site, site_of
from stoker.errors import BAD_REQUEST

no_machines = missing()
pytestmark = [
    pytest.mark.skipif(no_machines is not None, reason=no_machines or ""),
    pytest.mark.timeout(900),
]
MEET = ("--nodes", "2", "--rendezvous", "node-a:29400")


@pytest.fixture
def site(disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """On a busy machine a node may need minutes to come."""
    monkeypatch.setenv("STOKER_JOIN_S", "600")
    with site_of(2, disk, tmp_path, epochs=2) as site:
        for machine in site.machines:
            own = f"127.0.1.1 {machine.name}.example.org {machine.name}"
            others = [f"{m.address} {m.name}" for m in site.machines if m is not machine]
            machine.hosts = tmp_path / f"{machine.name}.hosts"
            machine.hosts.write_text("\n".join(["127.0.0.1 localhost", own, *others, ""]))
        yield site


def test_two_machines_meet_at_the_name_of_the_first(site: Site) -> None:
    first = site.start(0, *MEET)
    site.wait(lambda: bool(site.machines[0].listeners()) or first.poll() is not None)
    assert site.machines[0].listeners() == ["10.77.0.1:29400"], site.everything()
    second = site.start(1, *MEET)
    site.finish(first, second)
    site.assert_whole()
    assert (site.run.start_of(site.run.attempts()[0]) or {})["world"] == 2
    note = "node-a is 127.0.1.1 on this machine (/etc/hosts), so it listens on 10.77.0.1 instead\n"
    assert site.printed(0).count(note) == 1
    assert "127.0.1.1" not in site.printed(1)


def test_a_copy_of_the_first_ones_hosts_file_is_refused(site: Site) -> None:
    site.machines[1].hosts = site.machines[0].hosts
    assert site.start(1, *MEET).wait(timeout=300) == BAD_REQUEST, site.everything()
    assert "node-a is 127.0.1.1 on this machine (node-b)" in site.printed(1)
    assert not site.machines[1].processes()
