"""The lines of a doctor: figures that compare, and only what is odd is marked."""

from __future__ import annotations

from stoker.measure.environment import Environment, Gpu
from stoker.measure.facts import Facts, RankFacts
from stoker.measure.findings import Finding
from stoker.measure.trials.forecast import Cost, forecast
from stoker.measure.trials.storage import DiskSpeed, Metadata, Read
from stoker.show import doctor as show
from stoker.train.trials.compute import Compute, Together

FACTS = Environment(
    versions={"stoker": "1", "torch": "2"},
    processor="a processor",
    cores=2,
    machine_cores=8,
    avx2=True,
    memory=8 * 10**9,
    region="not installed",
)


def computed(amp: str, wall_s: float, *, measured: int = 64, fixed_s: float = 0.0) -> Compute:
    cost, fixed = Cost(wall_s, 2 * wall_s), Cost(fixed_s, fixed_s)
    return Compute(amp, measured, 9, cost, fixed, 0.04, 64)


def test_a_machine_without_a_gpu_says_so() -> None:
    text = "\n".join(show.environment(FACTS))
    assert "stoker 1, torch 2" in text
    assert "2 cores of 8" in text
    assert "GPU                   none" in text
    for absent in ("/dev/shm", "open files", "clock", "driver", "None"):
        assert absent not in text


def test_a_gpu_is_named_with_what_it_has() -> None:
    facts = Environment(
        **{**vars(FACTS), "gpus": (Gpu("a GPU", 10**10, (8, 0)),), "driver": "550.1"}
    )
    text = "\n".join(show.environment(facts))
    assert "GPU 0                 a GPU, 10.0 GB, tensor cores" in text
    assert "driver 550.1" in text and "CUDA" not in text


def test_what_is_odd_is_marked_with_what_to_do() -> None:
    assert show.odd(Finding("few files", "ulimit")) == "  ! few files: ulimit"


def test_storage_is_in_images_where_images_are_known() -> None:
    cold, warm = Read(10**8, 100, 1.0, 0.0), Read(10**8, 100, 1.0, 1.0)
    found = DiskSpeed("set", cold, warm, 2, Metadata(300, 0.1, True))
    text = "\n".join(show.storage(found, 50_000.0))
    assert "2,000 images/s  100 MB/s, cold (1 thread)" in text
    assert "100 MB/s, NOT cold (64 kB blocks, 2 threads)" in text
    assert "could not be dropped" in text
    assert "3,000 a second made, looked up, removed" in text
    bare = "\n".join(show.storage(DiskSpeed(".", cold, cold, 1, None, 70.0), None))
    assert "images/s" not in bare and "could not" not in bare
    assert "70 MB/s, onto the disk" in bare


def test_computing_says_how_it_was_measured() -> None:
    whole = show.compute(computed("off", 0.5))
    assert "128 images/s  500 ms a step of 64 (+-4%), 1.00 s of the cores" in whole
    assert "whatever the batch" not in whole and "arithmetic" not in whole
    part = show.compute(computed("bf16", 0.5, measured=16, fixed_s=0.1))
    assert part.startswith("  bf16 ")
    assert "100 ms whatever the batch; measured with 16 images at once" in part


def test_a_precision_is_advised_where_it_pays() -> None:
    rows = [computed("off", 0.4), computed("bf16", 0.1)]
    assert "--amp bf16 computes 4.0 times as fast as fp32" in show.advice(rows, "off")[0]
    assert show.advice(rows, "bf16") == []


def test_the_prediction_names_the_limit_and_the_next() -> None:
    parts = forecast(64, Cost(1.0, 2.0), Cost(0.5, 1.0), 2)
    spent = RankFacts(parts={"forward": 0.6, "backward": 0.9, "decode": 0.1})
    together = Together(64, 64, 20, Cost(1.6, 3.0), Facts((spent,), 20, 64))
    text = "\n".join(show.prediction(together, parts, None))
    assert "stoker train                 40 images/s  1,600 ms a step" in text
    assert "the parts allow              43 images/s" in text
    assert "67% of their time, loading 33%" in text
    assert "  bound by compute: " in text and "94% of the time" in text
    assert "first epoch" not in text
    assert "its first epoch              30 images/s" in "\n".join(
        show.prediction(together, parts, 30.0)
    )


def test_parts_that_were_disturbed_are_not_believed() -> None:
    parts = forecast(64, Cost(2.0, 4.0), Cost(0.5, 1.0), 2)
    sound = Together(64, 64, 20, Cost(2.5, 5.0), None)
    faster = Together(64, 64, 20, Cost(1.0, 2.0), None)
    assert not any("disturbed" in line for line in show.prediction(sound, parts, None))
    assert "something disturbed that part" in show.prediction(faster, parts, None)[-1]


def test_neighbours_are_only_mentioned_where_they_matter() -> None:
    assert show.neighbours(None, 2) == show.neighbours(0.1, 2) == []
    assert "used 1.5 cores meanwhile" in show.neighbours(1.5, 2)[0]
