"""The pass that puts a dynamic gate before every output projection of a graph."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from headprune.errors import UNGATED, HeadpruneError
from headprune.exporters import names
from headprune.exporters.gate_inputs import GateInputs, add_gate_inputs
from headprune.exporters.gate_outputs import GatedLayer, add_gate_outputs
from headprune.exporters.head_gate import build_head_gate
from headprune.exporters.locate import Projection, locate_projections
from headprune.exporters.ops import Ops
from headprune.exporters.score_table import DYNAMIC_SCORES
from headprune.manifests.model import Gate, LayerHeads

OLDEST_OPSET = 18  # ReduceL2 and ReduceMean take their axes as an input from here on.


def insert_gate(model: ir.Model, gate: Gate, layers: Sequence[LayerHeads]) -> None:
    """Gate every layer of `model`, in place.

    Args:
        model: An ungated graph.
        gate: A dynamic gate, resolved.
        layers: Attention geometry.

    Raises:
        HeadpruneError: A projection or an input is missing, or the opset is too old.
    """
    graph = model.graph
    opset = model.opset_imports.get("", 0)
    if opset < OLDEST_OPSET:
        raise HeadpruneError(
            f"the graph is of opset {opset}, expected {OLDEST_OPSET} or later",
            hint="export it with a newer opset, or from the model: headprune export --model DIR",
        )
    score = DYNAMIC_SCORES[gate.score]
    projections = locate_projections(graph, layers)
    function = build_head_gate(score, has_state=gate.has_state, opset=opset)
    model.functions[function.identifier()] = function
    model.opset_imports[names.DOMAIN] = 1
    gate_inputs = add_gate_inputs(graph, gate, score, layers)
    gated = [gate_layer(graph, projection, gate_inputs, layers) for projection in projections]
    add_gate_outputs(graph, gate_inputs, gated)


def gate_layer(
    graph: ir.Graph,
    projection: Projection,
    gate_inputs: GateInputs,
    layers: Sequence[LayerHeads],
) -> GatedLayer:
    """Call HeadGate on input 0 of one projection."""
    heads = layers[projection.layer].query_heads
    widest = max(layer.query_heads for layer in layers)
    op = Ops(f"headprune/layers.{projection.layer}/")
    x = projection.node.inputs[0]
    if x is None:
        raise HeadpruneError(
            f"layer {projection.layer}: {projection.node.name} has no input 0", hint=UNGATED
        )
    threshold = op("Gather", gate_inputs.threshold, op.int(projection.layer), axis=0)
    arguments = [x, narrow(op, threshold, heads, widest), gate_inputs.tokens]
    if gate_inputs.count is not None:
        arguments.append(gate_inputs.count)
    if gate_inputs.past_sum is not None:
        past = op("Gather", gate_inputs.past_sum, op.ints([projection.layer]), axis=1)
        arguments.append(narrow(op, past, heads, widest))
    has_state = gate_inputs.past_sum is not None
    gated, inactive, *state = op.call(
        names.DOMAIN, names.FUNCTION, arguments, 3 if has_state else 2
    )
    gated.type, gated.shape = x.type, x.shape
    projection.node.replace_input_with(0, gated)
    graph.insert_before(projection.node, op.nodes)
    return GatedLayer(heads=heads, inactive=inactive, present_sum=state[0] if state else None)


def narrow(op: Ops, table: ir.Value, heads: int, widest: int) -> ir.Value:
    """The first `heads` entries of the last axis, where a layer has fewer than the widest."""
    if heads == widest:
        return table
    return op("Slice", table, op.ints([0]), op.ints([heads]), op.ints([-1]))
