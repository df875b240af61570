"""The page: well-formed, complete, closed to the outside, and true of runs in any state."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from compat.kept import FINISHED, INTERRUPTED, Kept
from damaged_events import flip
from made_runs import RunMaker
from report_pages import (
    HOSTILE,
    NOW,
    change_record,
    hostile_run,
    keep_evaluation,
    page_of,
    read_page,
)
from run_records import record
from stoker.run.directory import Run
from stoker.show.report.page import QUESTIONS, asset, digest, made, write_report


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    maker = RunMaker(tmp_path_factory.mktemp("runs") / "run", steps=800, ranks=2, gpus=True)
    return maker.attempt(0, 500, None).attempt(400, 800).run


@pytest.fixture(scope="module")
def page(run: Run) -> str:
    return page_of(run)


def test_it_is_small_and_refers_to_nothing(page: str) -> None:
    assert len(page) < 300_000
    assert not re.search(r"https?:|//[a-z]|src=\"(?!data:)|url\(|@import", page)


def test_its_policy_allows_our_script_and_style_alone(page: str) -> None:
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    rules = policy[1].replace("&#x27;", "'")
    assert "default-src 'none'" in rules and "unsafe" not in rules
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    assert f"script-src '{digest(script)}'" in rules and script == asset("page.js")
    assert f"style-src '{digest(style)}'" in rules
    assert not re.search(r"\sstyle=|\son\w+=", page)


def test_headings_are_in_order_and_anchors_lead_somewhere(run: Run) -> None:
    reader = read_page(run)
    levels = [int(name[1]) for name, _ in reader.elements if re.fullmatch(r"h[1-6]", name)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    ids = [attributes["id"] for _, attributes in reader.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {link["href"] for link in reader.named("a")} <= {f"#{name}" for name in ids}
    assert reader.named("html") == [{"lang": "en"}]


def test_every_picture_has_a_title_and_a_description(run: Run) -> None:
    reader = read_page(run)
    ids = {attributes.get("id") for _, attributes in reader.elements}
    pictures = reader.named("svg")
    shown = [svg for svg in pictures if svg.get("aria-hidden") != "true"]
    assert len(shown) > 15
    for svg in shown:
        assert svg["role"] == "img"
        assert set((svg["aria-labelledby"] or "").split()) <= ids
    assert len(reader.named("title")) == len(shown) + 1
    assert len(reader.named("desc")) == len(shown)
    figures = [f for f in reader.named("figure") if f["class"] == "chart"]
    assert len(reader.named("details")) >= len(figures) - 1


def test_it_answers_eleven_questions_and_shows_every_part(run: Run) -> None:
    text = read_page(run).text
    assert len(QUESTIONS) == 11
    for number in range(1, 12):
        assert f"{number}. " in text
    for words in (
        "resnet18",
        "How did it go?",
        "Where did time and money go?",
        "Attempt 1: killed",
        "class by class",
        "GPU busy",
        "With which recipe?",
        "In which environment?",
        "What else was noticed?",
    ):
        assert words in text, words


def test_the_axes_can_be_chosen_without_the_script(run: Run) -> None:
    reader = read_page(run)
    radios = [one["id"] for one in reader.named("input") if one.get("type") == "radio"]
    assert radios == ["axis-epochs", "axis-hours", "axis-dollars"]
    for name in radios:
        assert f"#{name}:checked" in asset("page.css") or name == "axis-epochs"
    assert any("axis-dollars" in (svg.get("class") or "") for svg in reader.named("svg"))


def test_without_a_price_there_are_no_dollars(tmp_path: Path) -> None:
    run = RunMaker(tmp_path / "run", steps=60, dollars_per_h=None).attempt(0, 60).run
    reader = read_page(run)
    assert len([one for one in reader.named("input") if one.get("type") == "radio"]) == 2
    assert "no price is on record" in reader.text


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    run = hostile_run(tmp_path / "run")
    page, reader = page_of(run), read_page(run)
    assert page.lower().count("<script") == 1 and "<img" not in page
    assert "onerror=&quot;" in page and HOSTILE[:20] in reader.text
    assert all(character.isprintable() or character == "\n" for character in page)
    for _, attributes in reader.elements:
        assert not [name for name in attributes if name.startswith("on") or name == "style"]


def test_a_thousand_classes_with_long_names_stay_small(tmp_path: Path) -> None:
    classes = [f"{number} {'long name ' * 20}"[:200] for number in range(1000)]
    run = RunMaker(tmp_path / "run", steps=60, classes=classes).attempt(0, 60).run
    keep_evaluation(run, classes)
    page = page_of(run)
    assert len(page) < 1_500_000
    assert "1,000 classes, the weakest first" in page
    assert 'class="heat"' not in page


def test_one_class(tmp_path: Path) -> None:
    run = RunMaker(tmp_path / "run", steps=60, classes=["only"]).attempt(0, 60).run
    keep_evaluation(run, ["only"])
    assert "no image got a wrong answer" in read_page(run).text


def test_a_run_without_an_attempt(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    run.create(record(), "")
    text = read_page(run).text
    assert "This run is new" in text and "Nothing has been trained yet" in text


def test_a_run_that_was_killed_before_its_first_step(tmp_path: Path) -> None:
    run = RunMaker(tmp_path / "run", steps=60).attempt(0, 0, None).run
    (run.path / "evaluation.json").unlink(missing_ok=True)
    text = read_page(run).text
    assert "no step was made" in text and "Attempt 1: killed, 0 steps" in text


@pytest.mark.parametrize("loss", ["NaN", "Infinity", "-Infinity", "1e300"])
def test_losses_that_are_not_finite(tmp_path: Path, loss: str) -> None:
    run = RunMaker(tmp_path / "run", steps=100).attempt(0, 100).run
    file = run.events_path(1, 0)
    file.with_suffix(".summary.jsonl").unlink()
    text = re.sub(r'"sums": \[[^,]*', f'"sums": [{loss}', file.read_text())
    file.write_text(re.sub(r'"loss": [0-9.e-]+', f'"loss": {loss}', text))
    page = page_of(run)
    assert not re.search(r'd="[^"]*(nan|inf)', page)
    if loss != "1e300":
        assert "are not finite" in page


def test_a_damaged_evaluation_and_a_damaged_record(tmp_path: Path) -> None:
    run = RunMaker(tmp_path / "run", steps=60).attempt(0, 60).run
    (run.path / "evaluation.json").write_text("{]")
    assert "evaluation.json is damaged" in read_page(run).text
    (run.path / "run.json").write_text("{]")
    text = read_page(Run(run.path)).text
    assert "run.json is damaged" in text and "unknown model" in text


def test_pipes_in_the_run_and_in_the_set_do_not_stop_it(tmp_path: Path) -> None:
    run = RunMaker(tmp_path / "run", steps=60).attempt(0, 60).run
    checkpoint = run.path / "checkpoints" / "000000060"
    checkpoint.mkdir(parents=True)
    (tmp_path / "set").mkdir()
    change_record(run, data=str(tmp_path / "set"))
    for file in (
        checkpoint / "manifest.json",
        tmp_path / "set" / "dataset.json",
        run.path / "remedies.json",
    ):
        os.mkfifo(file)
    (run.path / "recipe.toml").unlink()
    os.mkfifo(run.path / "recipe.toml")
    assert "The set is no longer at" in read_page(run).text


def test_damaged_events_are_noted(tmp_path: Path) -> None:
    run = RunMaker(tmp_path / "run", steps=60).attempt(0, 60).run
    file = run.events_path(1, 0)
    file.with_suffix(".summary.jsonl").unlink()
    file.write_bytes(b"\xff{]\n" + file.read_bytes())
    assert "1 damaged line passed over" in read_page(run).text


@pytest.mark.parametrize("kept", [*INTERRUPTED, FINISHED], ids=lambda kept: kept.name)
def test_runs_of_earlier_versions(kept: Kept) -> None:
    reader = read_page(Run(kept.path))
    assert "resnet9_w2" in reader.text
    assert not (kept.path / "report.html").exists()


def test_it_is_written_whole_and_says_its_size(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "out.html"
    assert write_report(run, target, now=NOW) == target.stat().st_size
    assert [file.name for file in tmp_path.iterdir()] == ["out.html"]


def test_a_part_that_fails_leaves_the_others() -> None:
    def fail() -> None:
        raise TypeError("x")

    assert "could not be made (TypeError)" in made(fail)  # type: ignore[arg-type]


def test_it_loads_no_torch_and_is_quick(run: Run, tmp_path: Path) -> None:
    import subprocess

    code = (
        "import sys; from pathlib import Path; from stoker.run.directory import Run; "
        "from stoker.show.report.page import write_report; "
        "write_report(Run(sys.argv[1]), Path(sys.argv[2])); "
        "print('torch' in sys.modules, 'matplotlib' in sys.modules)"
    )
    began = time.monotonic()
    words = [sys.executable, "-c", code, str(run.path), str(tmp_path / "x.html")]
    out = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert out.split() == ["False", "False"]
    assert time.monotonic() - began < 10


def test_the_record_is_read_as_data(tmp_path: Path) -> None:
    """Values of a recipe may be of any type."""
    run = RunMaker(tmp_path / "run", steps=60).attempt(0, 60).run
    values = json.loads((run.path / "run.json").read_text())["values"]
    odd = {"lr": None, "scheduler": ["a"], "warmup_epochs": {"a": 1}, "target": True, "epochs": []}
    change_record(run, values={**values, **odd})
    assert "an unknown schedule" in read_page(run).text


def test_folders_that_cannot_be_read_are_noted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    for name in ("KeptRows.history", "cost_of", "facts_and_verdict"):
        monkeypatch.setattr(f"stoker.show.report.facts.{name}", refuse)
    text = read_page(run).text
    assert "Permission denied" in text and "resnet18" in text
    monkeypatch.setattr("stoker.show.report.facts.KeptRows", refuse)
    assert "Permission denied" in read_page(run).text


@pytest.mark.parametrize("number", range(24))
def test_changed_bytes_leave_a_page(tmp_path: Path, number: int) -> None:
    run = RunMaker(tmp_path / "run", steps=12, ranks=2).attempt(0, 8, None).attempt(6, 12).run
    keep_evaluation(run, run.record["classes"])
    names = ("attempts/0002/rank0.jsonl", "attempts/0001/rank1.jsonl", "evaluation.json")
    file = run.path / (*names, "run.json")[number % 4]
    file.write_bytes(flip(file.read_bytes(), number))
    read_page(Run(run.path))
