"""The folder of a run that somebody else has made: no file in it makes a command wait, or takes
memory, and no model is built that its weights are not of."""

from __future__ import annotations

import json
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from exports import config_of, tiny_run, write_config
from stoker.cli import main
from stoker.commit import sha256_of
from stoker.errors import BAD_REQUEST, FAILED, StokerError
from stoker.fleet.signed_store import KEY_BYTES, key_in
from stoker.host.plain_file import LARGEST_JSON
from stoker.run.directory import Run
from stoker.run.evaluation import read_evaluation
from stoker.survive.checkpoints import Checkpoints
from stoker.survive.manifest import pointer, read_manifest
from stoker.survive.remedies import Remedies
from stoker.train.model.weight_places import config_of as read_config
from tiny_runs import one_thread_alone

__all__ = ["one_thread_alone"]
pytestmark = pytest.mark.timeout(240)
SPARE = 1 << 30


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of a second, its set and an export."""
    root = tmp_path_factory.mktemp("strange")
    tiny_run(root, epochs=1)
    assert main(["export", str(root / "run"), str(root / "exported")]) == 0
    return root


@pytest.fixture
def run(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the run, in the working directory."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(made / "run", "run"))


@contextmanager
def little_memory(spare: int = SPARE) -> Iterator[None]:
    """This process may take so much more memory."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + spare, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def large(path: Path) -> None:
    path.touch()
    os.truncate(path, LARGEST_JSON + 1)  # a hole, which takes no room on the disk


KINDS: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "folder": Path.mkdir,
    "large": large,
    "link to itself": lambda path: path.symlink_to(path.name),
}


def replaced(path: Path, kind: str) -> None:
    path.unlink(missing_ok=True)
    KINDS[kind](path)


def checkpoint_of(run: Path) -> Path:
    return run / "checkpoints" / (run / "last").read_text()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("run.json", lambda run: Run(run).record),
        ("evaluation.json", read_evaluation),
        ("remedies.json", Remedies),
        ("config.json", read_config),
        ("manifest.json", read_manifest),
        ("COMMITTED", read_manifest),
        ("weights.safetensors", read_manifest),
    ],
)
def test_no_file_is_read_that_is_none(
    run: Path, name: str, read: Callable[[Path], object], kind: str
) -> None:
    folder = run if name.endswith(".json") and name != "manifest.json" else checkpoint_of(run)
    replaced(folder / name, kind)
    # Links that lead nowhere are missing files, and errors of the disk are not damage.
    if (kind, name) == ("link to itself", "evaluation.json"):
        assert read(folder) is None
        return
    with little_memory(), pytest.raises((StokerError, OSError)) as refusal:
        read(folder)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("kind", KINDS)
def test_what_names_no_checkpoint_or_key_counts_as_missing(tmp_path: Path, kind: str) -> None:
    replaced(tmp_path / "best", kind)
    with little_memory():
        assert pointer(tmp_path / "best") is None
        if kind != "link to itself":
            assert len(key_in(tmp_path / "best")) != KEY_BYTES


def test_a_folder_in_the_place_of_a_pointer_is_named(run: Path) -> None:
    replaced(run / "last", "folder")
    with pytest.raises(StokerError, match="run/last is a folder, not a file: remove it"):
        Checkpoints(run).recover()


VERBS = ("predict", "evaluate", "verify", "explain", "report", "show-config", "runs", "watch")


@pytest.mark.parametrize(
    ("name", "refusing"),
    [
        ("run.json", VERBS[:6]),
        ("best", ()),
        ("last", ()),
        ("remedies.json", ("explain",)),
        ("evaluation.json", ()),
        ("recipe.toml", ("show-config",)),
        ("checkpoints/N/manifest.json", VERBS[:3]),
        ("checkpoints/N/COMMITTED", VERBS[:3]),
        ("checkpoints/N/state.pt", VERBS[:3]),
        ("attempts/0001/rank0.jsonl", ()),
        ("attempts/0001/rank0.summary.jsonl", ()),
    ],
)
def test_a_pipe_makes_no_verb_wait(
    made: Path, run: Path, name: str, refusing: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    image = next((made / "photos").rglob("*.png"))
    replaced(run / name.replace("N", checkpoint_of(run).name), "pipe")
    more = {"predict": [str(image)], "watch": ["--once"]}
    for verb in VERBS:
        code = main([verb, "run", *more.get(verb, ())])
        printed = capsys.readouterr()
        assert (code in (BAD_REQUEST, FAILED)) == (verb in refusing), (verb, printed)
        assert len(printed.err.splitlines()) <= 2 or verb == "predict", (verb, printed.err)


WIDE = "resnet9_w9999"


def wider(run: Path) -> None:
    record = json.loads((run / "run.json").read_text())
    record["values"]["model"] = WIDE
    (run / "run.json").write_text(json.dumps(record))


def with_manifest(run: Path, **facts: object) -> None:
    folder = checkpoint_of(run)
    manifest = json.loads((folder / "manifest.json").read_bytes())
    text = json.dumps({**manifest, **facts}).encode()
    (folder / "manifest.json").write_bytes(text)
    (folder / "COMMITTED").write_text(sha256_of(text))


def more_classes(run: Path) -> None:
    with_manifest(run, classes=[f"{number:x}" for number in range(500_000)])


def large_timm_model(run: Path) -> None:
    pytest.importorskip("timm")
    record = json.loads((run / "run.json").read_text())
    record["values"]["model"] = "vit_giant_patch14_dinov2"
    (run / "run.json").write_text(json.dumps(record))


@pytest.mark.parametrize("verb", ["predict", "evaluate", "export"])
@pytest.mark.parametrize("change", [wider, more_classes, large_timm_model])
def test_no_model_is_built_that_the_weights_are_not_of(
    made: Path,
    run: Path,
    verb: str,
    change: Callable[[Path], None],
    peak_mib: Callable[[], float],
    capsys: pytest.CaptureFixture[str],
) -> None:
    change(run)
    more = {"predict": [str(made / "photos")], "export": ["out"]}
    before = peak_mib()
    assert main([verb, "run", *more.get(verb, ())]) == FAILED
    assert peak_mib() - before < 500
    assert "holds the weights of another model" in capsys.readouterr().err


def test_memory_that_runs_out_is_one_line(
    made: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wider(run)
    with little_memory():
        assert main(["predict", "run", str(made / "photos")]) == FAILED
    assert "holds the weights of another model" in capsys.readouterr().err


def test_an_export_of_a_wide_model_is_not_built(
    made: Path, run: Path, peak_mib: Callable[[], float], capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(made / "exported", "out")
    config = config_of(Path("out"))
    config["stoker"]["model"] = WIDE
    write_config(Path("out"), config)
    before = peak_mib()
    assert main(["predict", "out", str(made / "photos")]) == FAILED
    assert peak_mib() - before < 500
    assert "holds the weights of another model" in capsys.readouterr().err


@pytest.fixture
def peak_mib() -> Callable[[], float]:
    """The largest resident memory that this process has had."""
    return lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@pytest.mark.parametrize("place", ["run", "exported"])
def test_weights_that_fit_no_memory_are_not_read(
    made: Path, place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("stoker.host.limits.usable_memory", lambda: 2000)
    assert main(["predict", str(made / place), str(made / "photos")]) == FAILED
    printed = capsys.readouterr().err
    assert "it has 31.5 kB, and this machine 2.0 kB of memory" in printed
    assert "remove" not in printed
