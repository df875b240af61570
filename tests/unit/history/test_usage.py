"""What a machine did, from a row of probes."""

from __future__ import annotations

from stoker.history.usage import usage_of


def row(**means: float) -> dict[str, object]:
    named = {name.replace("__", "."): value for name, value in means.items()}
    return {"kind": "probes", "step": 7, "count": 2, "time": 99.0, "means": named}


def test_rates_are_a_second() -> None:
    usage = usage_of(row(seconds=5.0, disk__read_bytes=50.0, disk__write_bytes=10.0))
    assert (usage.read_s, usage.write_s) == (10.0, 2.0)


def test_links_are_added_up() -> None:
    means = {
        "seconds": 2.0,
        "network.eth0.rx_bytes": 10.0,
        "network.eth0.tx_bytes": 4.0,
        "network.eth0.1.rx_bytes": 6.0,
        "network.lo.rx_peak_bytes_per_s": 1e9,
    }
    usage = usage_of({**row(), "means": means})
    assert (usage.received_s, usage.sent_s) == (8.0, 2.0)


def test_what_was_not_measured_is_none() -> None:
    usage = usage_of(row())
    assert (usage.cores, usage.busy, usage.read_s, usage.received_s) == (None,) * 4
    assert usage.gpus == {}
    assert (usage.time, usage.step) == (99.0, 7)


def test_no_seconds_no_rates() -> None:
    assert usage_of(row(seconds=0.0, disk__read_bytes=50.0)).read_s is None


def test_gpus_by_their_number() -> None:
    usage = usage_of(row(gpus__0__busy=0.5, gpus__3__power_w=300.0, gpus__x__busy=1.0))
    assert usage.gpus == {0: {"busy": 0.5}, 3: {"power_w": 300.0}}
