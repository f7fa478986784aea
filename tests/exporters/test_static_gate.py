"""Folding heads into the weights: the same as switching them off, at no cost."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest

from headprune.errors import HeadpruneError
from headprune.exporters import ExportResult
from headprune.exporters.fold_static import fold_static
from headprune.exporters.ops import Ops
from headprune.manifests import Gate

from .batches import decode_steps, padded_batch
from .conftest import Family, gate_of, runner_of
from .synthetic import LAYERS, two_layers, weights

HEADS = ((0, 1), (0, 3), (1, 2))
Gated = Callable[[Family, Gate], ExportResult]


def test_equals_a_dynamic_gate_that_is_always_off(family: Family, gated: Gated) -> None:
    static = gated(family, gate_of("awft", mode="static", heads=HEADS))
    table = np.full((len(family.heads), max(family.heads)), -np.inf, np.float32)
    table[tuple(zip(*HEADS, strict=True))] = np.inf
    folded = runner_of(static)
    dynamic = runner_of(gated(family, gate_of("thon_ln")), thresholds=table)
    oracle = family.oracle(score="thon", thresholds=table)
    batches = [padded_batch("left"), *decode_steps(batch=3, steps=2)]
    for ids, mask in batches:
        logits, active = folded.run(ids, mask)
        assert active is None
        real = mask.astype(bool)
        for expected in (dynamic.run(ids, mask)[0], oracle.run(ids, mask)[0]):
            np.testing.assert_allclose(logits[real], expected[real], rtol=0, atol=2e-4)


def test_costs_nothing_and_touches_nothing_else(family: Family, gated: Gated) -> None:
    static = gated(family, gate_of("awft", mode="static", heads=HEADS))
    assert static.gated_layers == (0, 1)
    before = ir.load(family.baseline.directory / "model.onnx").graph
    after = ir.load(static.directory / "model.onnx").graph
    assert [node.op_type for node in before] == [node.op_type for node in after]
    changed = [
        name
        for name, value in before.initializers.items()
        if tensor_bytes(value) != tensor_bytes(after.initializers[name])
    ]
    assert [name.split(".")[2] for name in changed] == ["0", "1"]
    assert sorted(p.name for p in static.directory.iterdir()) == sorted(
        p.name for p in family.baseline.directory.iterdir()
    )


def tensor_bytes(value: ir.Value) -> bytes:
    assert value.const_value is not None
    return value.const_value.tobytes()


def test_no_heads_is_refused() -> None:
    with pytest.raises(HeadpruneError, match="switches no head off"):
        fold_static(two_layers(weights()), gate_of("awft", mode="static"), LAYERS)


def test_shared_weight_is_refused() -> None:
    model = two_layers(weights())
    op = Ops("other/")
    op("Identity", model.graph.initializers["w0"])
    model.graph.extend(op.nodes)
    with pytest.raises(HeadpruneError, match=r"layer 0: .* w0 is shared by 2"):
        fold_static(model, gate_of("awft", mode="static", heads=[(0, 0)]), LAYERS)


def test_integer_weight_is_refused() -> None:
    model = two_layers([array.astype(np.int32) for array in weights()])
    with pytest.raises(HeadpruneError, match=r"layer 1: .* w1 is INT32, expected a float type"):
        fold_static(model, gate_of("awft", mode="static", heads=[(1, 0)]), LAYERS)


def test_weight_that_a_run_may_replace_is_refused() -> None:
    model = two_layers(weights())
    model.graph.inputs.append(model.graph.initializers["w0"])
    with pytest.raises(HeadpruneError, match=r"layer 0: .* w0 is an input of the graph"):
        fold_static(model, gate_of("awft", mode="static", heads=[(0, 0)]), LAYERS)


def test_transposed_weight() -> None:
    arrays = weights()
    model = two_layers([arrays[0], arrays[1].T.copy(), arrays[2]])
    op = Ops("t/")
    transposed = op("Transpose", model.graph.initializers["w0"], perm=(1, 0))
    model.graph[1].replace_input_with(1, transposed)
    model.graph.insert_before(model.graph[0], op.nodes)
    fold_static(model, gate_of("awft", mode="static", heads=[(0, 2)]), LAYERS)
    expected = arrays[1].copy()
    expected[4:6] = 0
    tensor = model.graph.initializers["w0"].const_value
    assert tensor is not None
    np.testing.assert_array_equal(tensor.numpy(), expected.T)
