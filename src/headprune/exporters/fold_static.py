"""Static gates: heads that are always off, folded into the output projection's weight."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from headprune.errors import UNGATED, HeadpruneError
from headprune.exporters.locate import Projection, locate_projections
from headprune.manifests.model import Gate, LayerHeads

FLOAT_TYPES = (
    ir.DataType.FLOAT,
    ir.DataType.FLOAT16,
    ir.DataType.BFLOAT16,
    ir.DataType.DOUBLE,
)


def fold_static(model: ir.Model, gate: Gate, layers: Sequence[LayerHeads]) -> None:
    """Zero the weight rows that the gate's heads are multiplied with, in place.

    Args:
        model: An ungated graph.
        gate: A static gate; its heads count, whichever score chose them.
        layers: Attention geometry.

    Raises:
        HeadpruneError: The gate names no head, or a weight cannot be changed for one layer alone.
    """
    if not gate.heads:
        raise HeadpruneError(
            f"the static gate on {gate.score} switches no head off: nothing to fold",
            hint="choose a larger --fraction or a smaller share, or --gate dynamic",
        )
    projections = locate_projections(model.graph, layers)
    for layer in sorted({layer for layer, _ in gate.heads}):
        heads = [head for gated_layer, head in gate.heads if gated_layer == layer]
        zero_heads(projections[layer], heads, layers[layer].head_dim)


def zero_heads(projection: Projection, heads: Sequence[int], head_dim: int) -> None:
    """Zero the slices of `heads` in one projection's weight.

    Raises:
        HeadpruneError: The weight is not a float constant, or something else uses it too.
    """
    weight = projection.weight
    where = f"layer {projection.layer}: the output projection's weight {weight.name}"
    if weight.const_value is None or weight.is_graph_input():
        raise HeadpruneError(f"{where} is an input of the graph, expected a constant", hint=UNGATED)
    if weight.dtype not in FLOAT_TYPES:
        raise HeadpruneError(
            f"{where} is {weight.dtype}, expected a float type",
            hint="gate the graph before quantising it, or use --gate dynamic",
        )
    operand = projection.node.inputs[1]  # The weight, or its transpose.
    users = max(len(value.uses()) for value in (weight, operand) if value is not None)
    if users != 1 or weight.is_graph_output():
        raise HeadpruneError(
            f"{where} is shared by {users} nodes or outputs, expected one",
            hint="use --gate dynamic, which leaves the weights alone",
        )
    array = np.array(weight.const_value.numpy())
    view = array if projection.head_axis == 0 else array.T
    for head in heads:
        view[head * head_dim : (head + 1) * head_dim] = 0
    weight.const_value = ir.Tensor(array, dtype=weight.dtype, name=weight.name)
