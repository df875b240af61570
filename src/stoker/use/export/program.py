"""A model as a program that runs without Stoker: a file of torch.export, or an ONNX graph.

    images          uint8, count x height x width x 3, RGB          any count, one size
    -> logits, probabilities        float32, count x classes

Invariants: the program takes the bytes of an image as Pillow and NumPy give them, and normalises
them itself: a wrong mean, scale or order of colours cannot happen, and another size or type is an
error instead of a wrong answer. It computes in 32-bit floats. It names no file of this machine.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from stoker.errors import StokerError
from stoker.host.out_of_memory import is_out_of_memory
from stoker.text import one_line
from stoker.train.model.build import Normalise
from stoker.train.model_input import mean_and_scale
from stoker.use.classifier import Classifier
from stoker.use.exported.onnx_model import INPUT, OUTPUTS, graph_trouble

CPU = torch.device("cpu")
BATCH = Dim("batch", min=1)
LARGEST_GRAPH = 2**31 - 1
"""Bytes of an ONNX file: more does not fit into one, and ours are one file."""


class ImageProgram(nn.Module):
    """Images as bytes -> logits and probabilities."""

    def __init__(self, model: nn.Module, normalise: Normalise) -> None:
        super().__init__()
        self.mean: Tensor
        self.scale: Tensor
        self.model = model
        mean, scale = mean_and_scale(normalise, CPU)
        self.register_buffer("mean", mean)
        self.register_buffer("scale", scale)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        pixels = (images.float() - self.mean) * self.scale
        logits = self.model(pixels.permute(0, 3, 1, 2).contiguous()).float()
        return logits, logits.softmax(1)


def traced(classifier: Classifier) -> ExportedProgram:
    """The program of a classifier on the CPU. Raises StokerError where torch.export cannot trace
    the model for any number of images."""
    # A copy in the plain layout: torch.export complains about weights in channels-last.
    model = copy.deepcopy(classifier.model).to(memory_format=torch.contiguous_format)
    program = ImageProgram(model, classifier.preprocessing.normalise).eval()
    size = classifier.preprocessing.image_size
    images = torch.zeros(2, size, size, 3, dtype=torch.uint8)
    with reported(classifier, "torch"):
        traced = torch.export.export(program, (images,), dynamic_shapes={INPUT: {0: BATCH}})
    for node in traced.graph.nodes:
        node.meta.pop("stack_trace", None)  # the paths of this machine
    return traced


def write_program(program: ExportedProgram, path: Path, classifier: Classifier) -> None:
    """Write a file of torch.export. Raises StokerError where that fails, OSError for the disk."""
    with reported(classifier, "torch"):
        torch.export.save(program, path)


def write_graph(program: ExportedProgram, path: Path, classifier: Classifier) -> None:
    """Write an ONNX file. Raises StokerError for a model that has no such graph, OSError for the
    disk."""
    with reported(classifier, "onnx"):
        made = torch.onnx.export(
            program,
            input_names=[INPUT],
            output_names=list(OUTPUTS),
            dynamic_shapes={INPUT: {0: BATCH}},
            verbose=False,
        )
        assert made is not None
        graph = made.model_proto
        clear_notes(graph)
        if graph.ByteSize() > LARGEST_GRAPH:
            raise ValueError("it is larger than 2 GB, the most that an ONNX file can hold")
        data = graph.SerializeToString()
        size, classes = classifier.preprocessing.image_size, len(classifier.classes)
        if trouble := graph_trouble(data, size, classes):
            raise ValueError(trouble)
    path.write_bytes(data)


def clear_notes(model: Any) -> None:
    """Remove the notes of the exporter, which hold names and lines of source files."""
    graph = model.graph
    parts = (graph.node, graph.input, graph.output, graph.initializer, graph.value_info)
    for part in (model, graph, *(item for items in parts for item in items)):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")


@contextmanager
def reported(classifier: Classifier, format: str) -> Iterator[None]:
    """Turn any error of an exporter into a StokerError of one line, and silence its warnings."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            yield
    except Exception as error:  # exporters raise errors of many kinds
        if isinstance(error, StokerError | OSError) or is_out_of_memory(error):
            raise
        reason = one_line(str(error)) or type(error).__name__
        others = "choose other formats by --to"
        raise StokerError(
            f"{classifier.recipe.model} cannot be exported to {format}: {reason}; {others}"
        ) from error
    finally:
        logging.disable(before)
