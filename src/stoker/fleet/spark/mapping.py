"""Opaque tasks on a Spark cluster, and what runs on its workers.

Invariants: a task is a pure function of its argument, so Spark may run it twice, or again after a
worker is lost. A few tasks beyond those that run are sent, however many there are: neither the
tasks nor their bytes need fit into memory together. Results are yielded as they arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from stoker.errors import StokerError
from stoker.fleet.spark.failures import TaskFailure, sentence_of

Task = TypeVar("Task")
Result = TypeVar("Result")

JOBS = 16
"""Jobs at once on a large cluster, each with several tasks; on a small one a job has one task."""
AHEAD = 2
"""Tasks that are sent for each core: one runs, one waits."""
MOST_BYTES = 256 << 20
"""Bytes of data in the tasks that are sent at once."""
JOB_BYTES = 1 << 20
"""A job takes no further task when its tasks hold so many bytes."""
LOOK_S = 30.0
"""Seconds without a result after which the workers are counted."""


@dataclass(frozen=True)
class Sent:
    """The tasks of one job on their way."""

    tasks: Sequence[Any]
    bytes: int


def attempt(function: Callable[[Any], Any], sent: Any, number: int) -> Any:
    """Run one task of a job on a worker; returns its result, or why it failed. `sent` is Spark's
    handle of the tasks."""
    try:
        return function(sent.value[number])
    except (StokerError, OSError) as error:
        return TaskFailure.of(error)


def run_job(context: Any, function: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
    """Run some tasks as one job of a SparkContext; returns their results in order."""
    # A broadcast has no limit of size; it is removed from the workers as soon as the job is done.
    sent = context.broadcast(tasks)
    try:
        numbers = context.parallelize(range(len(tasks)), len(tasks))
        results: list[Any] = numbers.map(partial(attempt, function, sent)).collect()
        return results
    finally:
        sent.destroy()


@dataclass(frozen=True)
class TaskMapping:
    """How tasks are mapped over the workers of a session."""

    context: Any
    """The SparkContext."""
    master: str
    on_silence: Callable[[], None] = lambda: None
    """Called after each LOOK_S seconds without a result."""

    def slots(self) -> int:
        """The cores of all workers that are registered now."""
        return max(int(self.context.defaultParallelism), 1)

    def run(
        self,
        function: Callable[[Task], Result],
        tasks: Iterable[Task],
        size_of: Callable[[Task], int] = lambda task: 0,
    ) -> Generator[tuple[Task, Result]]:
        """Run every task; yields each with its result. Raises what a task raises (an error of
        Stoker or of the operating system), and StokerError where Spark gives up."""
        pending: dict[Future[list[Any]], Sent] = {}
        # Threads that wait: the jobs of one session run at the same time.
        pool = ThreadPoolExecutor(2 * JOBS + AHEAD, thread_name_prefix="stoker-spark")
        try:
            for job in self.jobs(iter(tasks), size_of):
                pending[pool.submit(run_job, self.context, function, job.tasks)] = job
                while self.is_full(pending):
                    yield from self.finished(pending)
            while pending:
                yield from self.finished(pending)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def jobs(self, tasks: Iterator[Task], size_of: Callable[[Task], int]) -> Iterator[Sent]:
        """The tasks, as many a job as the cluster needs to be busy with JOBS of them."""
        for first in tasks:
            job, size, most = [first], size_of(first), max(self.slots() // JOBS, 1)
            while len(job) < most and size < JOB_BYTES:
                following = next(tasks, None)
                if following is None:
                    break
                job.append(following)
                size += size_of(following)
            yield Sent(job, size)

    def is_full(self, pending: dict[Future[list[Any]], Sent]) -> bool:
        tasks = sum(len(job.tasks) for job in pending.values())
        size = sum(job.bytes for job in pending.values())
        return (
            tasks >= AHEAD * self.slots() or size >= MOST_BYTES or len(pending) >= 2 * JOBS + AHEAD
        )

    def finished(self, pending: dict[Future[list[Any]], Sent]) -> Iterator[tuple[Any, Any]]:
        """The tasks and results of the jobs that are done, which are then no longer pending."""
        done: set[Future[list[Any]]] = set()
        while not done:
            done, _ = wait(pending, LOOK_S, FIRST_COMPLETED)
            if not done:
                self.on_silence()
        for future in done:
            job = pending.pop(future)
            for task, result in zip(job.tasks, self.result_of(future), strict=True):
                if isinstance(result, TaskFailure):
                    raise result.error()
                yield task, result

    def result_of(self, future: Future[list[Any]]) -> list[Any]:
        try:
            return future.result()
        except Exception as error:
            # Errors of Java, of the link to it and of Python on a worker have no common type.
            raise StokerError(sentence_of(error, self.master)) from error

    def grouped(
        self,
        function: Callable[[Task], Iterable[tuple[Any, Any]]],
        tasks: Sequence[Task],
        reduce: Callable[[Any, list[Any]], Result],
        groups: int,
    ) -> list[Result]:
        """Each task makes pairs of a key and a value; the values of a key are brought together on
        one worker and reduced there. Returns a result for each key, in any order."""
        pool = ThreadPoolExecutor(1, thread_name_prefix="stoker-spark")
        try:
            whole = pool.submit(run_grouped, self.context, function, tasks, reduce, groups)
            while not wait([whole], LOOK_S).done:
                self.on_silence()
            return self.result_of(whole)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def run_grouped(
    context: Any,
    function: Callable[[Any], Any],
    tasks: Sequence[Any],
    reduce: Callable[[Any, list[Any]], Any],
    groups: int,
) -> list[Any]:
    pairs = context.parallelize(tasks, max(len(tasks), 1)).flatMap(function)
    reduced = pairs.groupByKey(groups).map(partial(reduce_pair, reduce))
    results: list[Any] = reduced.collect()
    return results


def reduce_pair(reduce: Callable[[Any, list[Any]], Any], pair: tuple[Any, Any]) -> Any:
    return reduce(pair[0], list(pair[1]))
