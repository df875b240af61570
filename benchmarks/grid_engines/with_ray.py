"""Ray Tune: a local cluster of this script, a grid search, and `Tuner.restore` after a kill."""

from __future__ import annotations

import os

import ray
from ray import tune

from grid_engines.spec import TRIES, call, report, spec_from_flags


def main() -> None:
    spec = spec_from_flags()
    # Paths of sockets are limited to 107 bytes, so the folder of the session is named elsewhere.
    # "local": a cluster that was killed leaves its address there, and Ray would connect to it.
    cluster = ray.init(
        "local",
        num_cpus=spec.workers,
        include_dashboard=False,
        _temp_dir=os.environ["RAY_TMPDIR"],
    )
    (spec.folder / "address").write_text(cluster.address_info["gcs_address"], encoding="utf-8")
    commands = spec.commands

    def train(config: dict[str, str]) -> dict[str, float]:
        return {"value": call(commands[config["cell"]])}

    experiment = spec.folder / "ray" / "grid"
    if tune.Tuner.can_restore(str(experiment)):
        tuner = tune.Tuner.restore(str(experiment), train, resume_errored=True)
    else:
        tuner = tune.Tuner(
            train,
            param_space={"cell": tune.grid_search(list(commands))},
            run_config=tune.RunConfig(
                name="grid",
                storage_path=str(spec.folder / "ray"),
                failure_config=tune.FailureConfig(max_failures=TRIES),
            ),
        )
    results = [result for result in tuner.fit() if not result.error and result.metrics]
    report([result.config["cell"] for result in results])


if __name__ == "__main__":
    main()
