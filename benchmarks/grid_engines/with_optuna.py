"""Optuna: a study in SQLite, threads of one process, and heartbeats, by which trials of a process
that was killed are queued again. A trial that failed is queued again when the script is started
again: the heartbeat's callback is not called for it.
"""

from __future__ import annotations

from subprocess import CalledProcessError

import optuna
from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback
from optuna.trial import Trial, TrialState

from grid_engines.spec import TRIES, call, report, spec_from_flags

HEARTBEAT_S, GRACE_S = 1, 3
"""Far shorter than the documented 60 and 120 s, so that a short grid meets them."""


def main() -> None:
    spec = spec_from_flags()
    storage = RDBStorage(
        f"sqlite:///{spec.folder}/optuna.db",
        heartbeat_interval=HEARTBEAT_S,
        grace_period=GRACE_S,
        heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(max_retry=TRIES),
    )
    space = {"cell": list(spec.commands)}
    sampler = optuna.samplers.GridSampler(space, seed=0)
    study = optuna.create_study(
        study_name="grid", storage=storage, sampler=sampler, load_if_exists=True
    )
    done = {trial.params["cell"] for trial in study.get_trials(states=(TrialState.COMPLETE,))}
    failed = [trial.params for trial in study.get_trials(states=(TrialState.FAIL,))]
    again = {params["cell"] for params in failed if params} - done
    for name in sorted(again):
        study.enqueue_trial({"cell": name})

    def objective(trial: Trial) -> float:
        return call(spec.commands[trial.suggest_categorical("cell", space["cell"])])

    if again or not sampler.is_exhausted(study):
        study.optimize(objective, n_jobs=spec.workers, catch=(CalledProcessError,))
    trials = study.get_trials(states=(TrialState.COMPLETE,))
    report([trial.params["cell"] for trial in trials])


if __name__ == "__main__":
    main()
