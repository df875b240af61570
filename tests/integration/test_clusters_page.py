"""The commands of docs/clusters.md that need no scheduler: two machines by hand, spot machines.

Each is run as it is printed there, with flags for a small model after it.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from chaos.metadata import Metadata
from integration.namespaces import Cluster, missing
from integration.processes import ended, finish, slow_steps, start, wait_until
from pages import ROOT, commands_in
from samples import image_folder
from stoker.run.directory import Run
from stoker.survive.spot import ENDPOINT
from waiting import until

IMAGES, EPOCHS = 120, 10
SMALL = f"--model resnet9_w4 --image-size 24 --batch-size 20 --epochs {EPOCHS}".split()
WITHIN_S = 300

no_machines = missing()


def lines_of(section: str) -> list[list[str]]:
    """The words after `stoker` of each command in a section of the page."""
    page = (ROOT / "docs" / "clusters.md").read_text()
    text = page.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    lines = [shlex.split(line) for line in commands_in(text)]
    assert lines and all(line[0] == "stoker" for line in lines)
    return [line[1:] for line in lines]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with photographs, packed as the page says."""
    image_folder(tmp_path / "photos", classes=3, images=IMAGES // 3, val=4, size=(28, 28))
    code, printed = finish(start(lines_of("Two machines by hand")[0], tmp_path))
    assert code == 0, printed
    return tmp_path


def assert_whole(run: Run) -> None:
    assert run.finished
    assert [step["images"] for step in run.steps()] == [20] * (EPOCHS * IMAGES // 20)


@pytest.mark.skipif(no_machines is not None, reason=no_machines or "")
def test_two_machines_by_hand(folder: Path) -> None:
    _, words = lines_of("Two machines by hand")
    cluster = Cluster(2)
    try:
        # Steps as small as these are refused without consent: they would wait for the exchange.
        launchers = [
            machine.start([*words, *SMALL, "--yes"], folder, folder / f"{machine.name}.out")
            for machine in cluster.machines
        ]
        codes = [launcher.wait(timeout=WITHIN_S) for launcher in launchers]
    finally:
        cluster.remove()
    printed = "\n".join(file.read_text() for file in folder.glob("*.out"))
    assert codes == [0, 0], printed
    assert_whole(Run(folder / "runs" / "photos"))


def test_spot_machines(folder: Path) -> None:
    """A machine is announced to go, the next one goes on; a third finds that nothing is left."""
    (words,) = lines_of("Spot machines")
    run, service = Run(folder / "runs" / "spot"), Metadata()
    variables = {ENDPOINT: service.url}
    try:
        first = start([*words, *SMALL], folder, {**variables, **slow_steps()})
        wait_until(lambda: any(run.attempt_events(1)), first)
        until(lambda: service.asked, within_s=WITHIN_S)
        service.notice(120)
        code, printed = finish(first)
        assert code == 75, printed
        assert ended(run)["reason"].startswith("spot notice: aws")
        service.withdraw()
        codes = [finish(start([*words, *SMALL], folder, variables))[0] for _ in range(2)]
        assert codes == [0, 0]
        assert_whole(run)
    finally:
        service.close()
