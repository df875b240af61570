"""Requests at the same time: results in order, and an end when the caller leaves."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.stores.in_threads import in_threads


@pytest.fixture
def client() -> Any:
    return SimpleNamespace(stopped=threading.Event())


def test_results_come_in_order_and_the_client_goes_on(client: Any) -> None:
    assert list(in_threads(lambda n: n * n, range(100), 4, client.stopped.set)) == [
        n * n for n in range(100)
    ]
    assert not client.stopped.is_set()


def test_items_are_taken_a_few_ahead(client: Any) -> None:
    taken = 0

    def items() -> Iterator[int]:
        nonlocal taken
        for number in range(1000):
            taken += 1
            yield number

    results = in_threads(lambda n: n, items(), 2, client.stopped.set)
    assert next(results) == 0
    assert taken <= 5
    results.close()


def test_an_error_comes_at_its_turn_and_stops_the_others(client: Any) -> None:
    def call(number: int) -> int:
        if number == 0:
            raise ValueError("the first")
        client.stopped.wait(60)
        return number

    with pytest.raises(ValueError, match="the first"):
        list(in_threads(call, range(4), 4, client.stopped.set))
    assert client.stopped.is_set()


def test_a_caller_that_leaves_stops_what_waits(client: Any) -> None:
    def call(number: int) -> bool:
        return number == 0 or client.stopped.wait(60)

    results = in_threads(call, range(8), 2, client.stopped.set)
    assert next(results)
    results.close()
    assert client.stopped.is_set()
