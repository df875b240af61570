"""A run on machines of the price table: what fits, what it costs, which ones are worth a look."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from golden import check_golden
from stoker.errors import BadRequest
from stoker.plan.choice import affordable, best_of, cost
from stoker.plan.estimate import START_S
from stoker.plan.gpu.operations import count_operations
from stoker.plan.machines import (
    MEMORY,
    NO_BF16,
    MachinePlan,
    PlannedRun,
    RentalTerms,
    plan_machines,
)
from stoker.plan.probe import LoadingProbe, read_probe
from stoker.plan.ranges import FigureRange
from stoker.plan.rental import RentalRequest, check_request, offers_in_zone, offers_under
from stoker.plan.workload import workload_of
from stoker.price.offer import Offer
from stoker.recipe.recipe import Recipe
from stoker.show.plan.machines import closing_lines, launch_line, machine_lines, work_lines

TERMS = RentalTerms(
    hours_between=4.0, start_s=START_S, save_s=FigureRange(0.1, 0.2, 0.5), begins=date(2026, 8, 22)
)


def offer(gpu: str = "A100-40GB", gpus: int = 1, **values: object) -> Offer:
    base = Offer(
        provider="aws",
        machine=f"{gpus}x{gpu}",
        gpu=gpu,
        gpus=gpus,
        gpu_memory_gib=None,
        vcpus=12.0 * gpus,
        memory_gib=64.0,
        on_demand=3.0 * gpus,
        spot=1.0 * gpus,
        spot_median=1.2,
        region="us-east-1",
        zone="use1-az1",
        source="a table",
        date="2026-08-22",
    )
    return replace(base, **values)  # type: ignore[arg-type]


def planned(recipe: Recipe, per_core: float = 1000.0, precision: str = "fp16") -> PlannedRun:
    work = workload_of(recipe, 50_000, 5_000, 10, parameters=11_000_000)
    sizes = {stage.image_size for stage in work.stages}
    return PlannedRun(
        work=work,
        counts={size: count_operations(recipe.model, size, 10) for size in sizes},
        precision=precision,
        channels_last=True,
        micro_batch=recipe.micro_batch,
        probe=LoadingProbe(dict.fromkeys(sizes, per_core), "measured here"),
    )


@pytest.fixture(scope="module")
def run() -> PlannedRun:
    return planned(Recipe(model="resnet9_w16", image_size=64, batch_size=256, epochs=10))


def one(run: PlannedRun, machine: Offer, terms: RentalTerms = TERMS) -> MachinePlan:
    (plan,), unknown = plan_machines(run, [machine], terms)
    assert not unknown
    return plan


def test_more_gpus_are_faster_and_interruptions_cost(run: PlannedRun) -> None:
    single, several = one(run, offer()), one(run, offer(gpus=8))
    assert single.estimate and several.estimate and single.hours and single.spot_hours
    assert several.estimate.images_per_s.middle > 3 * single.estimate.images_per_s.middle
    assert single.spot_hours.middle >= single.hours.middle
    rare = one(run, offer(), replace(TERMS, hours_between=1000.0))
    assert rare.spot_hours and rare.spot_hours.middle < single.spot_hours.middle
    assert single.on_demand and single.on_demand.middle == pytest.approx(3 * single.hours.middle)


def test_slow_cores_bind(run: PlannedRun) -> None:
    slow = replace(run, probe=LoadingProbe({64: 1.0}, "measured here"))
    plan = one(slow, offer())
    assert plan.estimate
    assert plan.estimate.binds == "data"
    assert plan.estimate.images_per_s.middle == pytest.approx(11)


def test_a_batch_that_does_not_fit_is_cut_and_what_cannot_run_is_named() -> None:
    large = planned(Recipe(model="resnet9_w64", image_size=224, batch_size=1024, epochs=2))
    plan = one(large, offer("T4"))
    assert 2 <= plan.micro_batch < 1024
    assert plan.estimate
    huge = planned(Recipe(model="resnet9_w64", image_size=4096, batch_size=16, epochs=2))
    assert one(huge, offer("T4")).problem == MEMORY
    assert one(replace(large, precision="bf16"), offer("T4")).problem == NO_BF16


def test_a_gpu_without_a_basis_is_left_out(run: PlannedRun) -> None:
    plans, unknown = plan_machines(run, [offer("K80"), offer("no such GPU"), offer()], TERMS)
    assert [each.gpu for each in unknown] == ["K80", "no such GPU"]
    assert len(plans) == 1


def test_deadlines_and_budgets_count_at_the_high_end(run: PlannedRun) -> None:
    plans, _ = plan_machines(run, [offer(), offer(gpus=8), offer("T4")], TERMS)
    assert affordable(plans, math.inf, math.inf, spot=False) == plans
    quickest = min(plans, key=lambda plan: cost(plan, spot=False))
    assert quickest.hours
    assert quickest in affordable(plans, quickest.hours.high, math.inf, spot=False)
    with pytest.raises(BadRequest, match="the fastest is aws"):
        affordable(plans, quickest.hours.low / 10, math.inf, spot=False)
    with pytest.raises(BadRequest, match="on demand"):
        affordable([one(run, offer(on_demand=None))], math.inf, math.inf, spot=False)


def test_the_frontier_is_kept_and_marked(run: PlannedRun) -> None:
    machines = [offer(machine=f"m{n}", on_demand=1.0 + n) for n in range(20)]
    plans, _ = plan_machines(run, machines, TERMS)
    rows, best = best_of(plans, 5, spot=False)
    assert [row.offer.machine for row in rows] == ["m0", "m1", "m2", "m3", "m4"]
    assert best == {0}
    assert len(best_of(plans, 0, spot=False)[0]) == 20


def test_contradictions_are_refused() -> None:
    check_request(RentalRequest("a", "a", 100.0), int(50e9), int(1e9))
    with pytest.raises(BadRequest, match="cannot mount a volume in us-west-2a"):
        check_request(RentalRequest("us-east-1a", "us-west-2a"), 0, 0)
    with pytest.raises(BadRequest, match="--disk 60"):
        check_request(RentalRequest(disk_gb=20.0), int(50e9), int(1e9))
    assert [each.spot for each in offers_under(1.0, [offer(), offer(spot=2.0)])] == [1.0]
    with pytest.raises(BadRequest, match=r"under the lowest spot price, \$1 "):
        offers_under(0.5, [offer(), offer(spot=2.0)])
    with pytest.raises(BadRequest, match="none of these machines has one"):
        offers_under(0.5, [offer(spot=None)])


def test_prices_of_a_region_and_of_no_zone() -> None:
    day = date(2025, 3, 3)
    assert {each.region for each in offers_in_zone("us-east-1", day)} == {"us-east-1"}
    with pytest.raises(BadRequest, match="no spot price of the zone 'moon-1'"):
        offers_in_zone("moon-1", day)


def test_a_file_of_doctor_says_how_fast_a_core_loads(tmp_path: Path) -> None:
    file = tmp_path / "doctor.json"
    stages = {"loader warm": {"images_per_cpu_s": 400.0}}
    file.write_text(json.dumps({"loader": {"image_size": 128, "stages": stages}}))
    assert read_probe(file, [64, 128, 256]).images_per_core_s == {64: 400, 128: 400, 256: 100}
    for text in ("{}", "[]", "no", '{"loader": {"image_size": 128, "stages": {}}}', "[" * 100_000):
        file.write_text(text)
        with pytest.raises(BadRequest, match=r"doctor\.json"):
            read_probe(file, [64])
    with pytest.raises(BadRequest, match="cannot read"):
        read_probe(tmp_path / "none", [64])


def test_the_table_golden(run: PlannedRun) -> None:
    machines = [offer(), offer(gpus=8), offer("T4", machine="a" * 60), offer("K80")]
    plans, unknown = plan_machines(replace(run, precision="bf16"), machines, TERMS)
    rows, best = best_of(affordable(plans, math.inf, math.inf, spot=True), 1, spot=True)
    lines = [*work_lines(run)]
    for width in (80, 160):
        table = machine_lines(rows, best, width, spot=True)
        assert max(map(len, table)) <= width
        lines += table
    lines += closing_lines(rows, plans, unknown, TERMS)
    words = ["my photos", "--recipe", "imagenet-resnet50"]
    lines += [launch_line(rows[0], words, spot=True), launch_line(rows[0], words, spot=False)]
    check_golden("plan_machines", lines)
