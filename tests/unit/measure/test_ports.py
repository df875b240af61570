"""Bytes, seconds and ports of exchanging gradients: what must hold for any numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.measure.ports import (
    PORTS_MBIT,
    allreduce_s,
    exposed_s,
    exposed_share,
    images_ceiling,
    port_for,
    port_mbit,
    rate_mbit,
    ring_bytes,
)

sizes = st.floats(1, 1e12)
seconds = st.floats(1e-6, 1e6)
worlds = st.integers(2, 4096)
rates = st.floats(0.1, 1e6)


@given(sizes, worlds)
def test_each_rank_sends_between_one_and_two_gradients(size: float, world: int) -> None:
    assert size <= ring_bytes(size, world) * (1 + 1e-12)
    assert ring_bytes(size, world) < 2 * size
    assert ring_bytes(size, world) <= ring_bytes(size, world + 1)


def test_two_ranks_send_the_gradient_once_and_one_sends_nothing() -> None:
    assert ring_bytes(45e6, 2) == 45e6
    assert ring_bytes(45e6, 1) == 0
    assert allreduce_s(45e6, 1, 100) == 0


@given(sizes, worlds, rates)
def test_seconds_and_rate_are_each_others_inverse(size: float, world: int, rate: float) -> None:
    took_s = allreduce_s(size, world, rate)
    if took_s > 1e-6:
        assert rate_mbit(size, world, took_s) == pytest.approx(rate)


def test_the_gradient_of_a_small_model_on_a_slow_port() -> None:
    assert allreduce_s(46.8e6, 2, 94) == pytest.approx(3.98, abs=0.01)


@pytest.mark.parametrize("port", PORTS_MBIT)
def test_a_port_is_known_by_what_headers_leave_of_it(port: int) -> None:
    assert port_mbit(0.94 * port) == port
    assert port_mbit(port) == port


@given(rates, st.floats(0, 2), st.floats(0, 4))
def test_a_port_is_named_only_where_it_caps(rate: float, spread: float, busy: float) -> None:
    port = port_mbit(rate, spread, busy)
    if port is not None:
        assert 0.70 * port <= rate <= 1.02 * port
        assert port_mbit(rate) == port
        assert rate >= 0.85 * port or spread <= 0.03
    if spread > 0.15 or busy > 0.7:
        assert port is None


@pytest.mark.parametrize("rate", [3, 30, 300, 1_300, 200_000])
def test_rates_between_ports_name_none(rate: float) -> None:
    assert port_mbit(rate) is None


@given(rates)
def test_a_port_for_a_rate_carries_it_and_the_next_smaller_does_not(rate: float) -> None:
    port = port_for(rate)
    if port is None:
        assert rate > 0.9 * PORTS_MBIT[-1]
    else:
        assert rate <= 0.9 * port
        assert all(rate > 0.9 * other for other in PORTS_MBIT if other < port)


@given(seconds, seconds)
def test_what_stays_in_the_open(exchange: float, compute: float) -> None:
    exposed = exposed_s(exchange, compute)
    assert 0 <= exposed < exchange
    assert exposed_s(exchange * 2, compute) >= exposed >= exposed_s(exchange, compute * 2)
    share = exposed_share(exchange, compute)
    assert 0 <= share < 1
    assert share * (compute + exposed) == pytest.approx(exposed)


@given(st.integers(1, 10**6), seconds)
def test_a_batch_needs_one_exchange(batch: int, exchange: float) -> None:
    assert images_ceiling(batch, exchange) * exchange == pytest.approx(batch)
    assert images_ceiling(batch, 0) == float("inf")


def test_what_a_processor_explains_as_well_is_no_port() -> None:
    assert port_mbit(3_700, spread=0.10) is None
    assert port_mbit(3_700, spread=0.01) == 5_000
    assert port_mbit(4_700, spread=0.10) == 5_000
