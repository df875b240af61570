"""The network in words: the port and its rate, what it costs, and one thing to do about it."""

from __future__ import annotations

import pytest

from networks import link, network
from stoker.measure.trials.link import LinkReport
from stoker.show.link import lines, meaning


def told(found: LinkReport, compute_s: float, batch: int = 64) -> list[str]:
    """All that is said where a step computes for so long."""
    return [*lines(found), *meaning(found, compute_s, batch)]


def test_a_slow_port_is_named_with_its_rate_and_its_cost() -> None:
    said = told(network(94), 0.36)
    assert "  a - b  94 Mbit/s each way, 0.3 ms: looks like a 100 Mbit/s port" in said
    assert "  transport: sockets, interface eth0 (it counted 100% of the bytes due)" in said
    *_, gradient = [line for line in said if "gradient" in line]
    assert "(46.8 MB): 4.0 s a step" in gradient
    assert "all but 3.7 s" in gradient
    assert "16 images/s at batch 64" in gradient
    warning, action = said[-2:]
    assert "91% of a step would be waiting for a 100 Mbit/s port at a and b" in warning
    assert "(94 Mbit/s measured)" in warning
    assert warning.endswith("4.1 s a step, 0.36 s without")
    assert action.startswith("  next: a port or plan of 2.5 Gbit/s or more")


@pytest.mark.parametrize("mbit", [94, 940, 4_000])
@pytest.mark.parametrize("compute_s", [0.05, 0.3, 5.0, None])
def test_nothing_is_blamed_that_the_backward_pass_hides(
    mbit: float, compute_s: float | None
) -> None:
    found = network(mbit)
    said = "\n".join(told(found, compute_s) if compute_s else lines(found))
    exposed = max(0.0, found.gradient_s - 2 / 3 * (compute_s or 0))
    costly = compute_s is not None and exposed / (compute_s + exposed) > 0.2
    assert ("warning" in said) == ("next:" in said) == costly


def test_one_machine_has_no_port() -> None:
    said = told(network(pairs=(link(900, ("here",)),)), 0.01)
    assert "  rank 0 - rank 1  900 Mbit/s each way, 0.3 ms" in said
    assert "port" not in " ".join(said).replace("transport", "").replace("no port is between", "")
    assert "loopback" in said[-2]
    assert "--batch-size" in said[-1]


def test_the_one_slow_host_of_three_is_named() -> None:
    pairs = (
        link(940, ("a", "b"), (0, 1)),
        link(94, ("a", "c"), (0, 2)),
        link(94, ("b", "c"), (1, 2)),
    )
    said = told(network(pairs=pairs), 1.0)
    assert "a 100 Mbit/s port at c (94 Mbit/s measured)" in said[-2]
    assert "  (every pair of hosts, by the first rank of each)" in said


def test_a_network_that_is_no_ports_fault_is_still_told() -> None:
    slow = link(40, spread=1.0)
    said = told(network(pairs=(slow,)), 1.0)
    assert "a network at a and b (40 Mbit/s measured)" in said[-2]


def test_cards_that_promise_more_than_comes_through_are_cleared() -> None:
    said = "\n".join(lines(network(94, cards_mbit={"a": 1000, "b": 1000})))
    assert "the cards say 1 Gbit/s: the cap is elsewhere" in said
    assert "the cards say" not in "\n".join(lines(network(94, cards_mbit={"a": 1000})))
    assert "the cards say" not in "\n".join(lines(network(94, cards_mbit={"a": 100, "b": 1000})))


def test_what_nobody_counted_or_said_is_not_made_up() -> None:
    quiet = link(94, interface="", counted=None)
    found = network(pairs=(quiet,), all_ranks=quiet, gradient_bytes=0, gradient_s=0.0)
    said = "\n".join(told(found, 1.0))
    assert "no interface can be named" in said
    assert "gradient" not in said and "warning" not in said
    assert "NCCL has said nothing" in "\n".join(lines(network(backend="nccl")))
    words = "NET/Socket (2 channels); network Socket"
    assert f"NCCL says {words}" in "\n".join(lines(network(backend="nccl", nccl=words)))
