"""No engine: threads that each run one command after the other. Nothing is recorded or retried."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from subprocess import CalledProcessError

from grid_engines.spec import call, report, spec_from_flags


def main() -> None:
    spec = spec_from_flags()

    def name_of_done(name: str) -> str | None:
        try:
            call(spec.commands[name])
        except CalledProcessError:
            return None
        return name

    with ThreadPoolExecutor(spec.workers) as pool:
        report([name for name in pool.map(name_of_done, spec.commands) if name])


if __name__ == "__main__":
    main()
