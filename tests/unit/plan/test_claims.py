"""Stated figures against each other: what is refused, what is warned of, what passes."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden import check_golden
from stoker.errors import BadRequest
from stoker.plan.claims.check import ClaimFinding, check_claims
from stoker.plan.claims.claim import Figure, RunClaim
from stoker.plan.claims.claims_file import MOST_BYTES, MOST_CLAIMS, parse_claims, read_claims
from stoker.show.plan.claims import SENTENCES, claim_lines, sentence

ROOT = Path(__file__).parents[3]
GUIDE = ROOT / "examples" / "claims" / "p4d_in_45_minutes.toml"
DATA = ROOT.parent / "shared" / "data"

WRONG = {
    "epoch-duration": "images = 1_281_167\nimages_per_s = 15_000\nseconds_per_epoch = 45",
    "run-duration": "epochs = 60\nseconds_per_epoch = 85\nhours = 0.75",
    "run-throughput": "epochs = 60\nimages = 1_281_167\nimages_per_s = 15_000\nminutes = 45",
    "step-duration": "batch_size = 128\nimages_per_s = 1000\nseconds_per_step = 0.185",
    "cost": "price_per_hour = 11.00\nhours = 0.75\nmachines = 2\ndollars = 8.25",
    "saving": "price_per_hour = 11.00\non_demand_per_hour = 32.77\nsaving_percent = 70",
    "bid": "price_per_hour = 11.00\nbid = 10.00",
    "zone": 'zone = "use1-az1"\nvolume_zone = "use1-az2"',
    "disk": "disk_gb = 100\ndata_gb = 146",
    "several-gpus": "gpus = 8\nimages_per_s = 1565\none_gpu_images_per_s = 89",
    "batch": "gpus = 8\nbatch_per_gpu = 256\nbatch_size = 4096",
    "gpu-memory": "gpus = 8\ngpu_memory_gb = 40\ntotal_gpu_memory_gb = 640",
    "phase-epochs": "epochs = 60\n[[claim.phases]]\nepochs = 20\n[[claim.phases]]\nepochs = 30",
    "phase-minutes": "minutes = 45\n[[claim.phases]]\nminutes = 20\n[[claim.phases]]\nminutes = 15",
    "memory": 'model = "resnet50"\ngpu = "V100"\ngpus = 1\nbatch_size = 64\noutcome = "ok"\n'
    '[[claim]]\nmodel = "resnet50"\ngpu = "V100"\ngpus = 4\nbatch_size = 128\n'
    'outcome = "out-of-memory"',
    "one-rate": "lr = 0.8\n[[claim.phases]]\nbatch_size = 4096\n[[claim.phases]]\n"
    "batch_size = 3072\n[[claim.phases]]\nbatch_size = 2048",
    "rate": "lr = 3.3\nbatch_size = 2048",
}
WARNED = {"one-rate", "rate"}


def findings_of(text: str) -> list[ClaimFinding]:
    return check_claims(parse_claims(f"[[claim]]\n{text}\n", "claims.toml"))


@pytest.mark.parametrize("rule", WRONG)
def test_a_contradiction_is_named(rule: str) -> None:
    (finding,) = findings_of(WRONG[rule])
    assert finding.rule == rule
    assert finding.refused is (rule not in WARNED)


def test_every_rule_has_a_case_and_a_sentence() -> None:
    assert WRONG.keys() == SENTENCES.keys()
    findings = [finding for text in WRONG.values() for finding in findings_of(text)]
    check_golden("plan_claims", [f"{each.rule}: {sentence(each)}" for each in findings])


@pytest.mark.parametrize(
    "text",
    [
        "images = 1_281_167\nimages_per_s = 15_000\nseconds_per_epoch = 85",
        # An evaluation is part of some epochs.
        "images = 15_240\nimages_per_s = 150\nseconds_per_epoch = 126",
        "images = 15_240\nimages_per_s = 20\nseconds_per_epoch = 770",
        "epochs = 56\nseconds_per_epoch = 45.3\nminutes = 49.4",
        "price_per_hour = 1.20\nhours = [3, 4]\ndollars = 4.80",
        "price_per_hour = 11.00\nbid = 11.00",
        'zone = "use1-az1"\nvolume_zone = "use1-az1"',
        "disk_gb = 146\ndata_gb = 146",
        "gpus = 4\nimages_per_s = 1340\none_gpu_images_per_s = 335",
        "gpus = 8\nimages_per_s = 1108\none_gpu_images_per_s = 132",
        "lr = 0.8\n[[claim.phases]]\nbatch_size = 2048\n[[claim.phases]]\nbatch_size = 2048",
        "lr = 0.8\nbatch_size = 2048",
        "lr = 0.00125\nbatch_size = 16\nlr_base = 0.01\nlr_base_size = 128",
        "seconds_per_epoch = 45",
    ],
)
def test_what_fits_is_left_alone(text: str) -> None:
    assert not findings_of(text)


def test_the_guide_is_refused_with_the_right_figures() -> None:
    claims = read_claims(GUIDE)
    findings = {finding.rule: finding for finding in check_claims(claims)}
    refused = {rule for rule, finding in findings.items() if finding.refused}
    assert refused == {"epoch-duration", "run-throughput", "saving", "bid"}
    assert findings["epoch-duration"].figures["right"] == pytest.approx(85.41, abs=0.01)
    assert findings["one-rate"].figures["sizes"] == "4,096, 3,072, 2,048"
    check_golden("plan_claims_of_a_guide", claim_lines(claims, check_claims(claims)))


def test_published_rows_raise_no_false_alarm() -> None:
    if not (DATA / "published.csv").is_file():
        pytest.skip("needs ../shared/data")
    script = ROOT / "benchmarks" / "plan_claims.py"
    done = subprocess.run(
        [sys.executable, str(script), "--data", str(DATA)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@given(
    images=st.integers(100, 10**7),
    rate=st.floats(1, 10**5),
    rest=st.floats(1, 1.4),
    epochs=st.integers(1, 300),
    price=st.floats(0.01, 100),
)
def test_figures_that_follow_from_each_other_pass(
    images: int, rate: float, rest: float, epochs: int, price: float
) -> None:
    """Whatever true run is stated with three digits is not refused."""
    epoch_s = images / rate * rest
    hours = epochs * epoch_s / 3600

    def digits(value: float) -> str:
        return f"{value:.2e}"

    assert not findings_of(
        f"images = {images}\nimages_per_s = {digits(rate)}\nseconds_per_epoch = {digits(epoch_s)}\n"
        f"epochs = {epochs}\nhours = {digits(hours)}\nprice_per_hour = {digits(price)}\n"
        f"dollars = {digits(price * hours)}"
    )


@given(off=st.floats(0.05, 0.9), rate=st.integers(1000, 10**5))
def test_an_epoch_that_is_too_short_is_refused(off: float, rate: int) -> None:
    images = 10_000_000
    text = f"images = {images}\nimages_per_s = {rate}\nseconds_per_epoch = "
    (finding,) = findings_of(text + f"{images / rate * (1 - off):.6f}")
    assert finding.rule == "epoch-duration"


def test_a_figure_stands_for_what_rounds_to_it() -> None:
    (claim,) = parse_claims(
        "[[claim]]\nseconds_per_epoch = 45\nprice_per_hour = 11.00\ndollars = 1e3\n"
        "hours = [3, 4.5]\nimages = 7",
        "x",
    )
    assert claim == RunClaim(
        name="claim 1",
        seconds_per_epoch=Figure(45, 44.5, 45.5),
        price_per_hour=Figure(11, 10.995, 11.005),
        dollars=Figure(1000, 500, 1500),
        hours=Figure(3.75, 2.5, 4.55),
        images=Figure(7, 7, 7),
    )


HOSTILE = {
    "no claims": "",
    "no table": "claim = 3",
    "an empty list": "claim = []",
    "a list of numbers": "claim = [1, 2]",
    "another table": "[claims]\nx = 1",
    "no TOML": "[[claim",
    "deep": "claim = " + "[" * 5000 + "]" * 5000,
    "unknown key": "[[claim]]\nimges = 3",
    "control characters": '[[claim]]\n"im\\u001bges" = 3',
    "nan": "[[claim]]\nhours = nan",
    "infinite": "[[claim]]\nhours = inf",
    "infinite by its digits": "[[claim]]\nhours = 1e99999999999999999999",
    "nearly nothing": "[[claim]]\nhours = 1e-400",
    "negative": "[[claim]]\nhours = -1.0",
    "zero": "[[claim]]\nimages_per_s = 0",
    "huge": "[[claim]]\nimages = 1" + "0" * 20,
    "endless digits": "[[claim]]\nimages = 1" + "0" * 5000,
    "a bool": "[[claim]]\nimages = true",
    "a text": '[[claim]]\nimages = "3"',
    "a date": "[[claim]]\nimages = 2026-01-01",
    "half an image": "[[claim]]\nimages = 1.5",
    "a range of counts": "[[claim]]\nimages = [1, 2]",
    "three ends": "[[claim]]\nhours = [1, 2, 3]",
    "nested ranges": "[[claim]]\nhours = [[1, 2], [3, 4]]",
    "a range backwards": "[[claim]]\nhours = [4, 3]",
    "a number as text": "[[claim]]\nzone = 3",
    "a long text": f'[[claim]]\nzone = "{"x" * 300}"',
    "hours and minutes": "[[claim]]\nhours = 1\nminutes = 60",
    "an outcome": '[[claim]]\noutcome = "fine"',
    "phases": "[[claim]]\nphases = 3",
    "many phases": "[[claim]]\n" + "[[claim.phases]]\nepochs = 1\n" * 101,
    "many claims": "[[claim]]\n" * (MOST_CLAIMS + 1),
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_file_is_refused(text: str) -> None:
    with pytest.raises(BadRequest) as refusal:
        parse_claims(text, "claims.toml")
    assert str(refusal.value).startswith("claims.toml")
    assert str(refusal.value).isprintable()


def test_refusals_as_they_are_read() -> None:
    lines = []
    for name, text in HOSTILE.items():
        with pytest.raises(BadRequest) as refusal:
            parse_claims(text, "claims.toml")
        lines.append(f"{name}: {refusal.value}")
    check_golden("plan_claims_file", lines)


@given(st.text())
def test_any_text_is_claims_or_a_bad_request(text: str) -> None:
    with suppress(BadRequest):
        check_claims(parse_claims(text, "x"))


def test_files_that_are_no_claims(tmp_path: Path) -> None:
    large, bytes_file = tmp_path / "large.toml", tmp_path / "bytes.toml"
    large.write_bytes(b"#" * (MOST_BYTES + 1))
    bytes_file.write_bytes(b"\xff\xfe")
    for path in (tmp_path, tmp_path / "none.toml", large, bytes_file):
        with pytest.raises(BadRequest):
            read_claims(path)
