"""Make an exported graph the same on every machine: no stack traces, no paths, plain names."""

from __future__ import annotations

import ast

import onnx_ir as ir

from headprune.exporters import names

SCOPE_METADATA = ("pkg.torch.onnx.name_scopes", "pkg.onnxscript.name_scopes")
FOLDED_FROM = "pkg.onnxscript.optimizer.folded_from"
CACHE_LENGTH_AXIS = 2


def clean_graph(model: ir.Model, *, prefix: str) -> None:
    """Strip metadata down to the module scopes, and give parameters and axes their usual names.

    Args:
        model: Changed in place.
        prefix: What the exporter's wrapper put in front of parameter names.
    """
    model.metadata_props.clear()
    model.doc_string = None
    model.graph.metadata_props.clear()
    model.graph.doc_string = None
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        node.doc_string = None
        keep_known(node.metadata_props)
        for output in node.outputs:
            keep_known(output.metadata_props)
    for value in model.graph.inputs:
        keep_known(value.metadata_props)
    name_parameters(model.graph, prefix)
    name_lengths(model.graph)


def name_parameters(graph: ir.Graph, prefix: str) -> None:
    """Name initializers after the model's parameters, also those computed from one ahead of time.

    The exporter stores a linear layer's weight transposed, as `val_90` or so.
    """
    taken = set(graph.initializers)
    for value in list(graph.initializers.values()):
        origins = ast.literal_eval(value.metadata_props.get(FOLDED_FROM, "[]"))
        keep_known(value.metadata_props)
        name = value.name or ""
        if name.startswith(prefix):
            name = name.removeprefix(prefix)
        elif len(origins) == 1 and origins[0].startswith(prefix):
            name = origins[0].removeprefix(prefix) + ".folded"
        if name not in taken:
            taken.add(name)
            value.name = name


def keep_known(metadata: dict[str, str]) -> None:
    """Drop every entry that is not a module scope."""
    for key in [key for key in metadata if key not in SCOPE_METADATA]:
        del metadata[key]


def name_lengths(graph: ir.Graph) -> None:
    """Call the length of past and new tokens by one name wherever a caller sees it.

    torch.export names it by how each tensor came about: a + b here, b + a there.
    """
    for value in (*graph.inputs, *graph.outputs):
        if value.shape is None or value.name is None:
            continue
        if value.name == names.ATTENTION_MASK:
            value.shape = ir.Shape([value.shape[0], names.TOTAL])
        elif value.name.startswith("present."):
            value.shape = with_axis(value.shape, CACHE_LENGTH_AXIS, names.TOTAL)


def with_axis(shape: ir.Shape, axis: int, name: str) -> ir.Shape:
    """A copy of `shape` with one axis renamed."""
    return ir.Shape([name if i == axis else size for i, size in enumerate(shape)])
