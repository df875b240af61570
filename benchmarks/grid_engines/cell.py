"""A cell for the engines: `stoker train`, with one compute thread, on which the bits depend.

    python -m grid_engines.cell DATA --recipe FILE --lr X --seed N --run DIR

As with `stoker train`, the same command starts a run, resumes it, or does nothing where it is
finished. The recipe is read when the cell starts.
"""

from __future__ import annotations

import argparse
import sys

from stoker.errors import FINISHED, INTERRUPTED, StokerError
from stoker.recipe.resolve import resolve
from stoker.run.directory import Run
from stoker.survive.stopping import listening
from stoker.text import say_error


def main() -> int:
    flags = argparse.ArgumentParser()
    flags.add_argument("data")
    flags.add_argument("--recipe", required=True)
    flags.add_argument("--lr", type=float, required=True)
    flags.add_argument("--seed", type=int, required=True)
    flags.add_argument("--run", required=True)
    parsed = flags.parse_args()
    if (Run(parsed.run).end() or {}).get("outcome") == "finished":
        return FINISHED
    from stoker.train.attempt.inputs import AttemptOptions
    from stoker.train.attempt.session import train

    with listening() as stop:
        try:
            resolved = resolve(parsed.recipe, {"lr": parsed.lr, "seed": parsed.seed})
            options = AttemptOptions(compute_threads=1)
            outcome = train(parsed.data, resolved, parsed.run, (), stop, (), options)
        except StokerError as error:
            say_error(error.lines)
            return error.exit_code
    return FINISHED if outcome == "finished" else INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
