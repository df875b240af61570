"""A graph that reaches for other files, other code or all memory is not used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from stoker.errors import BadRequest, StokerError
from stoker.use.exported import onnx_model
from stoker.use.exported.onnx_model import OnnxModel, graph_trouble

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
helper, kinds = onnx.helper, onnx.TensorProto

SIDE, CLASSES = 4, 3
COUNT = SIDE * SIDE * 3
ORIGIN = "out/model.onnx"


def linear_graph(*more: Any, weights: Any = None, domain: str = "") -> Any:
    """A small graph as an export has it: bytes -> logits and probabilities."""
    nodes = [
        helper.make_node("Cast", ["images"], ["floats"], to=kinds.FLOAT),
        helper.make_node("Flatten", ["floats"], ["flat"]),
        helper.make_node("MatMul", ["flat", "weights"], ["logits"], domain=domain),
        helper.make_node("Softmax", ["logits"], ["probabilities"], axis=1),
        *more,
    ]
    numbers = [float(n % 7) / 1000 for n in range(COUNT * CLASSES)]
    own = helper.make_tensor("weights", kinds.FLOAT, [COUNT, CLASSES], numbers)
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("images", kinds.UINT8, ["batch", SIDE, SIDE, 3])],
        [
            helper.make_tensor_value_info(name, kinds.FLOAT, ["batch", CLASSES])
            for name in ("logits", "probabilities")
        ],
        [own if weights is None else weights],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def external(model: Any) -> None:
    weights = model.graph.initializer[0]
    weights.ClearField("float_data")
    weights.data_location = kinds.EXTERNAL
    weights.external_data.add(key="location", value="../../../etc/passwd")


def hidden_external(model: Any) -> None:
    constant = helper.make_node("Constant", [], ["secret"], value=model.graph.initializer[0])
    tensor = constant.attribute[0].t
    tensor.external_data.add(key="location", value="secret")
    model.graph.node.append(constant)


def loop(model: Any) -> None:
    body = helper.make_graph([], "body", [], [])
    model.graph.node.append(helper.make_node("Loop", ["", ""], ["x"], body=body))


def function(model: Any) -> None:
    made = helper.make_function("own", "f", ["x"], ["y"], [], [helper.make_opsetid("", 20)])
    model.functions.append(made)


def foreign(model: Any) -> None:
    model.graph.node.append(helper.make_node("Run", ["logits"], ["x"], domain="com.microsoft"))


def two_inputs(model: Any) -> None:
    value = helper.make_tensor_value_info("more", kinds.UINT8, ["batch"])
    model.graph.input.append(value)


def floats_in(model: Any) -> None:
    model.graph.input[0].type.tensor_type.elem_type = kinds.FLOAT


def other_size(model: Any) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 5


def other_outputs(model: Any) -> None:
    del model.graph.output[1]


def sparse(model: Any) -> None:
    model.graph.sparse_initializer.add()


WRONG = [
    *(external, hidden_external, loop, function, foreign),
    *(two_inputs, floats_in, other_size, other_outputs, sparse),
]


def test_a_right_graph_computes() -> None:
    model = OnnxModel(linear_graph().SerializeToString(), SIDE, CLASSES, ORIGIN)
    images = torch.full((2, SIDE, SIDE, 3), 255, dtype=torch.uint8)
    logits = model(images)
    assert (logits.shape, logits.dtype) == ((2, CLASSES), torch.float32)
    with pytest.raises(BadRequest, match="no features"):
        model.get_classifier()


@pytest.mark.parametrize("change", WRONG, ids=lambda change: change.__name__)
def test_a_wrong_graph_is_not_loaded(
    change: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = linear_graph()
    change(model)
    monkeypatch.setattr(onnx_model, "new_session", None)  # it must not come to this
    with pytest.raises(StokerError, match="is not used"):
        OnnxModel(model.SerializeToString(), SIDE, CLASSES, ORIGIN)


@pytest.mark.parametrize("data", [b"", b"\x80\x04K\x01.", b"\xff" * 1000, b"\x0a" * 100_000])
def test_what_is_no_graph(data: bytes) -> None:
    assert graph_trouble(data, SIDE, CLASSES)


def test_an_unknown_operator_is_one_line() -> None:
    model = linear_graph(helper.make_node("NoSuchOperator", ["logits"], ["x"]))
    with pytest.raises(StokerError, match="onnxruntime failed"):
        OnnxModel(model.SerializeToString(), SIDE, CLASSES, ORIGIN)


def greedy_graph() -> Any:
    """A small graph that asks for terabytes for a white image, and for nothing for a black one."""
    model = linear_graph()
    del model.graph.node[3:]
    model.graph.node[2].output[0] = "plain"
    steps = [
        ("ReduceMax", ["plain"], "top", {"keepdims": 0}),
        ("Ceil", ["top"], "whole", {}),
        ("Cast", ["whole"], "number", {"to": kinds.INT64}),
        ("Mul", ["number", "factor"], "size", {}),
        ("Unsqueeze", ["size", "axis"], "shape", {}),
        ("ConstantOfShape", ["shape"], "zeros", {}),
        ("ReduceSum", ["zeros"], "nothing", {"keepdims": 0}),
        ("Add", ["plain", "nothing"], "logits", {}),
        ("Softmax", ["logits"], "probabilities", {"axis": 1}),
    ]
    for name, inputs, output, options in steps:
        model.graph.node.append(helper.make_node(name, inputs, [output], **options))
    model.graph.initializer.append(helper.make_tensor("factor", kinds.INT64, [], [1 << 40]))
    model.graph.initializer.append(helper.make_tensor("axis", kinds.INT64, [1], [0]))
    return model


def test_memory_is_bounded() -> None:
    model = OnnxModel(greedy_graph().SerializeToString(), SIDE, CLASSES, ORIGIN)
    assert model(torch.zeros(1, SIDE, SIDE, 3, dtype=torch.uint8)).shape == (1, CLASSES)
    with pytest.raises(StokerError, match="onnxruntime failed"):
        model(torch.full((1, SIDE, SIDE, 3), 255, dtype=torch.uint8))


def test_an_answer_of_another_shape_is_refused() -> None:
    model = OnnxModel(linear_graph().SerializeToString(), SIDE, CLASSES, ORIGIN)
    model._classes = 4
    with pytest.raises(StokerError, match="shape"):
        model(torch.zeros(1, SIDE, SIDE, 3, dtype=torch.uint8))


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("stoker.use.exported.files.find_spec", lambda name: None)
    with pytest.raises(BadRequest, match="pip install onnx"):
        OnnxModel(b"", SIDE, CLASSES, ORIGIN)
