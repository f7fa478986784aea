"""Every output projection is found, or an error names the layer."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest

from headprune.errors import HeadpruneError
from headprune.exporters.clean_graph import SCOPE_METADATA
from headprune.exporters.locate import locate_projections
from headprune.exporters.ops import Ops

from .conftest import Family
from .synthetic import LAYERS, two_layers, weights


def load(family: Family) -> ir.Model:
    return ir.load(family.baseline.directory / "model.onnx")


def test_every_layer_of_every_family(family: Family) -> None:
    layers = family.manifest.model.layers
    found = locate_projections(load(family).graph, layers)
    assert [projection.layer for projection in found] == list(range(len(layers)))
    for projection, heads in zip(found, layers, strict=True):
        assert projection.weight.shape is not None
        rows = heads.query_heads * heads.head_dim
        assert projection.weight.shape[projection.head_axis] == rows
        assert re.search(r"attn\.(o_proj|c_proj)\.weight", str(projection.weight.name))


def test_weight_names_serve_where_scopes_are_lost(family: Family) -> None:
    graph = load(family).graph
    expected = [p.node.name for p in locate_projections(graph, family.manifest.model.layers)]
    for node in graph:
        node.metadata_props.clear()
    found = locate_projections(graph, family.manifest.model.layers)
    assert [p.node.name for p in found] == expected


def test_node_names_serve_where_weights_are_anonymous() -> None:
    found = locate_projections(two_layers(weights()).graph, LAYERS)
    assert [p.weight.name for p in found] == ["w0", "w1"]


@pytest.mark.parametrize(
    "path",
    [
        "model.layers.0.self_attn.o_proj",
        "transformer.h.0.attn.c_proj",
        "gpt_neox.layers.0.attention.dense",
        "model.decoder.layers.0.self_attn.out_proj",
        "transformer.blocks.0.attn.out_proj",
        "bert.encoder.layer.0.attention.output.dense",
    ],
)
def test_scopes_of_many_families(path: str) -> None:
    graph = two_layers(weights()).graph
    node = graph[1]
    node.name = "node_linear_3"
    node.metadata_props[SCOPE_METADATA[0]] = repr(["", path, "linear_3"])
    assert locate_projections(graph, LAYERS)[0].node is node


@pytest.mark.parametrize(
    "path",
    [
        "transformer.h.0.mlp.c_proj",
        "gpt_neox.layers.0.mlp.dense_4h_to_h",
        "model.layers.0.self_attn.q_proj",
        "model.layers.0.self_attn.o_proj.lora_A.default",
        "gpt_neox.layers.0.attention.query_key_value",
        "model.attn.0.dense",
    ],
)
def test_other_linear_layers_are_passed_over(path: str) -> None:
    graph = two_layers(weights()).graph
    graph[1].name = "node_linear_3"
    graph[1].metadata_props[SCOPE_METADATA[0]] = repr(["", path, "linear_3"])
    with pytest.raises(HeadpruneError, match="layer 0: no attention output projection"):
        locate_projections(graph, LAYERS)


def test_missing_projection_names_the_layer(families: Callable[[str], Family]) -> None:
    family = families("llama")
    model = load(family)
    layers = family.manifest.model.layers
    node = locate_projections(model.graph, layers)[1].node
    node.metadata_props.clear()
    weight = node.inputs[1]
    assert weight is not None
    weight.name = "renamed"
    with pytest.raises(HeadpruneError) as caught:
        locate_projections(model.graph, layers)
    assert re.match(r"layer 1: no attention output projection", caught.value.message)
    assert "o_proj" in caught.value.message
    assert "48 weight rows (6 heads of 8)" in caught.value.message


def test_two_projections_in_a_layer_are_refused() -> None:
    graph = two_layers(weights()).graph
    op = Ops("twin/")
    op("MatMul", graph[0].outputs[0], graph.initializers["w0"])
    op.nodes[0].name = "/model/layers.0/self_attn/o_proj/MatMul_1"
    graph.append(op.nodes[0])
    with pytest.raises(HeadpruneError, match="layer 0 has 2 attention output projections"):
        locate_projections(graph, LAYERS)


def test_wrong_number_of_rows_is_told() -> None:
    arrays = weights()
    arrays[2] = np.ones((5, 5), np.float32)
    with pytest.raises(HeadpruneError, match=r"6 weight rows .*has a weight of \[5,5\]"):
        locate_projections(two_layers(arrays).graph, LAYERS)


def test_weight_behind_a_transpose() -> None:
    model = two_layers(weights())
    weight = model.graph.initializers["w0"]
    assert weight.const_value is not None
    weight.const_value = ir.tensor(weight.const_value.numpy().T.copy(), name="w0")
    weight.shape = ir.Shape([6, 8])
    op = Ops("t/")
    transposed = op("Transpose", weight, perm=(1, 0))
    model.graph[1].replace_input_with(1, transposed)
    model.graph.insert_before(model.graph[0], op.nodes)
    found = locate_projections(model.graph, LAYERS)[0]
    assert (found.weight.name, found.head_axis) == ("w0", 1)
