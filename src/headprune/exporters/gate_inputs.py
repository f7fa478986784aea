"""Add the gate's inputs to a graph: the thresholds, the state, and which tokens count."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from headprune.errors import HeadpruneError
from headprune.exporters import names
from headprune.exporters.ops import Ops
from headprune.exporters.score_table import DynamicScore
from headprune.manifests.model import Gate, LayerHeads

END = np.iinfo(np.int64).max


@dataclass(frozen=True, kw_only=True)
class GateInputs:
    """Values that every layer's HeadGate reads.

    Attributes:
        threshold: float32 `[layer, head]`.
        tokens: bool `[batch, sequence]`, the new tokens that a decision is drawn from.
        real_count: float32 `[batch]`, the new real tokens.
        count: float32 `[batch, 1, 1]`, the tokens that a sequence decision is drawn from, those of
            the past included; None for a score of each token.
        past_sum: float32 `[batch or 1, layer, head]`; None without state.
        present_count: float32 `[batch]`; None without state.
    """

    threshold: ir.Value
    tokens: ir.Value
    real_count: ir.Value
    count: ir.Value | None = None
    past_sum: ir.Value | None = None
    present_count: ir.Value | None = None


def add_gate_inputs(
    graph: ir.Graph, gate: Gate, score: DynamicScore, layers: Sequence[LayerHeads]
) -> GateInputs:
    """Add inputs with defaults to `graph`, and the nodes that work out which tokens count.

    Raises:
        HeadpruneError: The graph has no `input_ids` or no `attention_mask`.
    """
    table = threshold_table(gate, layers)
    threshold = add_default_input(graph, names.THRESHOLD, table, list(table.shape))
    op = Ops("headprune/")
    real = real_tokens(
        op, graph_input(graph, names.INPUT_IDS), graph_input(graph, names.ATTENTION_MASK)
    )
    tokens = last_of(op, real) if score.tokens == "last" else real
    real_count = count_tokens(op, real)
    count = past_sum = present_count = None
    if score.granularity == "sequence":
        total = real_count if tokens is real else count_tokens(op, tokens)
        if gate.has_state:
            zeros = np.zeros((1, *table.shape), np.float32)
            past_sum = add_default_input(graph, names.PAST_SUM, zeros, [names.BATCH, *table.shape])
            past_count = add_default_input(graph, names.PAST_COUNT, zeros[:, 0, 0], [names.BATCH])
            total = present_count = op("Add", total, past_count)
        count = op("Unsqueeze", total, op.ints([1, 2]))
    graph.insert_before(graph[0], op.nodes)
    return GateInputs(
        threshold=threshold,
        tokens=tokens,
        real_count=real_count,
        count=count,
        past_sum=past_sum,
        present_count=present_count,
    )


def threshold_table(gate: Gate, layers: Sequence[LayerHeads]) -> NDArray[np.float32]:
    """The default thresholds, `[layer, head]`.

    +inf switches the gate's own heads off in every forward. Where a layer has fewer heads than the
    widest, -inf fills the row.
    """
    widest = max(layer.query_heads for layer in layers)
    table = np.full((len(layers), widest), -math.inf, np.float32)
    for row, layer in zip(table, layers, strict=True):
        row[: layer.query_heads] = gate.threshold
    for layer_index, head in gate.heads:
        table[layer_index, head] = math.inf
    return table


def add_default_input(
    graph: ir.Graph, name: str, default: NDArray[np.float32], shape: Sequence[int | str]
) -> ir.Value:
    """An input that a run may leave out: ONNX's overridable initializer.

    A default of batch 1 under a symbolic batch axis broadcasts.
    """
    value = ir.Value(
        name=name,
        shape=ir.Shape(shape),
        type=ir.TensorType(ir.DataType.FLOAT),
        const_value=ir.tensor(default, name=name),
    )
    graph.inputs.append(value)
    graph.register_initializer(value)
    return value


def graph_input(graph: ir.Graph, name: str) -> ir.Value:
    """The graph's input of that name."""
    for value in graph.inputs:
        if value.name == name:
            return value
    others = ", ".join(str(value.name) for value in graph.inputs[:4])
    raise HeadpruneError(
        f"the graph has no input {name}; it has {others}, …",
        hint="export it with the input names of optimum, or from the model: --model DIR",
    )


def real_tokens(op: Ops, input_ids: ir.Value, attention_mask: ir.Value) -> ir.Value:
    """Which new tokens are no padding, bool `[batch, sequence]`.

    `attention_mask` covers past and new tokens; its last columns are the new ones.
    """
    start = op("Neg", op("Shape", input_ids, start=1, end=2))
    new = op("Slice", attention_mask, start, op.ints([END]), op.ints([1]))
    return op.cast(new, ir.DataType.BOOL)


def last_of(op: Ops, real: ir.Value) -> ir.Value:
    """The last real token of each row alone, bool `[batch, sequence]`."""
    remaining = op("CumSum", op.cast(real, ir.DataType.INT32), op.int(1), reverse=1)
    one = op.cast(op.int(1), ir.DataType.INT32)
    return op("And", real, op("Equal", remaining, one))


def count_tokens(op: Ops, tokens: ir.Value) -> ir.Value:
    """How many tokens of each row hold, float32 `[batch]`."""
    return op("ReduceSum", op.cast(tokens, ir.DataType.FLOAT), op.ints([1]), keepdims=0)
