"""What binds a run follows from where its time went, with a number that proves it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.measure.spans import PARTS
from stoker.measure.verdict import RULES, verdict

TRAINING = {"to_device": 1, "forward": 30, "backward": 60, "optimiser": 5, "other": 1}

CASES = [
    ("nothing but compute", {}, "compute"),
    ("a little of everything", {"data": 3, "evaluation": 5, "checkpoint": 1}, "compute"),
    ("as much waiting as work", {"data": 97}, "reading and decoding"),
    ("a third waiting", {"data": 48}, "reading and decoding"),
    ("mostly evaluated", {"evaluation": 150}, "evaluation"),
    ("a third evaluated", {"evaluation": 48}, "evaluation"),
    ("a third saved", {"checkpoint": 48}, "saving checkpoints"),
    ("waits more than it evaluates", {"data": 60, "evaluation": 50}, "reading and decoding"),
    ("evaluates more than it waits", {"data": 50, "evaluation": 60}, "evaluation"),
    ("saves more than all else", {"checkpoint": 80, "data": 40, "evaluation": 60}, "saving"),
]


@pytest.mark.parametrize(("more", "limit"), [case[1:] for case in CASES], ids=[c[0] for c in CASES])
def test_the_part_that_binds_is_named(more: dict[str, float], limit: str) -> None:
    found = verdict({**TRAINING, **more})
    assert found is not None
    assert found.limit.startswith(limit)


@pytest.mark.parametrize("parts", [{}, {"data": 0.0}, dict.fromkeys(PARTS, 0.0)])
def test_nothing_measured_gives_no_verdict(parts: dict[str, float]) -> None:
    assert verdict(parts) is None


def test_the_evidence_is_the_share_of_the_time() -> None:
    found = verdict({"data": 30, "forward": 60, "other": 10})
    assert found is not None
    assert found.evidence == "30% of the time"
    assert found.gain == pytest.approx(0.3)
    assert "--threads" in found.action


def test_compute_says_how_little_it_waited() -> None:
    found = verdict({"data": 2, "forward": 40, "backward": 50, "optimiser": 5, "other": 3})
    assert found is not None
    assert "95% of the time in forward, backward and optimiser" in found.evidence
    assert "2.0% waiting" in found.evidence
    assert found.gain == 0


@pytest.mark.parametrize("part", [rule[0] for rule in RULES])
def test_a_run_that_does_one_thing_only_is_bound_by_it(part: str) -> None:
    found = verdict({part: 12.5})
    assert found is not None
    assert found.evidence == "100% of the time"
    assert found.gain == 1


@given(st.dictionaries(st.sampled_from(PARTS), st.floats(0, 1e9)))
def test_no_share_is_over_a_hundred_percent(parts: dict[str, float]) -> None:
    found = verdict(parts)
    if found is None:
        assert sum(parts.values()) == 0
        return
    shown = [float(number) for number in re.findall(r"([\d.]+)%", found.evidence)]
    assert shown and all(0 <= number <= 100 for number in shown)
    assert 0 <= found.gain <= 1 + 1e-9
    assert found.limit and found.action


@given(st.dictionaries(st.sampled_from(PARTS), st.floats(1e-3, 1e6), min_size=1))
def test_the_verdict_does_not_depend_on_how_long_it_ran(parts: dict[str, float]) -> None:
    one, many = verdict(parts), verdict({name: 1024 * s for name, s in parts.items()})
    assert one == many
