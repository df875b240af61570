"""What is committed reads back to the bit; what is torn or damaged is never read."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from stoker.errors import StokerError
from stoker.survive.checkpoint import Snapshot, read_checkpoint, write_checkpoint
from stoker.survive.checkpoints import Checkpoints
from stoker.survive.manifest import MARKER, manifest_of

FILES = ["weights.safetensors", "ema.safetensors", "state.pt", "manifest.json", MARKER]


def snapshot(step: int, **state: Any) -> Snapshot:
    """Small tensors of every kind a network and its optimiser have."""
    draw = torch.Generator().manual_seed(step)
    kernel = torch.randn(4, 3, 3, 3, generator=draw)
    weights = {
        "kernel": kernel.to(memory_format=torch.channels_last),
        "bias": torch.randn(4, generator=draw).bfloat16(),
        "batches": torch.tensor(step),
        "empty": torch.zeros(0, 3),
    }
    momentum = torch.randn(4, 3, 3, 3, generator=draw).to(memory_format=torch.channels_last)
    return Snapshot(
        weights=weights,
        ema={"kernel": kernel / 2},
        state={"optimizer": {"state": {0: {"momentum": momentum}}}, "scaler": {}, **state},
        facts={"step": step, "position": 64 * step, "best": 0.25, "classes": ["a", "ö"]},
    )


def same_tensors(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    return one.keys() == two.keys() and all(
        one[name].dtype == two[name].dtype and torch.equal(one[name], two[name]) for name in one
    )


def save(checkpoints: Checkpoints, step: int, *, best: bool = False) -> None:
    checkpoints.save(snapshot(step), best=best)
    checkpoints.wait()


def newest_step(run: Path) -> int | None:
    found, _ = Checkpoints(run).newest()
    return None if found is None else int(found.facts["step"])


def flip(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut in half": lambda data: data[: len(data) // 2],
    "one byte short": lambda data: data[:-1],
    "longer": lambda data: data + b"\0",
    "first byte flipped": lambda data: flip(data, 0),
    "middle byte flipped": lambda data: flip(data, len(data) // 2),
    "last byte flipped": lambda data: flip(data, len(data) - 1),
    "zeros": lambda data: bytes(len(data)),
}


@pytest.fixture(scope="module")
def two_saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("two")
    for step in (10, 20):
        save(Checkpoints(run), step)
    return run


@pytest.fixture
def run(two_saved: Path, tmp_path: Path) -> Path:
    """A run with checkpoints of steps 10 and 20."""
    return shutil.copytree(two_saved, tmp_path / "run")


class TestRoundTrip:
    def test_every_tensor_and_fact_comes_back(self, tmp_path: Path) -> None:
        written = snapshot(7)
        write_checkpoint(tmp_path / "one", written)
        read = read_checkpoint(tmp_path / "one")
        assert same_tensors(read.weights, written.weights)
        assert same_tensors(read.ema, written.ema)
        momentum = read.state["optimizer"]["state"][0]["momentum"]
        assert torch.equal(momentum, written.state["optimizer"]["state"][0]["momentum"])
        assert momentum.is_contiguous(memory_format=torch.channels_last)
        assert written.facts.items() <= read.facts.items()

    def test_without_an_average_there_is_no_file_for_it(self, tmp_path: Path) -> None:
        plain = snapshot(7)
        plain.ema = {}
        write_checkpoint(tmp_path / "one", plain)
        assert not (tmp_path / "one" / "ema.safetensors").exists()
        assert read_checkpoint(tmp_path / "one").ema == {}

    def test_weights_need_nothing_but_safetensors(self, run: Path) -> None:
        found = load_file(run / "checkpoints" / "000000020" / "weights.safetensors")
        assert same_tensors(found, snapshot(20).weights)

    def test_the_state_loads_without_running_code(self, run: Path) -> None:
        path = run / "checkpoints" / "000000020" / "state.pt"
        assert set(torch.load(path, weights_only=True)) == {"optimizer", "scaler"}

    def test_the_size_is_that_of_the_files(self, tmp_path: Path) -> None:
        size = write_checkpoint(tmp_path / "one", snapshot(7))
        assert size == sum((tmp_path / "one" / name).stat().st_size for name in FILES[:3])


class TestNewest:
    def test_is_the_highest_step(self, run: Path) -> None:
        found, torn = Checkpoints(run).newest()
        assert found is not None
        assert (found.facts["step"], torn) == (20, [])

    def test_of_an_empty_run_is_nothing(self, tmp_path: Path) -> None:
        assert Checkpoints(tmp_path).newest() == (None, [])

    @pytest.mark.parametrize("damage", DAMAGE)
    @pytest.mark.parametrize("name", FILES)
    def test_passes_over_a_damaged_file_and_names_its_checkpoint(
        self, run: Path, name: str, damage: str
    ) -> None:
        path = run / "checkpoints" / "000000020" / name
        path.write_bytes(DAMAGE[damage](path.read_bytes()))
        with pytest.raises(StokerError, match="000000020"):
            read_checkpoint(path.parent)
        found, torn = Checkpoints(run).newest()
        assert found is not None
        assert same_tensors(found.weights, snapshot(10).weights)
        assert torn == ["000000020"]

    @pytest.mark.parametrize("name", FILES)
    def test_passes_over_a_checkpoint_without_one_of_its_files(self, run: Path, name: str) -> None:
        (run / "checkpoints" / "000000020" / name).unlink()
        assert manifest_of(run / "checkpoints" / "000000020") is None
        found, torn = Checkpoints(run).newest()
        assert found is not None
        assert (found.facts["step"], torn) == (10, ["000000020"])

    def test_does_not_believe_another_checkpoints_marker(self, run: Path) -> None:
        markers = [run / "checkpoints" / name / MARKER for name in ("000000010", "000000020")]
        shutil.copy(*markers)
        assert newest_step(run) == 10

    def test_needs_no_pointer(self, run: Path) -> None:
        (run / "last").unlink()
        assert newest_step(run) == 20
        (run / "last").write_text("000000999")
        assert newest_step(run) == 20

    def test_is_nothing_where_all_are_torn_and_all_are_named(self, run: Path) -> None:
        for name in ("000000010", "000000020"):
            (run / "checkpoints" / name / MARKER).unlink()
        assert Checkpoints(run).newest() == (None, ["000000020", "000000010"])


class TestSaving:
    def test_a_committed_checkpoint_is_never_written_over(self, run: Path) -> None:
        before = (run / "checkpoints" / "000000020" / "state.pt").read_bytes()
        checkpoints = Checkpoints(run, keep=9)
        save(checkpoints, 20)
        save(checkpoints, 20)
        assert checkpoints.names() == ["000000020-3", "000000020-2", "000000020", "000000010"]
        assert checkpoints.pointer("last") == "000000020-3"
        assert (run / "checkpoints" / "000000020" / "state.pt").read_bytes() == before

    def test_a_torn_one_is_written_anew(self, run: Path) -> None:
        (run / "checkpoints" / "000000020" / MARKER).unlink()
        (run / "checkpoints" / "000000020" / "rubbish").write_text("left by a kill")
        save(Checkpoints(run), 20)
        assert Checkpoints(run).names() == ["000000020", "000000010"]
        assert not (run / "checkpoints" / "000000020" / "rubbish").exists()
        assert newest_step(run) == 20

    def test_last_moves_on_where_best_does_not(self, tmp_path: Path) -> None:
        checkpoints = Checkpoints(tmp_path)
        assert checkpoints.pointer("last") is checkpoints.pointer("best") is None
        save(checkpoints, 1, best=True)
        save(checkpoints, 2)
        assert (checkpoints.pointer("last"), checkpoints.pointer("best")) == (
            "000000002",
            "000000001",
        )

    def test_each_save_tells_what_it_was(self, tmp_path: Path) -> None:
        checkpoints = Checkpoints(tmp_path)
        save(checkpoints, 3)
        (saved,) = checkpoints.finished
        assert (saved.name, saved.step, saved.position) == ("000000003", 3, 192)
        assert saved.bytes > 0
        assert saved.seconds > 0

    def test_training_goes_on_while_a_save_is_under_way(self, tmp_path: Path) -> None:
        go_on = threading.Event()

        class Slow:
            """Takes its time to be written."""

            def __reduce__(self) -> tuple[Any, ...]:
                assert go_on.wait(300)
                return OrderedDict, ()

        checkpoints = Checkpoints(tmp_path)
        checkpoints.save(snapshot(1, slow=Slow()))
        assert newest_step(tmp_path) is None
        assert checkpoints.finished == []
        go_on.set()
        checkpoints.wait()
        assert newest_step(tmp_path) == 1
        assert len(checkpoints.finished) == 1


class TestFailure:
    def test_is_told_to_whoever_waits_and_the_next_save_works(self, tmp_path: Path) -> None:
        (tmp_path / "checkpoints").write_text("in the way")
        checkpoints = Checkpoints(tmp_path)
        checkpoints.save(snapshot(1))
        with pytest.raises(StokerError, match=r"cannot save a checkpoint in .*checkpoints"):
            checkpoints.wait()
        assert checkpoints.finished == []
        (tmp_path / "checkpoints").unlink()
        save(checkpoints, 2)
        assert newest_step(tmp_path) == 2

    def test_does_not_stop_the_next_save_and_is_not_forgotten(self, tmp_path: Path) -> None:
        (tmp_path / "checkpoints").write_text("in the way")
        checkpoints = Checkpoints(tmp_path)
        checkpoints.save(snapshot(1))
        checkpoints.save(snapshot(2))
        assert "cannot save" in str(checkpoints.failures[0])
        with pytest.raises(StokerError, match="cannot save"):
            checkpoints.wait()

    def test_a_kill_before_the_pointers_is_mended(self, tmp_path: Path) -> None:
        checkpoints = Checkpoints(tmp_path)
        save(checkpoints, 10)
        save(checkpoints, 20, best=True)
        (tmp_path / "last").write_text("000000010")
        (tmp_path / "best").unlink()
        found, torn = Checkpoints(tmp_path).recover()
        assert found is not None and found.facts["step"] == 20
        assert torn == []
        assert checkpoints.pointer("last") == checkpoints.pointer("best") == "000000020"

    def test_leaves_the_pointers_at_what_is_committed(self, run: Path) -> None:
        checkpoints = Checkpoints(run)
        checkpoints.save(snapshot(30, code=threading.Lock()), best=True)
        with pytest.raises(StokerError, match="cannot save"):
            checkpoints.wait()
        assert (checkpoints.pointer("last"), checkpoints.pointer("best")) == ("000000020", None)
        assert newest_step(run) == 20


class TestPruning:
    @pytest.mark.parametrize("keep", [1, 2, 3])
    def test_keeps_the_newest_few_and_the_best(self, tmp_path: Path, keep: int) -> None:
        checkpoints = Checkpoints(tmp_path, keep)
        for step in range(1, 7):
            save(checkpoints, step, best=step == 2)
        newest = [f"{step:09d}" for step in range(6, 6 - keep, -1)]
        assert checkpoints.names() == [*newest, "000000002"]

    def test_forgets_a_best_that_was_beaten(self, tmp_path: Path) -> None:
        checkpoints = Checkpoints(tmp_path, keep=1)
        for step in range(1, 6):
            save(checkpoints, step, best=step in (1, 3))
        assert checkpoints.names() == ["000000005", "000000003"]

    def test_removes_torn_ones_that_are_older(self, run: Path) -> None:
        (run / "checkpoints" / "000000010" / MARKER).unlink()
        save(Checkpoints(run), 30)
        assert Checkpoints(run).names() == ["000000030", "000000020"]

    @pytest.mark.parametrize("name", FILES)
    @pytest.mark.parametrize("keep", [1, 2])
    def test_never_takes_the_only_one_that_reads_back(
        self, run: Path, keep: int, name: str
    ) -> None:
        """The newest is damaged, so the run went on from an older one and saves before it."""
        path = run / "checkpoints" / "000000020" / name
        path.write_bytes(flip(path.read_bytes(), path.stat().st_size // 2))
        save(Checkpoints(run, keep), 15)
        assert newest_step(run) == 15


class TestStrangers:
    """A run directory may come from anywhere."""

    def test_a_manifest_cannot_lead_out_of_its_folder(self, run: Path) -> None:
        secret = run / "secret"
        secret.write_bytes(b"not yours")
        folder = run / "checkpoints" / "000000020"
        manifest = json.loads((folder / "manifest.json").read_bytes())
        facts = {"bytes": 9, "sha256": hashlib.sha256(b"not yours").hexdigest()}
        manifest["files"]["../../secret"] = facts
        text = json.dumps(manifest).encode()
        (folder / "manifest.json").write_bytes(text)
        (folder / MARKER).write_text(hashlib.sha256(text).hexdigest())
        assert newest_step(run) == 10

    @pytest.mark.parametrize("name", ["../elsewhere", "/etc", "", "000000020/../..", "\udcff"])
    def test_a_pointer_that_is_no_name_of_ours_is_no_pointer(self, run: Path, name: str) -> None:
        (run / "last").write_bytes(name.encode(errors="surrogateescape"))
        assert Checkpoints(run).pointer("last") is None

    def test_a_million_steps_more_are_still_newer(self, tmp_path: Path) -> None:
        checkpoints = Checkpoints(tmp_path)
        save(checkpoints, 999_999_999)
        save(checkpoints, 1_000_000_000)
        assert checkpoints.names() == ["1000000000", "999999999"]
