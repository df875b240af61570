"""Every command of the SLURM section of docs/clusters.md, in its order, on a real SLURM. The other
sections: tests/integration/test_clusters_page.py."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from cluster.conftest import Desk
from pages import blocks_of, commands_in

pytestmark = pytest.mark.timeout(600)
PAGE = (Path(__file__).parents[2] / "docs" / "clusters.md").read_text()
SECTION = PAGE.partition("\n## Two machines by hand\n")[0]
SITE = "[sbatch]\nexclude = 'n3'\n"


def test_every_command_of_the_page_is_taken(desk: Desk) -> None:
    """Jobs are cancelled as soon as they are submitted, and their work is not waited for."""
    shutil.copytree(desk.folder / "pictures", desk.folder / "photos")
    (desk.folder / "photos-packed").symlink_to(desk.folder / "packed")
    (desk.folder / "slurm.toml").write_text(SITE)
    lines = commands_in(SECTION)
    assert len(lines) > 5
    for line in lines:
        program, *words = shlex.split(line)
        assert program == "stoker"
        if words[:2] == ["pack", "photos"]:  # it is waited for
            (desk.folder / "photos-packed").unlink()
        code, printed = desk.stoker(*words)
        assert code == 0, f"{line}\n{printed}"
        for job in re.findall(r"^job (\d+) is submitted", printed, re.MULTILINE):
            desk.cluster.call("scancel", "--full", job)
            desk.wait(lambda job=job: desk.cluster.ended(job))
    assert (desk.folder / "photos-packed" / "dataset.json").exists()


def test_the_site_file_of_the_page_can_be_read(desk: Desk) -> None:
    (block,) = [block for block in blocks_of(SECTION) if block.kind == "toml"]
    (desk.folder / "slurm.toml").write_text(block.text)
    code, printed = desk.stoker("launch", "slurm", "--dry-run", "--", "train", "packed")
    assert code == 0, printed
    assert "module load cuda/12\n" in printed
    assert "#SBATCH --account=lab\n" in printed
