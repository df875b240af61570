"""Weights from files, runs and exports: what is taken, what is new, and what is refused."""

from __future__ import annotations

import argparse
import io
import json
import os
import pickle
import re
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save, save_file
from torch import Tensor, nn

from golden import check_golden
from stoker.commit import sha256_file
from stoker.errors import BadRequest
from stoker.recipe.recipe import Recipe
from stoker.run.directory import Run
from stoker.survive.checkpoint import Snapshot, write_checkpoint
from stoker.train.model import weight_files
from stoker.train.model.build import Normalise, build_model
from stoker.train.model.start import FIRST_RULES, Start, load_start, normalise_of, try_model
from stoker.train.model.weight_places import InputFacts, find_weights

TINY = Recipe(model="resnet9_w2", image_size=16)
CLASSES = ["cat", "cow", "dog"]
Tensors = dict[str, Tensor]


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages name the paths that are typed here."""
    monkeypatch.chdir(tmp_path)


def trained(seed: int = 7, classes: int = 3, model: str = "resnet9_w2") -> Tensors:
    """Weights that a model of another seed has."""
    return build_model(replace(TINY, seed=seed, model=model), classes)[0].state_dict()


def started(
    path: str | Path, classes: list[str] | None = CLASSES, model: str = "resnet9_w2"
) -> tuple[Tensors, Start]:
    """The tensors of a fresh model after its start from a path, and the start."""
    recipe = replace(TINY, weights=str(path), model=model)
    net = build_model(recipe, len(classes or "ab"))[0]
    start = load_start(recipe, net, classes)
    assert start is not None
    return net.state_dict(), start


def same(ours: Tensors, theirs: Tensors, but: tuple[str, ...] = ()) -> bool:
    names = [name for name in ours if not name.startswith(but)] if but else list(ours)
    return all(torch.equal(ours[name], theirs[name]) for name in names)


def write_run(path: Path, weights: Tensors, ema: Tensors | None = None) -> Path:
    """A run directory with one checkpoint, which is its best."""
    record = {
        **{"recipe": "x", "values": {"model": "resnet9_w2"}, "data": "x", "fingerprint": "x"},
        **{"classes": CLASSES, "lanes": 1, "changes": []},
    }
    Run(path).create(record, "")
    facts = {
        **{"position": 8, "step": 4, "evaluated": 8, "best": 0.5, "model": "resnet9_w2"},
        "classes": CLASSES,
        "input": {"mean": [0.5] * 3, "std": [0.2] * 3, "image_size": 32, "crop_pct": 0.9},
    }
    folder = path / "checkpoints" / "000000004"
    write_checkpoint(folder, Snapshot(weights, ema or {}, {}, facts))
    (path / "best").write_text("000000004")
    return path


def write_export(path: Path, weights: Tensors, **config: Any) -> Path:
    path.mkdir()
    save_file(weights, path / "model.safetensors")
    facts = {"mean": [0.5] * 3, "std": [0.25] * 3, "input_size": [3, 16, 16], "crop_pct": 1}
    plain = {"architecture": "resnet9_w2", "num_classes": 3, "pretrained_cfg": facts}
    (path / "config.json").write_text(json.dumps({**plain, "label_names": CLASSES, **config}))
    return path


class TestFiles:
    @pytest.mark.parametrize(
        "wrap",
        [
            lambda w: w,
            lambda w: {"state_dict": w, "arch": "resnet9_w2", "epoch": 3},
            lambda w: {"model": w, "args": argparse.Namespace(lr=0.1)},
            lambda w: {"state_dict": trained(1), "state_dict_ema": w},
            lambda w: {"model": trained(1), "model_ema": {f"module.{n}": t for n, t in w.items()}},
            lambda w: {f"module._orig_mod.{name}": tensor for name, tensor in w.items()},
            lambda w: {"model": {f"model.{name}": tensor for name, tensor in w.items()}},
            lambda w: {n: t.half().float() if t.ndim > 1 else t for n, t in w.items()},
        ],
    )
    @pytest.mark.parametrize("old", [False, True])
    def test_every_usual_layout(self, wrap: Callable[[Tensors], Any], old: bool) -> None:
        weights = trained()
        torch.save(wrap(weights), "w.pth", _use_new_zipfile_serialization=not old)
        ours, start = started("w.pth")
        assert torch.allclose(ours["head.weight"], weights["head.weight"], atol=1e-3)
        assert "50 of 50" in start.line
        assert start.sha256 == sha256_file(Path("w.pth"))

    def test_safetensors_under_any_name(self) -> None:
        for name in ("w.safetensors", "w.bin"):
            save_file(trained(), name)
            assert same(started(name)[0], trained())

    def test_other_precisions_become_the_models(self) -> None:
        half = {n: t.half() if t.is_floating_point() else t for n, t in trained().items()}
        save_file(half, "half.safetensors")
        ours, _ = started("half.safetensors")
        assert ours["head.weight"].dtype == torch.float32
        assert torch.equal(ours["head.weight"], half["head.weight"].float())

    def test_old_files_have_no_counters(self) -> None:
        torch.save({n: t for n, t in trained().items() if "num_batches" not in n}, "old.pt")
        ours, start = started("old.pt")
        assert same(ours, trained())
        assert "42 of 50" in start.line

    def test_the_head_of_other_classes_starts_at_zero(self) -> None:
        save_file(trained(classes=5), "five.safetensors")
        ours, start = started("five.safetensors")
        assert same(ours, trained(classes=5), but=("head",))
        assert not ours["head.weight"].any() and not ours["head.bias"].any()
        assert start.line.endswith("; the new head starts at zero")
        assert start.record()["rules"] == 2

    def test_a_run_that_has_begun_keeps_the_head_that_was_drawn(self) -> None:
        save_file(trained(classes=5), "five.safetensors")
        recipe = replace(TINY, weights="five.safetensors")
        model = build_model(recipe, 3)[0]
        start = load_start(recipe, model, CLASSES, FIRST_RULES)
        assert torch.equal(model.state_dict()["head.weight"], trained(0)["head.weight"])
        assert start is not None and "zero" not in start.line


class TestOtherNames:
    """Weights of another implementation: the same tensors in the same order."""

    def renamed(self, weights: Tensors, counters: bool = False) -> Tensors:
        """As another program names them."""
        kept = {n: tensor for n, tensor in weights.items() if counters or "num_batches" not in n}
        return {
            f"_layers.{number}.{name.rpartition('.')[2]}": tensor
            for number, (name, tensor) in enumerate(kept.items())
        }

    def test_tensors_are_matched_in_order(self) -> None:
        torch.save(self.renamed(trained()), "other.pth")
        ours, start = started("other.pth")
        assert same(ours, trained())
        assert "42 of 50 tensors from other.pth, matched in order under other names" in start.line
        torch.save(self.renamed(trained(), counters=True), "counted.pth")
        ours, start = started("counted.pth")
        assert same(ours, trained())
        assert "50 of 50 tensors from counted.pth, matched in order under other names" in start.line

    def test_the_head_may_have_other_classes_or_be_missing(self) -> None:
        theirs = self.renamed(trained(classes=9))
        torch.save(theirs, "nine.pth")
        torch.save(dict(list(theirs.items())[:-2]), "none.pth")
        for name, reason in (("nine.pth", "3 classes instead of 9"), ("none.pth", "has none")):
            ours, start = started(name)
            assert same(ours, trained(classes=9), but=("head",))
            assert not ours["head.weight"].any()
            assert reason in start.line

    @pytest.mark.parametrize("number", [1, 2, 20, 40])
    @pytest.mark.parametrize("kind", ["shape", "name", "order", "fewer", "more"])
    def test_the_first_pair_that_differs_is_named(self, number: int, kind: str) -> None:
        rows = list(self.renamed(trained()).items())
        name, tensor = rows[number - 1]
        if kind == "shape":
            rows[number - 1] = (name, torch.zeros(*tensor.shape, 1))
        elif kind == "name":
            rows[number - 1] = (f"{name}_g", tensor)
        elif kind == "order":
            rows[number - 1 : number + 1] = rows[number - 1 : number + 1][::-1]
        elif kind == "fewer":
            del rows[number - 1]
        else:
            rows.insert(number - 1, ("extra.scale", torch.zeros(2)))
        torch.save(dict(rows), "other.pth")
        with pytest.raises(BadRequest) as refusal:
            started("other.pth")
        assert f"differ from number {number} on" in str(refusal.value)

    def test_names_that_are_partly_ours_are_not_guessed(self) -> None:
        names = list(trained())
        mixed = {n if i < 30 else f"x.{n}": trained()[n] for i, n in enumerate(names)}
        torch.save(mixed, "mixed.pth")
        with pytest.raises(BadRequest, match="missing"):
            started("mixed.pth")


class TestRunsAndExports:
    def test_a_run_gives_its_average_classes_and_input(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", trained(1), ema=trained(2))
        ours, start = started(run)
        assert same(ours, trained(2))
        assert start.input == InputFacts((0.5,) * 3, (0.2,) * 3, 32, 0.9)
        assert normalise_of(start.input, Normalise()) == Normalise((0.5,) * 3, (0.2,) * 3)
        assert same(started(run / "checkpoints" / "000000004")[0], trained(2))

    def test_rows_follow_the_names_of_classes(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", trained())
        ours, _ = started(run, ["dog", "cat", "cow"])
        assert torch.equal(ours["head.weight"], trained()["head.weight"][[2, 0, 1]])
        assert torch.equal(ours["head.bias"], trained()["head.bias"][[2, 0, 1]])
        other, _ = started(run, ["dog", "cat", "hen"])
        assert not other["head.weight"].any()

    def test_an_export_in_the_layout_of_timm(self, tmp_path: Path) -> None:
        ours, start = started(write_export(tmp_path / "out", trained()))
        assert same(ours, trained())
        assert start.input == InputFacts((0.5,) * 3, (0.25,) * 3, 16, 1.0)
        named = {"label_names": {"1": "cow", "0": "dog", "2": "cat"}}
        ours, _ = started(write_export(tmp_path / "table", trained(), **named))
        assert torch.equal(ours["head.weight"], trained()["head.weight"][[2, 1, 0]])

    @pytest.mark.parametrize(
        "config",
        [
            {"pretrained_cfg": 3, "label_names": 5, "architecture": [], "stoker": []},
            {"pretrained_cfg": {"mean": [1, 2], "std": "x", "input_size": [3], "crop_pct": 7}},
            {"pretrained_cfg": {"mean": [0, 0, 0], "std": [0, 0, 0], "input_size": 224}},
            {"label_names": ["cat", "cat", "dog"]},
            {"label_names": ["cat", 4, None]},
        ],
    )
    def test_a_strange_configuration_is_not_believed(
        self, tmp_path: Path, config: dict[str, Any]
    ) -> None:
        ours, start = started(write_export(tmp_path / "out", trained(), **config))
        assert same(ours, trained(), but=("head",))
        assert start.input.mean is None or start.input.mean == (0.5,) * 3

    def test_before_packing_the_classes_are_not_known(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", trained())
        try_model(replace(TINY, weights=str(run), freeze="2"))
        with pytest.raises(BadRequest, match="stages"):
            try_model(replace(TINY, weights=str(run), freeze="9"))


class Code(nn.Module):
    """Pickled, this is code."""


def half_of(data: bytes) -> bytes:
    return data[: len(data) // 2]


def as_file(content: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def deflated(size: int) -> bytes:
    """An archive that unpacks to far more than it has."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data/0", b"\0" * size)
    return buffer.getvalue()


def spoiled(weights: Tensors, name: str, value: Tensor) -> Tensors:
    return {**weights, name: value}


def hostile_files() -> Iterator[tuple[str, bytes]]:
    good = trained()
    shape = spoiled(good, "features.0.0.weight", torch.zeros(3, 3))
    nan = spoiled(good, "features.1.2.weight", torch.full((4,), torch.nan))
    strange = {**good, **{f"aux.{n}\x1b": torch.zeros(1) for n in range(9)}}
    yield "empty.pth", b""
    yield "page.pth", b"\n<!DOCTYPE html><title>Log in</title>"
    yield "pointer.safetensors", b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n"
    yield "code.pt", as_file(Code())
    yield "system.pt", pickle.dumps({"state_dict": os.system})
    yield "cut.safetensors", half_of(save(good))
    yield "cut.pt", half_of(as_file(good))
    yield "text.safetensors", b"weights"
    yield "text.pt", b"weights of a model"
    yield "list.pt", as_file([1, 2])
    yield "numbers.pt", as_file({"epoch": 3})
    yield "bomb.pt", deflated(1 << 22)
    yield "shape.safetensors", save(shape)
    yield "nan.safetensors", save(nan)
    yield "part.pt", as_file({n: t for n, t in good.items() if "features.5" not in n})
    yield "more.pt", as_file(strange)
    yield "whole.pt", as_file({n: t.long() for n, t in good.items()})
    yield "wide.pt", as_file({"arch": "resnet9_w4", "state_dict": trained(model="resnet9_w4")})
    yield "other.pt", as_file({"conv1.weight": torch.zeros(3), "fc.bias": torch.zeros(3)})


def refusals(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    def refusal(path: str, model: str = "resnet9_w2") -> str:
        with pytest.raises(BadRequest) as caught:
            started(path, model=model)
        # What libraries say differs between their versions.
        text = re.sub(r"\([^)]*\): copy or", "(...): copy or", str(caught.value))
        return re.sub(r"\([\w.]+\.Code\)", "(net.Code)", text)

    monkeypatch.setattr(weight_files, "usable_memory", lambda: 1 << 20)
    for name, data in hostile_files():
        Path(name).write_bytes(data)
        yield refusal(name)
    save_file({"x": torch.zeros(1 << 18)}, "large.safetensors")
    yield refusal("large.safetensors")
    for path in ("missing.pt", ".", "/dev/null", "zero\0byte"):
        yield refusal(path)
    run = write_run(Path("run"), trained())
    yield refusal("run", model="resnet9_w4")
    weights = run / "checkpoints" / "000000004" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    yield refusal("run")
    weights.write_bytes(b"")
    yield refusal("run")
    (run / "run.json").write_text("[]")
    yield refusal("run")
    Path("new").mkdir()
    Path("new/run.json").write_text(json.dumps({**NEW_RUN}))
    yield refusal("new")
    out = write_export(Path("out"), trained())
    (out / "model.safetensors").unlink()
    yield refusal("out")
    (out / "config.json").write_text("[]")
    yield refusal("out")
    (out / "config.json").write_text("[" * 100_000)
    assert "config.json is damaged" in refusal("out")


NEW_RUN = {
    **{"recipe": "x", "values": {"model": "resnet9_w2"}, "data": "x", "fingerprint": "x"},
    **{"classes": CLASSES, "lanes": 1, "changes": []},
}


def lines() -> Iterator[str]:
    """What is printed about weights that were loaded."""
    save_file(trained(), "own.safetensors")
    save_file(trained(classes=1000), "imagenet.safetensors")
    torch.save({**trained(), "n_averaged": torch.zeros(())}, "averaged.pt")
    run = str(write_run(Path("run"), trained()))
    recipe = replace(TINY, image_size=64)
    for path, classes in (
        ("own.safetensors", CLASSES),
        ("imagenet.safetensors", CLASSES),
        ("averaged.pt", CLASSES),
        (run, CLASSES),
        (run, CLASSES[::-1]),
        (run, ["a", "b", "c"]),
        (run, ["a", "b"]),
    ):
        start = started(path, classes)[1]
        yield start.line
    yield from start.note(recipe)
    assert start.note(replace(TINY, image_size=32)) == []


def test_lines_golden() -> None:
    check_golden("train_start_lines", lines())


def test_refusals_golden(monkeypatch: pytest.MonkeyPatch) -> None:
    check_golden("train_start_refusals", refusals(monkeypatch))


def test_a_refused_file_leaves_the_model_as_it_was() -> None:
    save_file(
        spoiled(trained(), "features.1.2.weight", torch.full((4,), torch.inf)), "inf.safetensors"
    )
    recipe = replace(TINY, weights="inf.safetensors")
    model = build_model(recipe, 3)[0]
    with pytest.raises(BadRequest):
        load_start(recipe, model, CLASSES)
    assert same(model.state_dict(), trained(0))


def test_a_place_is_found_without_torch() -> None:
    """The launcher asks before it starts ranks."""
    save_file(trained(), "own.safetensors")
    assert find_weights("own.safetensors").file == Path("own.safetensors")
