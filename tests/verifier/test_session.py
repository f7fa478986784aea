"""The graph's inputs and outputs, and which provider runs it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx_ir as ir
import pytest

from headprune.errors import HeadpruneError
from headprune.verifier.session import GraphSession, _provider_in_use, provider_order

from .conftest import World
from .tiny import GATE, HEADS, LAYERS

SEQUENCES = [list(range(5, 25)), list(range(40, 47)), [9]]


@pytest.mark.parametrize("name", ["dynamic", "ungated", "static"])
def test_padding_changes_nothing(exported: World, name: str) -> None:
    session = GraphSession(getattr(exported, name) / "model.onnx", "cpu")
    wanted = [range(len(sequence)) for sequence in SEQUENCES]
    together = session.forward(SEQUENCES, wanted)
    for index, sequence in enumerate(SEQUENCES):
        alone = session.forward([sequence], [wanted[index]])
        assert together.logits[index].shape == (len(sequence), 262)
        assert together.logits[index] == pytest.approx(alone.logits[0], abs=1e-4)
        if name == "dynamic":
            assert together.gated[index] == pytest.approx(alone.gated[0], abs=1e-6)
        else:
            assert together.gated[index] is None


def test_only_the_logits_asked_for_come_back(exported: World) -> None:
    session = GraphSession(exported.ungated / "model.onnx", "cpu")
    every = session.forward([SEQUENCES[0]], [range(20)]).logits[0]
    some = session.forward([SEQUENCES[0]], [[3, 19]]).logits[0]
    assert np.array_equal(some, every[[3, 19]])
    assert some.dtype == np.float32


def test_open_gate_is_no_gate(exported: World) -> None:
    as_it_is = GraphSession(exported.dynamic / "model.onnx", "cpu")
    opened = GraphSession(exported.dynamic / "model.onnx", "cpu", open_gate=GATE)
    ungated = GraphSession(exported.ungated / "model.onnx", "cpu")
    assert as_it_is.forward(SEQUENCES, [[0]] * 3).gated[0] > 0
    assert opened.forward(SEQUENCES, [[0]] * 3).gated == [0, 0, 0]
    wanted = [[19], [6], [0]]
    for a, b in zip(
        opened.forward(SEQUENCES, wanted).logits,
        ungated.forward(SEQUENCES, wanted).logits,
        strict=True,
    ):
        assert a == pytest.approx(b, abs=1e-4)


def test_thresholds_open_on_the_side_of_the_score(exported: World) -> None:
    above = replace(GATE, inactive_when="above")
    session = GraphSession(exported.dynamic / "model.onnx", "cpu", open_gate=above)
    (threshold,) = session._thresholds.values()
    assert threshold.shape == (LAYERS, HEADS)
    assert np.all(threshold == math.inf)


@pytest.mark.parametrize("name", ["ungated", "static"])
def test_graph_without_thresholds_cannot_be_opened(exported: World, name: str) -> None:
    with pytest.raises(HeadpruneError, match="its gate cannot be opened") as caught:
        GraphSession(getattr(exported, name) / "model.onnx", "cpu", open_gate=GATE)
    assert caught.value.hint == (
        "headprune export --gate none -o DIR, then verify with --baseline DIR"
    )


def write_graph(path: Path, extra_input: str | None = None, positions: int | None = None) -> Path:
    """A graph that casts its input to logits; with another input, or fewer positions."""
    ids = ir.Value(
        name="input_ids", shape=ir.Shape(["b", "s"]), type=ir.TensorType(ir.DataType.INT64)
    )
    start = ir.Value(name="axes", const_value=ir.tensor(np.array([2], np.int64), name="axes"))
    cast = ir.node("Cast", [ids], attributes={"to": int(ir.DataType.FLOAT)})
    logits = ir.node("Unsqueeze", [cast.outputs[0], start])
    nodes, initializers = [cast, logits], [start]
    out = logits.outputs[0]
    if positions is not None:
        bounds = [
            ir.Value(name=name, const_value=ir.tensor(np.array([value], np.int64), name=name))
            for name, value in (("first", -positions), ("last", 9999), ("axis", 1))
        ]
        initializers += bounds
        nodes.append(ir.node("Slice", [out, *bounds]))
        out = nodes[-1].outputs[0]
    out.name = "logits"
    out.type, out.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(["b", "t", 1])
    inputs = [ids]
    if extra_input:
        inputs.append(
            ir.Value(name=extra_input, shape=ir.Shape([1]), type=ir.TensorType(ir.DataType.INT64))
        )
    graph = ir.Graph(
        inputs, [out], nodes=nodes, initializers=initializers, opset_imports={"": 21}, name="g"
    )
    ir.save(ir.Model(graph, ir_version=10), path)
    return path


def test_inputs_that_nobody_knows_are_refused(tmp_path: Path) -> None:
    path = write_graph(tmp_path / "model.onnx", extra_input="cache_position")
    with pytest.raises(HeadpruneError, match="cannot feed: cache_position"):
        GraphSession(path, "cpu")


def test_graph_with_the_last_logits_only_is_refused(tmp_path: Path) -> None:
    session = GraphSession(write_graph(tmp_path / "model.onnx", positions=1), "cpu")
    assert session.forward([[7]], [[0]]).logits[0] == 7
    with pytest.raises(HeadpruneError, match="gives logits for 1 of 3 positions") as caught:
        session.forward([[7, 8, 9]], [[2]])
    assert caught.value.hint == "export it with logits for every position"


def test_what_is_no_graph_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"not a graph")
    with pytest.raises(HeadpruneError, match=r"ONNX Runtime cannot load model\.onnx"):
        GraphSession(path, "cpu")


def test_provider_order() -> None:
    both = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    assert provider_order("auto", both) == both
    assert provider_order("auto", both[1:]) == both[1:]
    assert provider_order("cuda", both) == both
    assert provider_order("cpu", both) == both[1:]
    with pytest.raises(HeadpruneError, match="has no CUDAExecutionProvider"):
        provider_order("cuda", both[1:])
    with pytest.raises(HeadpruneError, match="Unknown provider 'gpu'"):
        provider_order("gpu", both)


def test_silent_fallback_is_an_error() -> None:
    fallen = SimpleNamespace(get_providers=lambda: ["CPUExecutionProvider"])
    with pytest.raises(HeadpruneError, match="took CPUExecutionProvider instead of CUDA"):
        _provider_in_use(fallen, "cuda")
    assert _provider_in_use(fallen, "auto") == "cpu"
