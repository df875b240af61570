"""What limits a run follows from the facts, with the numbers that prove it."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.measure.facts import Facts, RankFacts
from stoker.measure.spans import PARTS
from stoker.measure.verdict import AFTER_CORE, AFTER_LOCK, RULES, Verdict, verdict_of
from stoker.measure.verdict_text import ACTIONS, EVIDENCE, NAMES, sentences

TRAINING = {"to_device": 0.001, "forward": 0.03, "backward": 0.06, "optimiser": 0.005}
"""The parts of a step of nearly a tenth of a second."""


def rank(number: int = 0, **more: float) -> RankFacts:
    parts = {**TRAINING, **more}
    return RankFacts(rank=number, host=f"box{number}", parts=parts, on_cpu=parts)


def facts(*ranks: RankFacts, **more: object) -> Facts:
    return Facts(ranks=ranks or (rank(),), steps=50, images=32, **more)  # type: ignore[arg-type]


def verdict_on(measured: Facts) -> Verdict:
    verdict = verdict_of(measured)
    assert verdict is not None
    return verdict


CASES = [
    ("nothing but compute", {}, "compute"),
    (
        "a little of everything",
        {"data": 0.003, "evaluation": 0.005, "checkpoint": 0.001},
        "compute",
    ),
    ("as much waiting as work", {"data": 0.096}, "data"),
    ("waits for reads", {"read": 0.05, "decode": 0.01}, "read"),
    ("waits for decoding", {"read": 0.01, "decode": 0.05}, "decode"),
    ("mostly evaluated", {"evaluation": 0.15}, "evaluation"),
    ("a third saved", {"checkpoint": 0.048}, "checkpoint"),
    ("waits more than it evaluates", {"decode": 0.06, "evaluation": 0.05}, "decode"),
    ("evaluates more than it waits", {"decode": 0.05, "evaluation": 0.06}, "evaluation"),
    ("saves more than all else", {"checkpoint": 0.08, "read": 0.04}, "checkpoint"),
]


@pytest.mark.parametrize(("more", "limit"), [case[1:] for case in CASES], ids=[c[0] for c in CASES])
def test_the_part_that_binds_is_named(more: dict[str, float], limit: str) -> None:
    assert verdict_on(facts(rank(**more))).limit == limit


@pytest.mark.parametrize("measured", [None, Facts((), 0), Facts((RankFacts(),), 5)])
def test_nothing_measured_gives_no_verdict(measured: Facts | None) -> None:
    assert verdict_of(measured) is None


def test_every_claim_of_a_rule_has_its_sentences() -> None:
    several = facts(
        rank(0, exchange=0.2),
        replace(rank(1, forward=0.1, exchange=0.13), slow_share=1.0),
        late_share=1.0,
        in_larger=0.9,
        cores=2,
        own_cores=0.5,
        delay_s=0.05,
        throttled_share=0.1,
        stolen_share=0.1,
    )
    claims = [claim for _, rule in RULES if (claim := rule(several))]
    assert {claim.cause for claim in claims} <= NAMES.keys() & EVIDENCE.keys() & ACTIONS.keys()
    assert len(claims) == len(RULES)


class TestCores:
    """Something else has the cores that the run needs."""

    training_s = sum(TRAINING.values())

    def crowded(self, wait: float = 3.0, **more: object) -> Facts:
        """A step that takes `wait` more, for which the training thread has no core."""
        slow = {part: seconds * (1 + wait) for part, seconds in TRAINING.items()}
        delay_s = wait * self.training_s
        known = {"cores": 1, "own_cores": 1 / (1 + wait), "delay_s": delay_s, **more}
        return facts(RankFacts(parts=slow, on_cpu=TRAINING), **known)

    def test_other_programs(self) -> None:
        verdict = verdict_on(self.crowded())
        assert verdict.claim.cause == "cores.others"
        assert verdict.without_s == pytest.approx(
            self.training_s - AFTER_CORE * 3 * self.training_s, rel=0.05
        )
        text = verdict.lines()[0]
        assert "other programs" in text and "a core 75% of the time" in text
        assert "0.25 of 1 core" in text

    def test_threads_of_the_run_are_no_other_programs(self) -> None:
        assert verdict_on(self.crowded(own_cores=1.0)).limit == "compute"

    def test_a_quota(self) -> None:
        verdict = verdict_on(self.crowded(throttled_share=0.74))
        assert verdict.claim.cause == "cores.quota"
        assert verdict.without_s == pytest.approx(self.training_s, rel=0.15)

    def test_a_quota_that_is_counted_on_several_cores(self) -> None:
        assert verdict_on(self.crowded(throttled_share=2.9)).claim.cause == "cores.quota"

    def test_whichever_takes_more(self) -> None:
        assert verdict_on(self.crowded(throttled_share=0.2)).claim.cause == "cores.others"

    @pytest.mark.parametrize("counted", [True, False], ids=["in CPU time", "not in CPU time"])
    def test_stolen_time(self, counted: bool) -> None:
        slow = {part: 2 * seconds for part, seconds in TRAINING.items()}
        stolen = RankFacts(parts=slow, on_cpu=slow if counted else TRAINING)
        verdict = verdict_on(facts(stolen, cores=1, own_cores=1.0, delay_s=0.0, stolen_share=0.5))
        assert verdict.claim.cause == "cores.stolen"
        assert verdict.without_s == pytest.approx(self.training_s)

    @pytest.mark.parametrize(
        "taken",
        [{"stolen_share": 0.28}, {"delay_s": 0.03, "own_cores": 0.5}],
        ids=["steal", "wait"],
    )
    def test_a_model_that_sleeps_for_longer_is_the_limit(self, taken: dict[str, float]) -> None:
        sleeps = RankFacts(parts={**TRAINING, "forward": 0.13}, on_cpu=TRAINING)
        known: dict[str, object] = {"cores": 1, "own_cores": 0.9, "delay_s": 0.0, **taken}
        verdict = verdict_on(facts(sleeps, **known))
        assert verdict.claim.cause == "compute.sleep"

    def test_threads_that_compute_together_wait_for_one_without_a_core(self) -> None:
        slow = {part: 5 * seconds for part, seconds in TRAINING.items()}
        known = {"cores": 2, "own_cores": 0.4, "delay_s": 2 * self.training_s, "computing": 2}
        verdict = verdict_on(facts(RankFacts(parts=slow, on_cpu=TRAINING), **known))
        assert verdict.claim.cause == "cores.others"
        assert verdict.without_s == pytest.approx(self.training_s, rel=0.15)

    def test_loading_threads_wait_for_a_core_too(self) -> None:
        crowded = self.crowded()
        (one,) = crowded.ranks
        work = {"read": 0.01, "decode": 0.6, "cpu": 0.11, "read_cpu": 0.01}
        waits = replace(one, parts={**one.parts, "decode": 0.2}, work=work)
        verdict = verdict_on(replace(crowded, ranks=(waits,)))
        assert verdict.claim.cause == "cores.others"

    def test_slow_decoding_beside_a_small_neighbour_is_slow_decoding(self) -> None:
        crowded = self.crowded(wait=0.1)
        (one,) = crowded.ranks
        work = {"read": 0.01, "decode": 0.6, "cpu": 0.02, "read_cpu": 0.01}
        waits = replace(one, parts={**one.parts, "decode": 0.5}, work=work)
        assert verdict_on(replace(crowded, ranks=(waits,))).limit == "decode"

    def test_unknown_loading_is_not_made_quicker(self) -> None:
        (one,) = self.crowded().ranks
        waits = replace(one, parts={**one.parts, "data": 1.0})
        verdict = verdict_on(replace(self.crowded(), ranks=(waits,)))
        assert verdict.limit == "data"

    @pytest.mark.parametrize("unknown", ["cores", "own_cores", "delay_s"])
    def test_what_was_not_measured_is_no_claim(self, unknown: str) -> None:
        crowded = replace(self.crowded(), **{unknown: 0 if unknown == "cores" else None})
        assert verdict_on(crowded).limit == "compute"


class TestLoading:
    slow = RankFacts(
        parts={**TRAINING, "read": 0.2, "decode": 0.02},
        work={"read": 0.5, "decode": 0.05, "cpu": 0.1},
        on_cpu={"forward": 0.04, "backward": 0.06},
    )

    def test_without_reads_a_step_takes_what_all_else_takes(self) -> None:
        verdict = verdict_on(facts(self.slow, threads=2, cores=4))
        assert verdict.limit == "read"
        assert verdict.without_s == pytest.approx(sum(TRAINING.values()))
        assert verdict.claim.details == {"read_s": 0.25, "decode_s": 0.025, "threads": 2}

    def test_but_not_less_than_decoding(self) -> None:
        slow = replace(self.slow, work={"read": 0.5, "decode": 0.3, "cpu": 0.1})
        assert verdict_on(facts(slow, threads=2, cores=4)).without_s == pytest.approx(0.15)

    def test_nor_than_the_cores_need_for_both(self) -> None:
        assert verdict_on(facts(self.slow, threads=2, cores=1)).without_s == pytest.approx(0.2)

    def test_a_prediction_is_never_slower_than_the_step(self) -> None:
        verdict = verdict_on(facts(self.slow, threads=2, cores=1, computing=50))
        assert verdict.without_s == verdict.step_s

    def test_loading_that_keeps_up_by_a_hair_is_balance(self) -> None:
        even = replace(rank(), work={"read": 0.0, "decode": 0.2, "cpu": 0.18})
        assert verdict_on(facts(even, threads=2)).limit == "balanced"


class TestHost:
    def test_a_lock_that_is_never_free_is_named_with_its_holder(self) -> None:
        parts = {**TRAINING, "forward": 0.3}
        waits = RankFacts(parts=parts, on_cpu=TRAINING)
        verdict = verdict_on(facts(waits, late_share=0.93, hog="spin", hog_cores=0.97))
        assert (verdict.limit, verdict.claim.cause) == ("host", "host.lock")
        assert verdict.claim.details["thread"] == "spin"
        assert verdict.claim.details["thread_cores"] == 0.97
        waited = 0.3 - TRAINING["forward"]
        left = sum(TRAINING.values()) - AFTER_LOCK * waited
        assert verdict.without_s == pytest.approx(left)

    def test_a_core_that_was_not_free_is_not_the_lock_s_fault(self) -> None:
        waits = RankFacts(parts={**TRAINING, "forward": 0.3}, on_cpu=TRAINING)
        verdict = verdict_on(facts(waits, late_share=0.93, delay_s=0.265))
        assert verdict.limit == "compute"

    def test_a_batch_that_is_too_small(self) -> None:
        verdict = verdict_on(facts(in_larger=0.4))
        assert (verdict.limit, verdict.claim.cause) == ("host", "host.small_batch")
        assert verdict.without_s == pytest.approx(0.096 - 0.09 * 0.6 - 0.005 * 7 / 8)

    def test_a_batch_that_is_large_enough(self) -> None:
        assert verdict_on(facts(in_larger=0.9)).limit == "compute"


class TestCompute:
    def test_it_says_how_little_it_waited(self) -> None:
        verdict = verdict_on(facts(rank(read=0.002)))
        assert verdict.claim.details["compute_share"] == pytest.approx(0.96 / 0.98)
        assert verdict.claim.details["wait_share"] == pytest.approx(0.02 / 0.98)
        assert verdict.without_s is None

    def test_a_model_that_sleeps_is_named(self) -> None:
        sleeps = RankFacts(parts={**TRAINING, "forward": 0.13}, on_cpu=TRAINING)
        verdict = verdict_on(facts(sleeps))
        assert verdict.limit == "compute"
        assert verdict.claim.cause == "compute.sleep"
        assert verdict.claim.lost_s == pytest.approx(0.1)
        assert verdict.without_s == pytest.approx(sum(TRAINING.values()))

    @pytest.mark.parametrize(
        ("computing", "delay_s", "slept"),
        [(1, None, True), (2, None, False), (2, 0.001, True), (2, 0.05, False)],
    )
    def test_threads_that_want_for_cores_are_not_said_to_sleep(
        self, computing: int, delay_s: float | None, slept: bool
    ) -> None:
        sleeps = RankFacts(parts={**TRAINING, "forward": 0.23}, on_cpu=TRAINING)
        verdict = verdict_on(facts(sleeps, computing=computing, delay_s=delay_s))
        assert verdict.limit == "compute"
        assert (verdict.claim.cause == "compute.sleep") == slept

    def test_on_a_gpu_nobody_is_said_to_sleep(self) -> None:
        verdict = verdict_on(facts(RankFacts(parts={**TRAINING, "forward": 0.13})))
        assert verdict.claim.cause == "compute"


def linked(rate: float, **more: object) -> Facts:
    """Two ranks on two machines that send 100 MB a step at a rate, half of it in the open."""
    ranks = [
        replace(rank(number, exchange=0.5e8 / rate), sent_bytes=1e8, sent_s=1e8 / rate)
        for number in (0, 1)
    ]
    return facts(*ranks, **{"local_world": 1, **more})


class TestExchange:
    def test_a_full_link_is_named_with_its_rate(self) -> None:
        verdict = verdict_on(linked(rate=11.5e6, capacity=11.8e6))
        assert verdict.limit == "network"
        assert verdict.claim.details == pytest.approx(
            {"sent_mb": 100, "rate_mbit": 92, "capacity_mbit": 94.4}
        )
        assert verdict.without_s == pytest.approx(sum(TRAINING.values()))

    def test_moving_the_bytes_takes_the_cpu_its_time_on_any_link(self) -> None:
        verdict = verdict_on(linked(rate=11.5e6, capacity=11.8e6, send_cpu=1e-9))
        assert verdict.without_s == pytest.approx(sum(TRAINING.values()) + 0.1)

    def test_a_link_that_could_do_more_is_not_blamed(self) -> None:
        assert verdict_on(linked(rate=11.5e6, capacity=100e6)).limit == "exchange"

    def test_nor_one_that_nobody_measured(self) -> None:
        assert verdict_on(linked(rate=11.5e6)).limit == "exchange"

    def test_nor_one_that_is_no_link(self) -> None:
        assert verdict_on(linked(rate=11.5e6, capacity=11.8e6, local_world=2)).limit == "exchange"

    def test_an_exchange_behind_the_backward_pass_binds_nobody(self) -> None:
        assert verdict_on(linked(rate=1e10, capacity=1e10)).limit == "compute"


class TestStraggler:
    slow = replace(rank(1, forward=0.10, exchange=0.002), slow_share=1.0)
    waits = rank(0, exchange=0.072)

    def test_it_is_named_with_host_and_part(self) -> None:
        verdict = verdict_on(facts(self.waits, self.slow, local_world=2))
        assert verdict.limit == "straggler"
        details = verdict.claim.details
        assert (details["rank"], details["host"], details["part"]) == (1, "box1", "forward")
        assert (details["part_s"], details["others_part_s"]) == (0.10, 0.03)
        assert verdict.without_s == pytest.approx(0.098, abs=1e-3)

    def test_a_machine_without_a_name_is_called_so(self) -> None:
        verdict = verdict_on(facts(replace(self.waits, host=""), replace(self.slow, host="")))
        told = sentences("straggler", verdict.claim.details)
        assert told["words"] == "one slow rank: rank 1 on its machine"
        assert told["action"].startswith("check its machine for other jobs")

    def test_with_what_its_machine_says(self) -> None:
        slow = replace(self.slow, slowdowns={"throttled_share": 0.31})
        assert verdict_on(facts(self.waits, slow)).claim.details["throttled_share"] == 0.31

    def test_a_rank_that_is_slow_now_and_then_is_none(self) -> None:
        slow = replace(self.slow, slow_share=0.4)
        assert verdict_on(facts(self.waits, slow)).limit != "straggler"

    def test_waiting_for_it_is_no_exchange(self) -> None:
        measured = facts(self.waits, self.slow)
        assert measured.transfer_s == pytest.approx(0.002)

    def test_saving_makes_no_straggler_of_rank_0(self) -> None:
        first = replace(rank(0, checkpoint=0.05, exchange=0.001), slow_share=1.0)
        assert verdict_on(facts(first, rank(1, exchange=0.051))).limit == "checkpoint"


def test_the_runner_up_is_the_next_largest() -> None:
    verdict = verdict_on(facts(rank(read=0.2, evaluation=0.1)))
    assert verdict.limit == "read"
    assert verdict.runner_up is not None and verdict.runner_up.limit == "evaluation"
    assert verdict.runner_up.lost_s == pytest.approx(0.1)


PARTIAL = st.dictionaries(st.sampled_from(PARTS), st.floats(0, 1e6))


@given(PARTIAL, st.floats(0, 1), st.none() | st.floats(0, 1))
def test_no_share_is_over_a_hundred_percent(
    parts: dict[str, float], late: float, fixed: float | None
) -> None:
    measured = Facts((RankFacts(parts=parts),), 10, 32, late_share=late, in_larger=fixed)
    verdict = verdict_of(measured)
    if verdict is None:
        assert sum(parts.values()) == 0
        return
    fields = verdict.fields()
    shown = [float(number) for number in re.findall(r"([\d.]+)%", fields["evidence"])]
    assert all(0 <= number <= 100 for number in shown)
    assert verdict.without_s is None or 0 <= verdict.without_s <= 1.000001 * verdict.step_s
    assert fields["limit"] and fields["words"] and fields["action"]
    assert verdict.lines()[-1].startswith("next: ")


@given(st.dictionaries(st.sampled_from(PARTS), st.floats(1e-3, 1e3), min_size=1))
def test_the_limit_does_not_depend_on_the_unit(parts: dict[str, float]) -> None:
    one = verdict_of(Facts((RankFacts(parts=parts),), 10, 32))
    many = verdict_of(
        Facts((RankFacts(parts={name: 1024 * s for name, s in parts.items()}),), 10, 32)
    )
    assert one is not None and many is not None
    assert one.limit == many.limit


def test_an_event_holds_plain_fields_and_its_sentences() -> None:
    verdict = verdict_on(facts(rank(read=0.2, evaluation=0.1)))
    fields = verdict.fields()
    assert json.loads(json.dumps(fields)) == fields
    old = {"limit", "words", "evidence", "action", "step_s", "without_s", "runner_up"}
    assert fields.keys() == old | {"cause", "lost_s", "details"}
    assert isinstance(fields["evidence"], str) and isinstance(fields["runner_up"], str)


def test_how_busy_a_gpu_is_is_no_fact() -> None:
    names = {*Facts.__dataclass_fields__, *RankFacts.__dataclass_fields__}
    assert not {name for name in names if "busy" in name or "util" in name}
