"""Write runs of ONNX nodes as expressions, with stable names."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

Attribute = int | float | str | Sequence[int]


class Ops:
    """Collects the nodes of a piece of graph in the order in which they were made.

    Args:
        prefix: Put in front of the names of nodes and values, so that pieces do not clash.
    """

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.nodes: list[ir.Node] = []

    def __call__(self, op_type: str, *inputs: ir.Value, **attributes: Attribute) -> ir.Value:
        """Add a standard operator with one output, and return that output."""
        return self.call("", op_type, inputs, 1, **attributes)[0]

    def call(
        self,
        domain: str,
        op_type: str,
        inputs: Sequence[ir.Value],
        outputs: int,
        **attributes: Attribute,
    ) -> Sequence[ir.Value]:
        """Add a node of any domain, and return its outputs."""
        name = f"{self.prefix}{op_type}_{len(self.nodes)}"
        values = [ir.Value(name=f"{name}_{i}" if outputs > 1 else name) for i in range(outputs)]
        node = ir.node(op_type, inputs, attributes, domain=domain, outputs=values, name=name)
        self.nodes.append(node)
        return node.outputs

    def ints(self, values: Sequence[int]) -> ir.Value:
        """A constant vector of int64."""
        return self("Constant", value_ints=tuple(values))

    def int(self, value: int) -> ir.Value:
        """A constant int64."""
        return self("Constant", value_int=value)

    def float(self, value: float) -> ir.Value:
        """A constant float32."""
        return self("Constant", value_float=float(np.float32(value)))

    def cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """`value` as another type."""
        return self("Cast", value, to=dtype.value)
