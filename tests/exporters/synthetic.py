"""A hand-made graph of two attention output projections, one after the other.

Its layers differ in their numbers of heads, which no small transformers model does, and it can be
made of any float type. What comes out of the embedding stands for the first layer's heads.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from headprune.exporters.ops import Ops
from headprune.manifests import LayerHeads

LAYERS = (
    LayerHeads(query_heads=4, kv_heads=4, head_dim=2),
    LayerHeads(query_heads=3, kv_heads=3, head_dim=2),
)
VOCABULARY, HIDDEN = 7, 5


def weights(dtype: type = np.float32, scale: float = 1.0) -> list[np.ndarray]:
    """Embedding `[token, 8]` and the projections `[8, 6]`, `[6, 5]`."""
    random = np.random.default_rng(0)
    shapes = ((VOCABULARY, 8), (8, 6), (6, HIDDEN))
    return [
        (random.standard_normal(shape) * (scale if i == 0 else 1)).astype(dtype)
        for i, shape in enumerate(shapes)
    ]


def two_layers(arrays: list[np.ndarray], *, opset: int = 23) -> ir.Model:
    """`input_ids` -> embedding -> projection of layer 0 -> projection of layer 1 -> `logits`."""
    ids = ir.val("input_ids", dtype=ir.DataType.INT64, shape=["batch_size", "sequence_length"])
    mask = ir.val("attention_mask", dtype=ir.DataType.INT64, shape=["batch_size", "total"])
    values = []
    for array, name in zip(arrays, ("embedding", "w0", "w1"), strict=True):
        tensor = ir.tensor(array, name=name)
        values.append(
            ir.Value(
                name=name,
                const_value=tensor,
                type=ir.TensorType(tensor.dtype),
                shape=ir.Shape(array.shape),
            )
        )
    op = Ops("/model/")
    x = op("Gather", values[0], ids, axis=0)
    x = op("MatMul", x, values[1])
    x = op("MatMul", x, values[2])
    dtype = values[0].type
    x.name, x.type = "logits", dtype
    x.shape = ir.Shape(["batch_size", "sequence_length", HIDDEN])
    for layer, node in enumerate(op.nodes[1:]):
        node.name = f"/model/layers.{layer}/self_attn/o_proj/MatMul"
        source = node.inputs[0]
        assert source is not None
        source.type = dtype
    graph = ir.Graph(
        [ids, mask],
        [x],
        nodes=op.nodes,
        initializers=values,
        opset_imports={"": opset},
        name="two_layers",
    )
    return ir.Model(graph, ir_version=10)
