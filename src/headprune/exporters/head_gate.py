"""Build `ai.headprune::HeadGate`, the model-local ONNX function that switches heads off.

It is made of standard operators, so that it runs under any execution provider. All scores are
computed in float32, whatever the model's data type.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from headprune.exporters import names
from headprune.exporters.ops import Ops
from headprune.exporters.score_table import DynamicScore

SMALLEST_NORMAL = float(np.finfo(np.float32).tiny)


def build_head_gate(score: DynamicScore, *, has_state: bool, opset: int) -> ir.Function:
    """The function for one score.

    Its inputs are

    - `x`: outputs of the layer's heads side by side, `[batch, sequence, head * head_dim]` or
      `[batch * sequence, head * head_dim]`, any float type;
    - `threshold`: float32 `[head]`;
    - `tokens`: bool `[batch, sequence]`, the new tokens that count; for a score of each token, the
      real ones;
    - `count`, for a score per sequence: float32 `[batch, 1, 1]`, how many tokens count, those of
      the past included;
    - `past_sum`, if it has state: float32 `[batch or 1, 1, head]`.

    Its outputs are

    - `gated`: `x` with the outputs of inactive heads set to 0;
    - `inactive`: float32 `[batch, 1, head]`, for how many of `tokens` the head was inactive; for a
      score per sequence, 0 or 1;
    - `present_sum`, if it has state: float32 `[batch, 1, head]`.

    Args:
        score: What to compute.
        has_state: Whether sums over earlier tokens come in and go out.
        opset: Version of the standard operators.
    """
    op = Ops()
    x, threshold, tokens, count, past_sum = (
        ir.Value(name=name) for name in ("x", "threshold", "tokens", "count", "past_sum")
    )
    inputs, state = [x, threshold, tokens], []
    heads = split_heads(op, x, threshold, tokens)
    statistic = op("ReduceL2", op.cast(heads, ir.DataType.FLOAT), op.ints([-1]), keepdims=0)
    if score.granularity == "sequence":
        inputs.append(count)
        total = sum_over_tokens(op, statistic, tokens)
        if has_state:
            inputs.append(past_sum)
            total = op("Add", total, past_sum)
            state.append(total)
        statistic = op("Div", total, count)
    off = op("Less", statistic, limit(op, score, statistic, threshold))
    gated = silence(op, x, heads, off)
    inactive = op.cast(off, ir.DataType.FLOAT)
    if score.granularity == "token":
        inactive = op("MatMul", as_row(op, tokens), inactive)
    outputs = [gated, inactive, *state]
    for value, name in zip(outputs, ("gated", "inactive", "present_sum"), strict=False):
        value.name = name
    graph = ir.Graph(
        inputs, outputs, nodes=op.nodes, opset_imports={"": opset}, name=names.FUNCTION
    )
    return ir.Function(names.DOMAIN, names.FUNCTION, graph=graph, attributes=[])


def split_heads(op: Ops, x: ir.Value, threshold: ir.Value, tokens: ir.Value) -> ir.Value:
    """`x` as `[batch, sequence, head, head_dim]`, also where a Gemm has flattened its rows."""
    shape = op("Concat", op("Shape", tokens), op("Shape", threshold), op.ints([-1]), axis=0)
    return op("Reshape", x, shape)


def sum_over_tokens(op: Ops, statistic: ir.Value, tokens: ir.Value) -> ir.Value:
    """Sum of `[batch, sequence, head]` over the tokens that count: `[batch, 1, head]`.

    The others are left out, not multiplied by 0: theirs may be NaN.
    """
    counted = op("Unsqueeze", tokens, op.ints([-1]))
    return op("ReduceSum", op("Where", counted, statistic, op.float(0)), op.ints([1]), keepdims=1)


def limit(op: Ops, score: DynamicScore, statistic: ir.Value, threshold: ir.Value) -> ir.Value:
    """What the statistic is compared with: the threshold, times the layer's mean for `_ln`.

    X / mean < threshold is X < threshold * mean, save that a layer whose heads are all 0 counts as
    0, and that an infinite threshold stays infinite: hence the smallest positive mean.
    """
    if not score.layer_mean:
        return threshold
    mean = op("ReduceMean", statistic, op.ints([-1]), keepdims=1)
    return op("Mul", threshold, op("Max", mean, op.float(SMALLEST_NORMAL)))


def silence(op: Ops, x: ir.Value, heads: ir.Value, off: ir.Value) -> ir.Value:
    """`x` with heads multiplied by 0 where `off` holds: Less is false for NaN, which keeps a head.

    Args:
        op: Collects the nodes.
        x: Outputs of the heads as they came in.
        heads: The same as `[batch, sequence, head, head_dim]`.
        off: `[batch, sequence or 1, head]`.
    """
    keep = op("Unsqueeze", op("CastLike", op("Not", off), x), op.ints([-1]))
    return op("Reshape", op("Mul", heads, keep), op("Shape", x))


def as_row(op: Ops, tokens: ir.Value) -> ir.Value:
    """Bool `[batch, sequence]` as float32 `[batch, 1, sequence]`, to count by matrix product."""
    return op("Unsqueeze", op.cast(tokens, ir.DataType.FLOAT), op.ints([1]))
