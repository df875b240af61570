"""The answer to --memory: what fits, of what it consists, on what it rests."""

from __future__ import annotations

from dataclasses import replace

from golden import check_golden
from stoker.doctor.memory import MemoryAnswer, PhaseMemory
from stoker.recipe.recipe import Recipe
from stoker.show.machine.memory import lines
from stoker.train.trials.device_memory import ALLOCATOR, KINDS, LIBRARIES, Peak

RECIPE = Recipe(model="resnet50", image_size=224, batch_size=256, amp="bf16")


def peak(images: int, total_gb: float, image_size: int = 224) -> Peak:
    """A peak with one MB of each kind, the rest in activations."""
    parts = {**dict.fromkeys(KINDS, 10**6), ALLOCATOR: 10**6, LIBRARIES: 10**9}
    parts["activations"] = round(total_gb * 1e9) - sum(parts.values()) + 10**6
    return Peak(images, image_size, parts)


FITS = MemoryAnswer(
    recipe=RECIPE,
    classes=1000,
    world=1,
    memory_gb=16,
    phases=[PhaseMemory(224, 256, peak(256, 13.4))],
    training=peak(256, 13.4),
    evaluation=peak(250, 2.9),
    micro_batch=0,
    eval_batch_size=0,
)
PHASES = replace(
    FITS,
    recipe=replace(RECIPE, compile=True),
    world=8,
    phases=[PhaseMemory(160, 4096, peak(512, 101.6, 160)), PhaseMemory(224, 2048, peak(256, 99))],
    training=peak(128, 15.5),
    micro_batch=128,
)
SMALL = {"memory_gb": 1.5, "training": peak(2, 1.7), "micro_batch": None, "eval_batch_size": None}
CASES = {
    "fits": FITS,
    "fits, evaluation needs more": replace(FITS, evaluation=peak(1000, 15.9)),
    "phases, ranks, compiled, close to the limit": PHASES,
    "evaluation must be smaller": replace(FITS, evaluation=peak(1000, 17), eval_batch_size=500),
    "nothing fits": replace(FITS, **SMALL),
    "not even the weights fit": replace(FITS, **{**SMALL, "memory_gb": 0.5}),
}


def test_lines_golden() -> None:
    check_golden(
        "doctor_memory",
        [line for name, answer in CASES.items() for line in (f"# {name}", *lines(answer))],
    )


def test_the_first_words_are_the_answer() -> None:
    first = {name: lines(answer)[1].split(":")[0].strip() for name, answer in CASES.items()}
    assert first["fits"] == "fits"
    assert first["phases, ranks, compiled, close to the limit"] == "does not fit in one pass"
    assert first["nothing fits"] == "does not fit"
