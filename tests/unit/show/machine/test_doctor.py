"""The lines of a doctor: figures that can be compared, and problems with what to do."""

from __future__ import annotations

from dataclasses import replace

from golden import check_golden
from networks import link, network
from stoker.measure.environment import Environment, FreeSpace, Gpu
from stoker.measure.facts import Facts, RankFacts
from stoker.measure.findings import Finding
from stoker.measure.trials.forecast import Ceiling, Cost, Forecast, forecast
from stoker.measure.trials.loading import LoadingSpeed, Pass, Setting
from stoker.measure.trials.storage import DiskSpeed, Metadata, Read
from stoker.measure.verdict import verdict_of
from stoker.recipe.recipe import Recipe
from stoker.show.machine import doctor as show
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
GPU = replace(
    FACTS,
    gpus=(Gpu("a GPU", 10**10, (8, 0)),),
    driver="550.1",
    shm=10**9,
    open_files=1024,
    synchronised=False,
    rooms=(FreeSpace("runs", "runs", 10**9, 5000, True),),
    region="",
)
COLD, WARM = Read(10**8, 100, 1.0, 0.0), Read(10**8, 100, 1.0, 1.0)
STORAGE = DiskSpeed("set", COLD, WARM, 2, Metadata(300, 0.1, True))
BARE_STORAGE = DiskSpeed(".", COLD, COLD, 1, None, 70.0)
STAGES = ("synthetic", "decode", "read cold", "read warm", "loader cold", "loader warm")
LOADING = LoadingSpeed(
    Setting(),
    2,
    "jpeg",
    1000,
    10**8,
    10**9,
    1,
    1,
    {name: Pass(100 * n, 10**7, 1.0, 2.0, 0.5) for n, name in enumerate(STAGES, 1)},
)


def computed(amp: str, wall_s: float, *, measured: int = 64, fixed_s: float = 0.0) -> Compute:
    cost, fixed = Cost(wall_s, 2 * wall_s), Cost(fixed_s, fixed_s)
    return Compute(amp, measured, 9, cost, fixed, 0.04, 64)


def test_a_machine_without_a_gpu() -> None:
    text = "\n".join(show.environment(FACTS))
    assert "2 cores of 8" in text
    for absent in ("/dev/shm", "open files", "clock", "driver", "None", "!"):
        assert absent not in text


def test_a_gpu_is_named_with_what_is_known_of_it() -> None:
    text = "\n".join(show.environment(GPU))
    assert "GPU 0                 a GPU, 10.0 GB, tensor cores" in text
    assert "driver 550.1" in text and "CUDA" not in text


def test_a_problem_is_marked_with_what_to_do() -> None:
    assert show.environment(FACTS, [Finding("few files", "ulimit")])[-1] == "  ! few files: ulimit"


def test_storage_is_in_images_where_their_size_is_known() -> None:
    text = "\n".join(show.storage(STORAGE, 50_000.0))
    assert "2,000 images/s  100 MB/s, cold" in text
    assert "100 MB/s, NOT cold" in text
    assert "3,000 a second" in text
    assert "unknown" in text
    bare = "\n".join(show.storage(BARE_STORAGE, None))
    assert "images/s" not in bare and "unknown" not in bare
    assert "70 MB/s" in bare


def test_computing_states_how_it_was_measured() -> None:
    (whole,) = show.compute(computed("off", 0.5))
    assert "128 images/s  500 ms a step of 64 (+-4%), 1.00 " in whole
    assert "any batch size" not in whole and "images/s" in whole.split("step")[0]
    (part,) = show.compute(computed("bf16", 0.5, measured=16, fixed_s=0.1))
    assert part.startswith("  bf16 ")
    assert "100 ms" in part and "16 images" in part


def test_a_faster_precision_is_advised() -> None:
    slow, fast = computed("off", 0.4), computed("bf16", 0.1)
    (line,) = show.precisions(slow, [slow, fast])
    assert "--amp bf16 computes 4.0 times as fast as fp32" in line
    assert show.precisions(fast, [slow, fast]) == []


def test_the_prediction_names_the_limit_and_the_verdict() -> None:
    parts = forecast(64, Cost(1.0, 2.0), Cost(0.5, 1.0), 2)
    spent = RankFacts(parts={"forward": 0.6, "backward": 0.9, "decode": 0.1})
    together = Together(64, 64, 20, Cost(1.6, 3.0), Facts((spent,), 20, 64))
    text = "\n".join(show.together(together, parts, None))
    assert "stoker train                 40 images/s  1,600 ms a step" in text
    assert "the parts allow              43 images/s" in text
    assert parts.binds.words in text
    verdict = verdict_of(together.facts)
    assert verdict is not None
    assert all(f"  {line}" in text for line in verdict.lines())
    assert "first epoch" not in text
    assert "its first epoch              30 images/s" in "\n".join(
        show.together(together, parts, 30.0)
    )


def test_parts_that_were_disturbed_are_marked() -> None:
    parts = forecast(64, Cost(2.0, 4.0), Cost(0.5, 1.0), 2)
    sound = Together(64, 64, 20, Cost(2.5, 5.0), None)
    faster = Together(64, 64, 20, Cost(1.0, 2.0), None)
    assert not any("!" in line for line in show.together(sound, parts, None))
    assert "!" in show.together(faster, parts, None)[-1]


def test_other_programs_are_mentioned_only_where_they_matter() -> None:
    assert show.neighbours(None, 2) == show.neighbours(0.1, 2) == []
    assert "1.5 cores" in show.neighbours(1.5, 2)[0]


def test_lines_golden() -> None:
    """Every finding of a visit; links have a golden text of their own."""
    recipe = Recipe(model="resnet18", compile=True)
    slow, fast = computed("off", 0.4), computed("bf16", 0.1, measured=16, fixed_s=0.05)
    parts = Forecast(64, (Ceiling("host", "the cores", 50.0), Ceiling("data", "loading", 90.0)))
    faster = Together(64, 64, 20, Cost(1.0, 2.0), None)
    findings = [
        ("environment", FACTS, [Finding("few files", "ulimit")]),
        ("environment", GPU, []),
        ("links begin",),
        ("storage begins", "photos-packed"),
        ("storage", STORAGE, 50_000.0),
        ("storage", BARE_STORAGE, None),
        ("loader begins",),
        ("not measured", "a reason"),
        ("loader", LOADING),
        ("loader", replace(LOADING, plain=Pass(160, 10**7, 1.0, 2.0))),
        ("compute begins", recipe, 2, 11_700_000),
        ("compute", slow),
        ("compute", fast),
        ("precisions", slow, [slow, fast]),
        ("together begins",),
        ("together", faster, parts, 30.0),
        ("neighbours", 1.5, 2),
        ("with exchange", network(pairs=(link(940),)), 5.0, 64, 12.8),
    ]
    check_golden("doctor_lines", (line for finding in findings for line in show.lines(*finding)))
