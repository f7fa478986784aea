"""Add the gate's outputs to a graph: the share of tokens that kept each head, and the state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from headprune.exporters import names
from headprune.exporters.gate_inputs import GateInputs
from headprune.exporters.ops import Ops


@dataclass(frozen=True, kw_only=True)
class GatedLayer:
    """What one layer's HeadGate gives besides the gated outputs.

    Attributes:
        heads: Query heads of the layer.
        inactive: `[batch, 1, head]`, see `build_head_gate`.
        present_sum: `[batch, 1, head]`; None without state.
    """

    heads: int
    inactive: ir.Value
    present_sum: ir.Value | None


def add_gate_outputs(graph: ir.Graph, gate_inputs: GateInputs, gated: Sequence[GatedLayer]) -> None:
    """Add `headprune.active` and, if there is state, `headprune.present.sum` and `.count`.

    A row without any real token counts as gated nowhere: its `active` is 1.
    """
    op = Ops("headprune/outputs/")
    inactive = stack(op, gated, [layer.inactive for layer in gated])
    if gate_inputs.count is None:
        at_least_one = op("Max", gate_inputs.real_count, op.float(1))
        inactive = op("Div", inactive, op("Unsqueeze", at_least_one, op.ints([1, 2])))
    widest = max(layer.heads for layer in gated)
    shape: list[int | str] = [names.BATCH, len(gated), widest]
    outputs = [named(op("Sub", op.float(1), inactive), names.ACTIVE, shape)]
    sums = [layer.present_sum for layer in gated if layer.present_sum is not None]
    if sums:
        outputs.append(named(stack(op, gated, sums), names.PRESENT_SUM, shape))
    if gate_inputs.present_count is not None:
        count = op("Identity", gate_inputs.present_count)
        outputs.append(named(count, names.PRESENT_COUNT, [names.BATCH]))
    graph.extend(op.nodes)
    graph.outputs.extend(outputs)


def stack(op: Ops, gated: Sequence[GatedLayer], values: Sequence[ir.Value]) -> ir.Value:
    """`[batch, 1, head]` of each layer as `[batch, layer, head]`, narrower layers padded with 0."""
    widest = max(layer.heads for layer in gated)
    rows = [
        value
        if layer.heads == widest
        else op("Pad", value, op.ints([0, 0, 0, 0, 0, widest - layer.heads]))
        for layer, value in zip(gated, values, strict=True)
    ]
    return op("Concat", *rows, axis=1)


def named(value: ir.Value, name: str, shape: Sequence[int | str]) -> ir.Value:
    """Turn a value into a float32 graph output."""
    value.name = name
    value.type = ir.TensorType(ir.DataType.FLOAT)
    value.shape = ir.Shape(shape)
    return value
