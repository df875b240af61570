"""Several GPUs keep less than one each, and never more."""

from __future__ import annotations

from stoker.plan.gpu.scaling import contradicts, efficiency


def test_one_gpu_keeps_all() -> None:
    assert efficiency(1, "fp16") == (1.0, 1.0, 1.0)


def test_sixteen_bits_keep_less_than_thirty_two() -> None:
    for gpus in (2, 8, 64):
        narrow, wide = efficiency(gpus, "bf16"), efficiency(gpus, "tf32")
        assert 0.7 < narrow[0] < narrow[1] < narrow[2] <= 1
        assert 0.9 < wide[0] < wide[1] < wide[2] <= 1
        assert narrow[1] < wide[1]


def test_eight_gpus_that_are_eighteen_times_faster_contradict() -> None:
    assert contradicts(8, 89.0, 1565.0)
    assert contradicts(8, 36.0, 641.0)
    assert not contradicts(8, 2470.0, 16621.0)
    assert not contradicts(4, 335.0, 1340.0)
