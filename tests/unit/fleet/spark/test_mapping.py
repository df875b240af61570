"""How many tasks are on their way at once."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from stoker.fleet.spark.mapping import AHEAD, JOB_BYTES, JOBS, MOST_BYTES, Sent, TaskMapping


class Cores:
    """As much of a SparkContext as counting needs."""

    def __init__(self, count: int) -> None:
        self.defaultParallelism = count


def mapping(cores: int) -> TaskMapping:
    return TaskMapping(Cores(cores), "spark://head:7077")


@pytest.mark.parametrize(("cores", "most"), [(1, 1), (2, 1), (31, 1), (64, 4), (1000, 62)])
def test_a_job_has_one_task_on_a_small_cluster_and_several_on_a_large_one(
    cores: int, most: int
) -> None:
    jobs = list(mapping(cores).jobs(iter(range(200)), lambda task: 0))
    assert [len(job.tasks) for job in jobs][:2] == [most, most]
    assert [task for job in jobs for task in job.tasks] == list(range(200))


def test_tasks_with_data_go_alone() -> None:
    jobs = list(mapping(1000).jobs(iter(range(3)), lambda task: JOB_BYTES))
    assert [len(job.tasks) for job in jobs] == [1, 1, 1]


def pending(jobs: int, tasks: int = 1, size: int = 0) -> dict[Future[list[Any]], Sent]:
    return {Future(): Sent([0] * tasks, size) for _ in range(jobs)}


def test_no_more_is_sent_than_keeps_every_core_busy() -> None:
    assert not mapping(2).is_full(pending(2 * AHEAD - 1))
    assert mapping(2).is_full(pending(2 * AHEAD))
    assert not mapping(1000).is_full(pending(JOBS, 62))
    assert mapping(1000).is_full(pending(2 * JOBS + AHEAD, 1))


def test_no_more_bytes_are_sent_than_fit_into_memory() -> None:
    assert mapping(1000).is_full(pending(2, 1, MOST_BYTES // 2))
    assert not mapping(1000).is_full(pending(1, 1, MOST_BYTES // 2))
