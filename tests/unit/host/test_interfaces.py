"""Counters of interfaces and NCCL's log: read where they exist, left out where not."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.host.counters import growth
from stoker.host.interfaces import busiest_interface, card_mbit, nccl_transport, sent_bytes

TABLE = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop
    lo: 5000 1 0 0 0 0 0 0 5000 1 0 0 0 0 0 0
  eth0:77 1 0 0 0 0 0 0 123456 1 0 0 0 0 0 0
"""


def test_bytes_sent_by_interface(tmp_path: Path) -> None:
    table = tmp_path / "dev"
    table.write_text(TABLE)
    assert sent_bytes(str(table)) == {"lo": 5000, "eth0": 123456}


@pytest.mark.parametrize("text", [None, "", "nonsense\nnonsense\neth0: x y", "a\nb\nlo: 1 2\n"])
def test_without_counters_there_is_no_number(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "dev").write_text(text)
    assert sent_bytes(str(tmp_path / "dev")) == {}


def test_the_interface_that_sent_most() -> None:
    sent = growth({"lo": 10, "eth0": 5, "gone": 3}, {"lo": 12, "eth0": 905, "new": 10**9})
    assert sent == {"lo": 2, "eth0": 900}
    assert busiest_interface(sent) == ("eth0", 900)
    assert busiest_interface({}) is None
    assert busiest_interface({"eth0": 0}) is None


@pytest.mark.parametrize(
    ("text", "rate"), [("1000\n", 1000), ("-1\n", None), ("", None), ("fast", None)]
)
def test_the_rate_of_a_card(tmp_path: Path, text: str, rate: int | None) -> None:
    (tmp_path / "eth0").mkdir()
    (tmp_path / "eth0" / "speed").write_text(text)
    assert card_mbit("eth0", str(tmp_path)) == rate
    assert card_mbit("eth1", str(tmp_path)) is None


@pytest.mark.parametrize("name", ["", ".", "..", "../eth0", "a/b"])
def test_no_interface_leads_out_of_its_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "speed").write_text("1000")
    assert card_mbit(name, str(tmp_path / "net")) is None


def test_nccl_over_sockets() -> None:
    text = """a:1:2 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>
a:1:2 [0] NCCL INFO Using network Socket
a:1:2 [0] NCCL INFO Channel 00/0 : 1[1] -> 0[0] [receive] via NET/Socket/0
a:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] [send] via NET/Socket/0
"""
    assert nccl_transport(text) == "NET/Socket (2 channels); network Socket; [0]eth0:10.0.0.1<0>"


def test_nccl_over_infiniband_and_between_gpus_of_one_machine() -> None:
    text = """a:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]
a:1:2 [0] NCCL INFO Using network IBext_v8
a:1:2 [0] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via P2P/IPC/read
a:1:2 [0] NCCL INFO Channel 01/0 : 1[1] -> 0[0] via P2P/IPC/read
a:1:2 [0] NCCL INFO Channel 03/0 : 0[0] -> 8[0] [send] via NET/IBext_v8/2/GDRDMA
"""
    transport = nccl_transport(text)
    assert transport.startswith("P2P/IPC (2 channels), NET/IBext_v8 (1 channels); network IBext_v8")
    assert "mlx5_0" in transport
    assert nccl_transport("nothing of the kind") == ""
