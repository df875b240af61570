"""MLflow: one MLflow run for each run, found again by its tag `stoker.run`.

MLflow cannot take values back. So it gets a step when a checkpoint covers it. Where a run goes back
further, its MLflow run is marked as replaced, and the curve is written to a new one.

Invariant: what MLflow has is read back from it, metric by metric, so nothing is written twice.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

for _name, _value in {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "GIT_PYTHON_REFRESH": "quiet",
}.items():  # read when the package is imported; what the user has set counts
    os.environ.setdefault(_name, _value)

from mlflow import MlflowClient  # noqa: E402
from mlflow.entities import Metric, Param, RunTag  # noqa: E402

from stoker.history.metrics import EVAL, TRAIN, MetricPoint  # noqa: E402
from stoker.track.curve import CurvePosition  # noqa: E402
from stoker.track.sink import (  # noqa: E402
    FAILED,
    FINISHED,
    STOPPED,
    Refusal,
    SinkOptions,
    plain_key,
    plain_value,
)

RUN, ATTEMPT, REPLACED = "stoker.run", "stoker.attempt", "stoker.replaced"
MOST_METRICS, MOST_PARAMS = 1000, 100
"""In one call."""
LONGEST_VALUE = 500
STATUS = {FINISHED: "FINISHED", FAILED: "FAILED", STOPPED: "KILLED"}
LAST = {TRAIN: "train/epoch", EVAL: "eval/top1"}
"""A metric that every point of a stream has. It is written last: where it is, the others are."""


class MlflowRun:
    """The sink `mlflow`."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._client = MlflowClient(tracking_uri=options.uri or None)
        self._id, self._attempt = "", 0
        self._last: dict[str, int] = {}

    def open(self) -> CurvePosition:
        experiment = self._experiment()
        filter_text = f"tags.`{RUN}` = '{plain_key(self._options.run_id)}'"
        runs = self._client.search_runs([experiment], filter_text)
        runs = [run for run in runs if REPLACED not in run.data.tags]
        if not runs:
            return self._begin(experiment, 0)
        run = max(runs, key=lambda run: run.info.start_time)
        self._id = run.info.run_id
        self._client.update_run(self._id, status="RUNNING")
        number = run.data.tags.get(ATTEMPT, "0")
        self._attempt = int(number) if number.isdecimal() else 0
        self._last = {key: self._last_step(run, key) for key in run.data.metrics}
        return CurvePosition(self._attempt, steps_of(self._last))

    def _experiment(self) -> str:
        name = plain_value(self._options.project, 200)
        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            return str(self._client.create_experiment(name))
        if experiment.lifecycle_stage != "active":
            raise Refusal(f"the experiment '{name}' is deleted: name another --project")
        return str(experiment.experiment_id)

    def _begin(self, experiment: str, attempt: int) -> CurvePosition:
        tags = {plain_key(k): plain_value(v, LONGEST_VALUE) for k, v in self._options.tags.items()}
        tags |= {RUN: plain_key(self._options.run_id), ATTEMPT: str(attempt)}
        name = plain_value(self._options.name, 200)
        self._id = self._client.create_run(experiment, tags=tags, run_name=name).info.run_id
        self._attempt, self._last = attempt, {}
        params = [
            Param(plain_key(key), plain_value(value, LONGEST_VALUE))
            for key, value in self._options.parameters.items()
        ]
        for begin in range(0, len(params), MOST_PARAMS):
            self._client.log_batch(self._id, params=params[begin : begin + MOST_PARAMS])
        return CurvePosition(attempt)

    def _last_step(self, run: Any, key: str) -> int:
        """The last step of a metric that MLflow has."""
        latest = {metric.key: metric.step for metric in getattr(run.data, "_metric_objs", ())}
        if key in latest:
            return int(latest[key])
        history = self._client.get_metric_history(self._id, key)
        return max((int(metric.step) for metric in history), default=-1)

    def write(self, points: Sequence[MetricPoint], position: CurvePosition) -> None:
        if position.attempt != self._attempt:
            self._client.set_tag(self._id, ATTEMPT, str(position.attempt))
            self._attempt = position.attempt
        metrics = [metric for point in points for metric in self._metrics_of(point)]
        for begin in range(0, len(metrics), MOST_METRICS):
            self._client.log_batch(self._id, metrics=metrics[begin : begin + MOST_METRICS])

    def _metrics_of(self, point: MetricPoint) -> list[Any]:
        last = LAST.get(point.stream)
        metrics = []
        for name, value in sorted(point.values.items(), key=lambda item: item[0] == last):
            if point.step > self._last.get(name, -1):
                self._last[name] = point.step
                at = round(point.time * 1000)
                metrics.append(Metric(name, bounded(value), at, point.step))
        return metrics

    def back(self, step: int, attempt: int) -> CurvePosition:
        run = self._client.get_run(self._id)
        self._client.log_batch(self._id, tags=[RunTag(REPLACED, "a later attempt went back")])
        self._client.set_terminated(self._id, "KILLED")
        return self._begin(run.info.experiment_id, attempt)

    def close(self, outcome: str) -> None:
        if self._id and outcome in STATUS:
            self._client.set_terminated(self._id, STATUS[outcome])


SINK = MlflowRun


def bounded(value: float) -> float:
    """A value that every store of MLflow takes."""
    return math.copysign(1.7976931348623157e308, value) if math.isinf(value) else value


def steps_of(last: dict[str, int]) -> dict[str, int]:
    """The last step of each stream, from the last steps of its metrics."""
    steps: dict[str, int] = {}
    for key, step in last.items():
        place = key.split("/")[0]
        stream = place if place == EVAL or place.startswith("machine") else TRAIN
        if key == LAST.get(stream, key):
            steps[stream] = max(step, steps.get(stream, -1))
    return steps
