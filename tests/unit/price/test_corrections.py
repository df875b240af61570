"""GPU names, counts and memories that a catalogue gets wrong."""

from __future__ import annotations

import pytest

from stoker.price.corrections import MachineFacts, corrected, gpu_name, is_gpu, with_linear_memory
from stoker.price.table import packaged_offers


def facts(**changes: object) -> MachineFacts:
    values = {
        "provider": "aws",
        "machine": "m",
        "gpu": "T4",
        "gpus": 1.0,
        "gpu_memory_gib": 16.0,
        "vcpus": 4.0,
        "memory_gib": 16.0,
    }
    return MachineFacts(**{**values, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("provider", "machine", "spelling", "name"),
    [
        ("aws", "p4d.24xlarge", "A100", "A100-40GB"),
        ("runpod", "1x_A100-80GB-SXM_SECURE", "A100-80GB-SXM", "A100-80GB"),
        ("aws", "p5.48xlarge", "H100", "H100"),
        ("runpod", "1x_H100_SECURE", "H100", "H100-PCIe"),
        ("runpod", "1x_H100-SXM_SECURE", "H100-SXM", "H100"),
        ("gcp", "a3-megagpu-8g", "H100-MEGA", "H100"),
        ("azure", "Standard_NC40ads_H100_v5", "H100", "H100-NVL"),
        ("nebius", "gpu-rtx6000_1gpu-24vcpu-218gb", "RTX6000", "RTXPRO6000"),
        ("lambda", "gpu_1x_rtx6000", "RTX6000", "RTX6000"),
        ("aws", "g7e.2xlarge", "RTX PRO Server 6000", "RTXPRO6000"),
        ("paperspace", "A4000", "A4000", "RTXA4000"),
        ("aws", "p5en.48xlarge", "NVIDIA", "H200"),
        ("aws", "p5e.48xlarge", "H100", "H200"),
        ("nowhere", "m", "Future1", "Future1"),
    ],
)
def test_a_gpu_has_one_name(provider: str, machine: str, spelling: str, name: str) -> None:
    assert gpu_name(spelling, provider, machine) == name


def test_names_of_the_package_are_final() -> None:
    """A name that stood for another GPU somewhere would be renamed twice."""
    for offer in packaged_offers():
        name = corrected(facts(gpu=offer.gpu)).gpu
        assert name == offer.gpu


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("A100", {"A100-40GB", "A100-80GB"}),
        ("a100-80gb", {"A100-80GB"}),
        ("RTX PRO 6000", {"RTXPRO6000", "RTXPRO6000-MIG-24GB", "RTXPRO6000-MIG-48GB"}),
        ("A10", {"A10"}),
        ("A6000", {"RTXA6000"}),
        ("L4", {"L4", "L4-3GB", "L4-6GB", "L4-11GB"}),
    ],
)
def test_what_a_user_types_means_gpus(text: str, names: set[str]) -> None:
    assert {offer.gpu for offer in packaged_offers() if is_gpu(offer.gpu, text)} == names


def test_azures_eight_gpus_are_not_twelve() -> None:
    wrong = facts(provider="azure", machine="Standard_ND96isr_H100_v5", gpu="H100", gpus=12.0)
    assert corrected(wrong).gpus == 8
    assert "12 -> 8" in corrected(wrong).correction
    offers = [o for o in packaged_offers() if o.machine == "Standard_ND96isr_H100_v5"]
    assert [offer.gpus for offer in offers] == [8]


def test_a_missing_memory_is_filled_in_and_a_known_one_stays() -> None:
    assert corrected(facts(gpu="A100", gpu_memory_gib=None)).gpu_memory_gib == 40
    assert corrected(facts(gpu="K80", gpu_memory_gib=None)).gpu_memory_gib == 12
    assert corrected(facts(gpu="L4", gpu_memory_gib=24.0)).gpu_memory_gib == 24
    assert corrected(facts(gpu="Future1", gpu_memory_gib=None)).gpu_memory_gib is None


def test_a_part_of_a_gpu_is_a_gpu_of_its_own() -> None:
    part = corrected(facts(machine="g6f.large", gpu="L4", gpus=0.125, gpu_memory_gib=3.0))
    assert (part.gpu, part.gpus) == ("L4-3GB", 1)
    assert part.correction


def test_memory_that_was_multiplied_twice() -> None:
    machines = [facts(provider="runpod", gpus=float(n), memory_gib=31.0 * n * n) for n in (1, 2, 8)]
    fixed = with_linear_memory(machines)
    assert [each.memory_gib for each in fixed] == [31, 62, 248]
    assert [bool(each.correction) for each in fixed] == [False, True, True]
    linear = [facts(provider="runpod", gpus=float(n), memory_gib=31.0 * n) for n in (1, 2, 8)]
    assert with_linear_memory(linear) == linear
    others = [facts(gpus=float(n), memory_gib=31.0 * n * n) for n in (1, 2)]
    assert with_linear_memory(others) == others


def test_no_machine_of_the_package_is_nonsense() -> None:
    for offer in packaged_offers():
        assert 1 <= offer.gpus <= 16
        assert offer.gpu_memory_gib and 3 <= offer.gpu_memory_gib <= 288
        assert 1 <= offer.vcpus <= 256
        assert 2 <= offer.memory_gib / offer.gpus <= 1000
        assert 0.01 < offer.cheapest / offer.gpus < 30
        assert offer.spot is None or offer.on_demand is None or offer.spot <= offer.on_demand
