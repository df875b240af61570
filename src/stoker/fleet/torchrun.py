"""Several ranks on this machine, by torchrun.

Invariants: the ranks run the same command as the user typed. A signal to the launcher reaches each
rank once: torchrun lives in a session of its own, so that a terminal's Ctrl-C does not come twice.
If the launcher or torchrun dies, the ranks are told to stop; nothing is left behind.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

from stoker.fleet.local import end_with_parent, usable_cores

LAUNCHED = "STOKER_LAUNCHED"
"""Set for ranks that a launcher of ours has started: it speaks for them."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
SHUTDOWN_S = 120


def is_launched() -> bool:
    return LAUNCHED in os.environ


def command(ranks: int, arguments: Sequence[str]) -> list[str]:
    """The torchrun command for `stoker ARGUMENTS` on some ranks of this machine."""
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", str(ranks)),
        *("--signals-to-handle", ",".join(number.name for number in SIGNALS)),
        *("--shutdown-timeout", str(SHUTDOWN_S)),
        # After "--" torchrun takes no word for an option of its own.
        *("-m", "--", "stoker", *arguments),
    ]


def launch(
    ranks: int, arguments: Sequence[str], log: Path, extra: Mapping[str, str] | None = None
) -> int:
    """Run `stoker ARGUMENTS` on some ranks; torchrun's exit code when all are gone.

    What torchrun and the ranks say on standard error goes to the log."""
    environment = {
        **os.environ,
        **(extra or {}),
        LAUNCHED: "1",
        "OMP_NUM_THREADS": str(max(1, usable_cores() // ranks)),
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
    }
    with log.open("a", encoding="utf-8") as errors:
        child = subprocess.Popen(
            command(ranks, arguments),
            env=environment,
            stderr=errors,
            start_new_session=True,
            preexec_fn=end_with_parent,
        )

    def pass_on(number: int, frame: FrameType | None) -> None:
        child.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in SIGNALS}
    try:
        return child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
