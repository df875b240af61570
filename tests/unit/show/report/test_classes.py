"""Classes, the weakest first, and images of a real packed set."""

from __future__ import annotations

import base64
import io
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from made_runs import RunMaker
from report_pages import NOW, PageReader, change_record, keep_evaluation, read_page
from samples import COLOURS, image_folder
from stoker.data.dataset import Dataset
from stoker.data.packing.pack import pack
from stoker.run.directory import Run
from stoker.run.evaluation import WorstSample, report_bytes, report_data
from stoker.show.report.classes import MOST_PICTURES, SIDE, Samples, class_table
from stoker.show.report.facts import facts_of

CLASSES, VAL = 5, 8


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real set of 5 classes."""
    root = tmp_path_factory.mktemp("sets")
    folder = image_folder(root / "images", classes=CLASSES, images=2, val=VAL, size=(150, 90))
    return pack(folder, root / "set")


@pytest.fixture
def run(packed: Path, tmp_path: Path) -> Run:
    """A run that was evaluated on a copy of this set."""
    dataset = Dataset(shutil.copytree(packed, tmp_path / "set"))
    made = RunMaker(tmp_path / "run", steps=30, classes=dataset.classes).attempt(0, 30).run
    change_record(made, data=str(dataset.path), fingerprint=dataset.fingerprint)
    keep_evaluation(made, dataset.classes, images=VAL)
    return made


def pictures(run: Run) -> list[Image.Image]:
    sources = [str(image["src"]) for image in read_page(run).named("img")]
    assert all(source.startswith("data:image/jpeg;base64,") for source in sources)
    return [Image.open(io.BytesIO(base64.b64decode(s.partition(",")[2]))) for s in sources]


def keep_worst(run: Run, *rows: WorstSample) -> None:
    kept = run.evaluation()
    assert kept is not None
    report = replace(kept.report, worst=list(rows))
    data = report_data(report, step=kept.step, position=kept.position)
    (run.path / "evaluation.json").write_bytes(report_bytes(data))


def test_images_are_those_of_their_classes(run: Run) -> None:
    images = pictures(run)
    assert 0 < len(images) <= MOST_PICTURES
    assert all(max(image.size) == SIDE for image in images)
    # The first pair: class 0, taken for class 1.
    for image, expected in zip(images[:2], COLOURS, strict=False):
        mean = image.convert("RGB").resize((1, 1), Image.Resampling.BOX).getpixel((0, 0))
        assert isinstance(mean, tuple)
        assert max(range(3), key=lambda n: mean[n]) == max(range(3), key=lambda n: expected[n])
    assert all(image["alt"] for image in read_page(run).named("img"))


def test_an_image_with_another_label_is_left_out(run: Run) -> None:
    facts = facts_of(run, now=NOW)
    samples = Samples(facts)
    labels = facts.data.dataset.split("val").labels if facts.data.dataset else []
    right = next(n for n, label in enumerate(labels) if label == 2)
    row = WorstSample(right, "../../etc/passwd", 2, 1, 0.9, 5.0)
    assert samples.checked(row) == right
    assert samples.checked(replace(row, label=1)) is None
    assert samples.checked(replace(row, sample=10**9)) is None
    keep_worst(run, row, replace(row, label=1), replace(row, sample=10**9))
    page = read_page(run)
    assert "Which images have the highest loss?" in page.text
    assert "passwd" not in page.text


def test_there_are_never_too_many_images(run: Run) -> None:
    labels = Dataset(run.record["data"]).split("val").labels
    keep_worst(run, *(WorstSample(n % len(labels), "x", int(labels[n % len(labels)]), 0, 0.5, 1.0)
                      for n in range(100)))  # fmt: skip
    assert len(pictures(run)) <= MOST_PICTURES


def test_a_set_that_is_gone_changed_or_damaged_is_one_line(run: Run, tmp_path: Path) -> None:
    shard = next((tmp_path / "set" / "val").glob("*.tar"))
    data = shard.read_bytes()
    shard.write_bytes(data[:-600])
    assert "No sample images: An image cannot be read" in read_page(run).text
    shard.write_bytes(b"\xff" * len(data))
    assert not read_page(run).named("img")
    change_record(run, fingerprint="another")
    assert "holds other images" in read_page(run).text
    change_record(run, data="/nowhere")
    assert "No sample images: The set is no longer at /nowhere." in read_page(run).text


def test_an_evaluation_of_other_images_has_no_pictures(run: Run) -> None:
    keep_evaluation(run, run.record["classes"], images=VAL + 1)
    assert "other images than the evaluation" in read_page(run).text


def test_the_weakest_class_is_first(run: Run) -> None:
    kept = run.evaluation()
    assert kept is not None
    page = class_table(kept.report)
    shares = [float(share) for share in re.findall(r'<td class="n">([\d.]+)%</td>', page)]
    assert shares == sorted(shares) and len(shares) == CLASSES
    reader = PageReader(page)
    assert "5 classes, the weakest first" in reader.text
    assert reader.named("table")[0]["class"] == "classes sortable"
    assert reader.named("input")[0]["aria-label"]
