"""The vectors before a model's head, and the files they are written to.

Invariants: vectors are taken from the pass that computes the answers, so both belong together and
nothing is computed twice. Row i of a file is row i of the output; an image that cannot be used has
NaN in a `.npy` and null in a `.parquet` file. Rows are written as they come.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import IO, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from stoker.errors import BadRequest

Floats = NDArray[np.float32]


class FeatureTap:
    """Keeps what goes into a model's last layer, from each pass."""

    def __init__(self, model: nn.Module, classes: int) -> None:
        self._latest: Tensor | None = None
        self._hook = head_of(model, classes).register_forward_pre_hook(self._keep)

    def _keep(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self._latest = inputs[0].detach()

    def take(self) -> Tensor:
        """The vectors of the latest pass, in 32 bits: count x numbers. Raises BadRequest where
        there is not one vector for each image."""
        latest, self._latest = self._latest, None
        if latest is None or latest.shape[2:].numel() != 1:
            shape = "nothing" if latest is None else f"the shape {tuple(latest.shape)}"
            raise BadRequest(f"--features: the input of this model's last layer has {shape}")
        return latest.flatten(1).float()

    def close(self) -> None:
        self._hook.remove()


def head_of(model: nn.Module, classes: int) -> nn.Module:
    """The layer that makes logits of features: timm's own answer, or the last linear layer with an
    output for each class. Raises BadRequest where there is none."""
    named = getattr(model, "get_classifier", None)
    head = named() if named else None
    if isinstance(head, nn.Linear | nn.Conv2d):
        return head
    linear = [part for part in model.modules() if isinstance(part, nn.Linear)]
    heads = [part for part in linear if part.out_features == classes]
    if not heads:
        raise BadRequest("--features: this model has no last linear layer to take them from")
    return heads[-1]


class FeatureFile(Protocol):
    """Takes the vectors of one batch after the other."""

    def write(self, names: Sequence[str], features: Floats, broken: NDArray[np.bool_]) -> None: ...

    def close(self) -> None:
        """Complete the file."""
        ...


class NpyFeatures:
    """A `.npy` file that grows. numpy leaves room in its header for the number of rows."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._rows, self._numbers = file, 0, 0

    def write(self, names: Sequence[str], features: Floats, broken: NDArray[np.bool_]) -> None:
        if not self._rows:
            self._numbers = features.shape[1]
            self._write_header()
        features = np.where(broken[:, None], np.float32(np.nan), features)
        self._file.write(np.ascontiguousarray(features, "<f4").data)
        self._rows += len(features)

    def _write_header(self) -> None:
        shape = (self._rows, self._numbers)
        header = {"descr": "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self._file, header)

    def close(self) -> None:
        self._file.seek(0)
        self._write_header()


class ParquetFeatures:
    """A `.parquet` file with the columns path and features; a batch is a row group."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._writer: pq.ParquetWriter | None = None

    def write(self, names: Sequence[str], features: Floats, broken: NDArray[np.bool_]) -> None:
        kind = pa.list_(pa.float32(), features.shape[1])
        schema = pa.schema([("path", pa.string()), ("features", kind)])
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._file, schema)
        paths = [os.fsencode(name).decode("utf-8", "backslashreplace") for name in names]
        flat = pa.array(features.reshape(-1), pa.float32())
        vectors = pa.FixedSizeListArray.from_arrays(flat, features.shape[1], mask=pa.array(broken))
        self._writer.write_table(pa.table([paths, vectors], schema=schema))

    def close(self) -> None:
        if self._writer is not None:
            try:
                self._writer.close()
            finally:
                self._writer.is_open = False  # else it tries again when it is collected


FEATURE_FILES: dict[str, type[NpyFeatures] | type[ParquetFeatures]] = {
    ".npy": NpyFeatures,
    ".parquet": ParquetFeatures,
}


def as_numpy(features: Tensor) -> Floats:
    numbers: Floats = features.to("cpu", torch.float32).numpy()
    return numbers
