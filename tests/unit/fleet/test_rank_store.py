"""The store through which ranks learn each other's addresses."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from torch.distributed import HashStore

from golden import check_golden
from stoker.errors import Interrupted
from stoker.fleet.launcher import ROUND_KEY
from stoker.fleet.rank_store import SignedRankStore, signed_for_ranks

pytestmark = [pytest.mark.exact, pytest.mark.timeout(300)]
KEY = b"k" * 32


def test_ranks_with_the_key_read_each_other_and_refuse_all_else() -> None:
    inner = HashStore()
    ours, theirs = SignedRankStore(inner, KEY), SignedRankStore(inner, KEY)
    ours.set("0/cpu/0", b"address")
    theirs.set("0/cpu/1", "text")
    assert (theirs.get("0/cpu/0"), ours.get("0/cpu/1")) == (b"address", b"text")
    inner.set("0/cpu/0", inner.get("0/cpu/1"))
    with pytest.raises(Interrupted) as error:
        theirs.get("0/cpu/0")
    check_golden("fleet_rank_store", [str(error.value)])


def test_the_key_leaves_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ROUND_KEY, KEY.hex())
    inner = HashStore()
    assert isinstance(signed_for_ranks(inner), SignedRankStore)
    assert ROUND_KEY not in os.environ
    assert signed_for_ranks(inner) is inner


RANK = """
import sys
from stoker.errors import StokerError
from stoker.train.process_group import Ranks
import torch
try:
    ranks = Ranks.join()
    print(int(ranks.sum(torch.ones(1))))
    ranks.leave()
except StokerError as error:
    sys.exit(error.exit_code)
"""


@pytest.mark.parametrize("keys", [(KEY, KEY), (KEY, b"o" * 32)], ids=["the same", "different"])
def test_gloo_meets_through_it(keys: tuple[bytes, bytes], tmp_path: Path) -> None:
    """A rank without the key is a stranger: the others end with 75 and never talk to it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        running = []
        for rank, key in enumerate(keys):
            variables = {
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "STOKER_ELASTIC": "1",
                ROUND_KEY: key.hex(),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(listener.getsockname()[1]),
                "GLOO_SOCKET_IFNAME": "lo",
                "OMP_NUM_THREADS": "1",
            }
            passed = () if rank else (listener.fileno(),)
            if rank == 0:
                variables["STOKER_DOOR"] = str(listener.fileno())
            command = [sys.executable, "-c", RANK]
            environment = {**os.environ, **variables}
            running.append(
                subprocess.Popen(
                    command, env=environment, pass_fds=passed, stdout=subprocess.PIPE, text=True
                )
            )
    ends = [(rank.communicate(timeout=120)[0].strip(), rank.returncode) for rank in running]
    if keys[0] == keys[1]:
        assert ends == [("2", 0)] * 2
    else:
        assert 75 in {code for _, code in ends}
        assert not any(text for text, _ in ends)
