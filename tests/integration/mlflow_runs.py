"""Reads the runs of an MLflow server with its own client; run by an interpreter that has it.

Prints each run with the steps and values of its metrics as JSON."""

import json
import sys

from mlflow import MlflowClient

client = MlflowClient(sys.argv[1])
experiments = [experiment.experiment_id for experiment in client.search_experiments()]
runs = []
for run in client.search_runs(experiments):
    histories = {
        key: [[m.step, m.value] for m in client.get_metric_history(run.info.run_id, key)]
        for key in run.data.metrics
    }
    facts = {"status": run.info.status, "tags": run.data.tags, "params": run.data.params}
    runs.append({**facts, "values": histories})
print(json.dumps(runs))
