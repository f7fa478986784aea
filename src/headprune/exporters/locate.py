"""Find the output projection of every attention layer in a graph."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from headprune.errors import UNGATED, HeadpruneError
from headprune.exporters.clean_graph import SCOPE_METADATA
from headprune.manifests.model import LayerHeads

PROJECTIONS = ("o_proj", "out_proj", "c_proj", "dense", "wo")
# `….2.self_attn.o_proj`: a layer number, an attention module, and its output projection.
PATH = re.compile(
    r"(?:^|\.)(?P<layer>\d+)\.(?:\w+\.)*?\w*(?:attn|attention)\w*\.(?:\w+\.)*?"
    rf"(?:{'|'.join(PROJECTIONS)})$",
    re.IGNORECASE,
)
MATRIX = 2  # Axes of a weight.
NODE_SUFFIX = re.compile(r"\.(?:MatMul|Gemm)(?:_\d+)?$")
WEIGHT_SUFFIX = re.compile(r"(?:\.MatMul)?\.weight(?:\.folded)?$")


@dataclass(frozen=True, kw_only=True)
class Projection:
    """The output projection of one layer.

    Attributes:
        layer: Its number.
        node: The MatMul or Gemm; its input 0 holds the heads' outputs side by side.
        weight: The initializer behind input 1.
        head_axis: The axis of `weight` along which heads lie: 0, or 1 if it is transposed on use.
    """

    layer: int
    node: ir.Node
    weight: ir.Value
    head_axis: int


def locate_projections(graph: ir.Graph, layers: Sequence[LayerHeads]) -> tuple[Projection, ...]:
    """One projection per layer, in order.

    Module scopes in the nodes' metadata decide; then, for a layer that they do not name, node
    names; last, names of the weights.

    Raises:
        HeadpruneError: A layer has none, or several.
    """
    candidates = [node for node in graph if is_linear(node)]
    by_source = [by_layer(candidates, paths) for paths in (scope_paths, name_path, weight_path)]
    return tuple(
        pick(layer, heads, [source[layer] for source in by_source])
        for layer, heads in enumerate(layers)
    )


def is_linear(node: ir.Node) -> bool:
    """Whether a node multiplies by an initializer from the right."""
    return node.op_type in ("MatMul", "Gemm") and node.domain == "" and resolve(node) is not None


def resolve(node: ir.Node) -> tuple[ir.Value, int] | None:
    """The initializer behind input 1, and which of its axes is summed over; None without one."""
    value = node.inputs[1]
    transb = node.attributes.get("transB")
    axis = 1 if transb is not None and transb.as_int() else 0
    producer = value.producer() if value is not None else None
    if producer is not None and producer.op_type == "Transpose":
        value = producer.inputs[0]
        axis = 1 - axis
    if value is None or not value.is_initializer():
        return None
    is_matrix = value.shape is not None and value.shape.rank() == MATRIX
    return (value, axis) if is_matrix else None


def by_layer(
    nodes: Sequence[ir.Node], paths_of: Callable[[ir.Node], list[str]]
) -> dict[int, list[ir.Node]]:
    """Nodes whose path says that they are an attention output projection, by layer number."""
    found: dict[int, list[ir.Node]] = defaultdict(list)
    for node in nodes:
        matches = (PATH.search(path) for path in paths_of(node))
        match = next((m for m in matches if m), None)
        if match:
            found[int(match["layer"])].append(node)
    return found


def scope_paths(node: ir.Node) -> list[str]:
    """Module paths in a node's metadata, such as `model.layers.2.self_attn.o_proj`."""
    paths: list[str] = []
    for key in SCOPE_METADATA:
        paths += ast.literal_eval(node.metadata_props.get(key, "[]"))
    return paths


def name_path(node: ir.Node) -> list[str]:
    """The path in a node name such as `/model/layers.2/self_attn/o_proj/MatMul`."""
    return [NODE_SUFFIX.sub("", (node.name or "").replace("/", "."))]


def weight_path(node: ir.Node) -> list[str]:
    """The path in the name of a node's weight."""
    resolved = resolve(node)
    return [WEIGHT_SUFFIX.sub("", resolved[0].name or "")] if resolved else []


def pick(layer: int, heads: LayerHeads, sources: Sequence[list[ir.Node]]) -> Projection:
    """The only fitting node of the first source that has any.

    Raises:
        HeadpruneError: There is none, or more than one.
    """
    rows = heads.query_heads * heads.head_dim
    wrong_size: list[str] = []
    for nodes in sources:
        fitting = []
        for node in nodes:
            weight, axis = resolve(node) or (None, 0)
            if weight is not None and weight.shape is not None and weight.shape[axis] == rows:
                fitting.append(Projection(layer=layer, node=node, weight=weight, head_axis=axis))
            elif weight is not None:
                wrong_size.append(f"{node.name} has a weight of {weight.shape}")
        if len(fitting) > 1:
            found = ", ".join(str(p.node.name) for p in fitting)
            raise HeadpruneError(
                f"layer {layer} has {len(fitting)} attention output projections in the graph "
                f"({found}), expected exactly one",
                hint=UNGATED,
            )
        if fitting:
            return fitting[0]
    detail = f"; {'; '.join(wrong_size)}" if wrong_size else ""
    raise HeadpruneError(
        f"layer {layer}: no attention output projection found in the graph; looked for a MatMul or "
        f"Gemm whose module scope, node name or weight name reads …{layer}.…attn….{{"
        f"{'|'.join(PROJECTIONS)}}}, with {rows} weight rows ({heads.query_heads} heads of "
        f"{heads.head_dim}){detail}",
        hint="export the model with `headprune export --model DIR`, which keeps these names",
    )
