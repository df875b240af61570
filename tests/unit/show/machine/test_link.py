"""Links as lines: the port and its rate, what it costs, and one thing to do about it."""

from __future__ import annotations

import pytest

from golden import check_golden
from networks import link, network
from stoker.measure.trials.link import LinkReport
from stoker.show.machine.link import lines, step_lines

QUIET = link(94, interface="", counted=None)


def all_lines(report: LinkReport, compute_s: float, batch: int = 64) -> list[str]:
    """Everything about links and a step that computes for so long."""
    return [*lines(report), *step_lines(report, compute_s, batch)]


def test_a_slow_port_is_named_with_its_rate_and_its_cost() -> None:
    text = all_lines(network(94), 0.36)
    assert "  a - b  94 Mbit/s each way, 0.3 ms: looks like a 100 Mbit/s port" in text
    (transport,) = [line for line in text if "transport" in line]
    assert "eth0" in transport and "100%" in transport
    *_, gradient = [line for line in text if "gradient" in line]
    assert "(46.8 MB): 3.98 s a step" in gradient
    assert "all but 3.74 s" in gradient
    assert "16 images/s at batch 64" in gradient
    warning, action = text[-2:]
    assert "91%" in warning and "a 100 Mbit/s port at a and b (94 Mbit/s measured)" in warning
    assert warning.endswith("4.10 s a step, 360 ms without")
    assert action.startswith("  next: ") and "2.5 Gbit/s" in action


@pytest.mark.parametrize("mbit", [94, 940, 4_000])
@pytest.mark.parametrize("compute_s", [0.05, 0.3, 5.0, None])
def test_nothing_is_warned_of_that_the_backward_pass_hides(
    mbit: float, compute_s: float | None
) -> None:
    report = network(mbit)
    text = "\n".join(all_lines(report, compute_s) if compute_s else lines(report))
    exposed = max(0.0, report.gradient_s - 2 / 3 * (compute_s or 0))
    costly = compute_s is not None and exposed / (compute_s + exposed) > 0.2
    assert ("warning" in text) == ("next:" in text) == costly


def test_one_machine_has_no_port() -> None:
    text = all_lines(network(pairs=(link(900, ("here",)),)), 0.01)
    assert "  rank 0 - rank 1  900 Mbit/s each way, 0.3 ms" in text
    assert "looks like" not in " ".join(text)
    assert "loopback" in text[-2]
    assert "--batch-size" in text[-1]


def test_the_one_slow_host_of_three_is_named() -> None:
    pairs = (
        link(940, ("a", "b"), (0, 1)),
        link(94, ("a", "c"), (0, 2)),
        link(94, ("b", "c"), (1, 2)),
    )
    text = all_lines(network(pairs=pairs), 1.0)
    assert "a 100 Mbit/s port at c (94 Mbit/s measured)" in text[-2]
    assert "  (every pair of hosts, by the first rank of each)" in text


def test_a_slow_link_that_no_port_explains_is_still_named() -> None:
    text = all_lines(network(pairs=(link(40, spread=1.0),)), 1.0)
    assert "port" not in text[-2]
    assert "at a and b (40 Mbit/s measured)" in text[-2]


def test_cards_that_are_faster_than_their_link_are_mentioned() -> None:
    def transport(cards: dict[str, int]) -> str:
        (line,) = [one for one in lines(network(94, cards_mbit=cards)) if "transport" in one]
        return line

    assert "1 Gbit/s" in transport({"a": 1000, "b": 1000})
    assert "bit/s" not in transport({"a": 1000})
    assert "bit/s" not in transport({"a": 100, "b": 1000})


def test_what_is_not_known_is_not_made_up() -> None:
    report = network(pairs=(QUIET,), all_ranks=QUIET, gradient_bytes=0, gradient_s=0.0)
    text = "\n".join(all_lines(report, 1.0))
    assert "(" not in text and "%" not in text
    assert "gradient" not in text and "warning" not in text
    transport = "NET/Socket (2 channels); network Socket"
    assert transport in "\n".join(lines(network(backend="nccl", nccl=transport)))


def test_lines_golden() -> None:
    pairs = (link(940, ("a", "b"), (0, 1)), link(94, ("b", "c"), (1, 2)))
    reports = [
        network(94, cards_mbit={"a": 1000, "b": 1000}),
        network(pairs=pairs),
        network(pairs=(link(40, spread=1.0),), gradient_measured=False),
        network(pairs=(link(900, ("here",)),)),
        network(pairs=(QUIET,), all_ranks=QUIET),
        network(backend="nccl"),
        network(backend="nccl", nccl="NET/Socket (2 channels); network Socket"),
    ]
    check_golden("link_lines", (line for report in reports for line in all_lines(report, 0.3)))
