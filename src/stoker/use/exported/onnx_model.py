"""An ONNX graph as a model: checked before it is loaded, computed by onnxruntime on the CPU.

Invariants: a graph holds everything itself (no external data), uses only operators of the ONNX
standard, and has no loops and no branches. Its input and outputs are those that an export has.
onnxruntime's memory is bounded by a share of this machine's.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from stoker.errors import BadRequest, StokerError
from stoker.host.limits import usable_memory
from stoker.text import one_line, plural, shown
from stoker.use.exported.files import READERS, require_packages

INPUT, OUTPUTS = "images", ("logits", "probabilities")
STANDARD = ("", "ai.onnx")
"""The domain of the standard's operators. Others are extensions, which may do anything."""
MEMORY_SHARE = 0.5
SILENT = 4
"""Log level of onnxruntime at which it prints nothing but crashes."""


class OnnxModel(nn.Module):
    """Computes the logits of images as bytes (count x height x width x 3) by onnxruntime."""

    def __init__(self, data: bytes, image_size: int, classes: int, origin: str) -> None:
        """Raises BadRequest where a package is missing, StokerError for a graph that is wrong."""
        super().__init__()
        require_packages(*READERS)
        if trouble := graph_trouble(data, image_size, classes):
            raise StokerError(f"{origin} is not used: {trouble}")
        self._classes, self._origin = classes, origin
        try:
            self._session = new_session(data)
        except Exception as error:  # onnxruntime raises errors of many kinds
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> StokerError:
        return StokerError(f"{self._origin}: onnxruntime failed: {one_line(str(error))}")

    def forward(self, images: Tensor) -> Tensor:
        """The logits, on the device of the images. Raises StokerError where the graph fails."""
        try:
            (logits,) = self._session.run(OUTPUTS[:1], {INPUT: images.cpu().numpy()})
        except Exception as error:
            raise self._failed(error) from error
        if logits.shape != (len(images), self._classes):
            raise StokerError(
                f"{self._origin} is wrong: for {plural(len(images), 'image')} its output has the "
                f"shape {logits.shape}"
            )
        return torch.from_numpy(logits).to(images.device)

    def get_classifier(self) -> nn.Module:
        """timm's name for the last layer. Raises BadRequest: a graph has no layers."""
        raise BadRequest(
            f"{self._origin} gives no features: name the run, or an export with model.safetensors"
        )


def new_session(data: bytes) -> Any:
    """A session of onnxruntime, on the CPU, with the threads of PyTorch."""
    import onnxruntime

    bound_memory()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = SILENT
    options.add_session_config_entry("session.use_env_allocators", "1")
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


@cache
def bound_memory() -> None:
    """Give all sessions of this process an allocator that refuses to grow without limit: a small
    graph can ask for any amount."""
    import onnxruntime

    kind, place = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, onnxruntime.OrtMemType.DEFAULT
    memory = onnxruntime.OrtMemoryInfo("Cpu", kind, 0, place)
    limit = int(usable_memory() * MEMORY_SHARE)
    onnxruntime.create_and_register_allocator(memory, onnxruntime.OrtArenaCfg(limit, -1, -1, -1))


def graph_trouble(data: bytes, image_size: int, classes: int) -> str:
    """Why a graph is not used; empty where it is one that an export may hold."""
    import onnx

    try:
        model = onnx.load_model_from_string(data)
    except Exception as error:  # the parser raises errors of its own
        return f"it is not an ONNX file ({one_line(str(error)) or type(error).__name__})"
    graph = model.graph
    if len(model.functions) or len(model.training_info) or len(graph.sparse_initializer):
        return "it holds more than a graph and its weights"
    for tensor in tensors_of(graph):
        if tensor.data_location == onnx.TensorProto.EXTERNAL or len(tensor.external_data):
            return f"{shown(tensor.name)} is in another file"
    for node in graph.node:
        if node.domain not in STANDARD:
            return f"it needs the operator {shown(f'{node.domain}.{node.op_type}')}"
        if any(attribute.HasField("g") or len(attribute.graphs) for attribute in node.attribute):
            return f"it has a loop or a branch ({shown(node.op_type)})"
    images, bytes_type = (image_size, image_size, 3), onnx.TensorProto.UINT8
    if [shape_of(value) for value in graph.input] != [(INPUT, bytes_type, images)]:
        return f"its input is not {INPUT}: bytes, count x {image_size} x {image_size} x 3"
    floats = onnx.TensorProto.FLOAT
    if [shape_of(value) for value in graph.output] != [(n, floats, (classes,)) for n in OUTPUTS]:
        return f"its outputs are not {' and '.join(OUTPUTS)}: floats, count x {classes}"
    return ""


def tensors_of(graph: Any) -> Iterator[Any]:
    """All tensors that a graph holds: its weights, and the constants of its nodes."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            yield attribute.t
            yield from attribute.tensors


def shape_of(value: Any) -> tuple[str, int, tuple[int, ...]]:
    """Name, type and shape (without the batch) of an input or output."""
    tensor = value.type.tensor_type
    return value.name, tensor.elem_type, tuple(dim.dim_value for dim in tensor.shape.dim[1:])
