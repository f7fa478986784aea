"""Take an ONNX file that was exported before, instead of exporting the model again."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from headprune.errors import UNGATED, HeadpruneError, first_line
from headprune.exporters import names
from headprune.manifests import Manifest, read_manifest
from headprune.manifests.model import ModelInfo


def load_existing(path: Path, manifest: Manifest) -> ir.Model:
    """Load an ungated graph of the manifest's model; its tensors are read when they are needed.

    Raises:
        HeadpruneError: The file cannot be read, is gated already, or is of another model.
    """
    beside = path.parent / "manifest.json"
    if beside.is_file():
        check_manifest(read_manifest(beside), manifest, path)
    try:
        model = ir.load(path)
    except Exception as error:
        # protobuf, onnx_ir and the file system raise unrelated types, all about this file.
        raise HeadpruneError(
            f"cannot read the ONNX file {path}: {first_line(error)}",
            hint=UNGATED,
        ) from error
    if any(function.domain == names.DOMAIN for function in model.functions.values()):
        raise HeadpruneError(
            f"{path} holds a gate already, expected an ungated graph",
            hint="export a baseline first, or feed other thresholds to this one: its input "
            f"{names.THRESHOLD}",
        )
    check_data(model.graph, path)
    check_layers(model.graph, manifest, path)
    return model


def check_data(graph: ir.Graph, path: Path) -> None:
    """Raise unless the files with the graph's large tensors are there."""
    for value in graph.initializers.values():
        tensor = value.const_value
        if isinstance(tensor, ir.ExternalTensor) and not Path(tensor.path).is_file():
            raise HeadpruneError(
                f"{path} is incomplete: it keeps tensors in {Path(tensor.path).name}, which is not "
                "beside it",
                hint="copy both files together, or export the model again",
            )


def check_manifest(own: Manifest, manifest: Manifest, path: Path) -> None:
    """Compare the manifest beside an ONNX file with the one that the gate comes from."""
    check_same_model(str(path), own.model, manifest)
    if own.artefact is not None and own.gate is not None:
        raise HeadpruneError(
            f"{path} has a {own.gate.mode} gate already, expected an ungated graph",
            hint="export a baseline without a gate, and pass its model.onnx to --from-onnx",
        )


def check_same_model(what: str, model: ModelInfo, manifest: Manifest) -> None:
    """Raise for a model that the manifest was not made of.

    Raises:
        HeadpruneError: Weights or configuration differ.
    """
    difference = manifest.model.difference(model)
    if difference is not None:
        raise HeadpruneError(
            f"{what} is another model than the manifest's {manifest.model.name}: {difference}",
            hint="pass the model that was analyzed, or make a manifest of this one: "
            "headprune analyze --model DIR",
        )


def check_layers(graph: ir.Graph, manifest: Manifest, path: Path) -> None:
    """Compare the names and the shapes of the key-value cache with the manifest's geometry.

    Raises:
        HeadpruneError: An input or output is missing, or a cache input has another shape.
    """
    shapes = {value.name: value.shape for value in graph.inputs}
    known = {*shapes, *(value.name for value in graph.outputs)}
    for name in (names.INPUT_IDS, names.ATTENTION_MASK, names.LOGITS):
        if name not in known:
            raise HeadpruneError(
                f"{path} has no input or output {name}",
                hint="export it with the names that optimum uses, or from the model: --model DIR",
            )
    layers = manifest.model.layers
    for layer, heads in enumerate(layers):
        name = f"past_key_values.{layer}.key"
        shape = shapes.get(name)
        expected = (heads.kv_heads, heads.head_dim)
        found = None if shape is None else (shape[1], shape[3])
        if found != expected:
            got = "no such input" if found is None else f"{found[0]} heads of {found[1]}"
            raise HeadpruneError(
                f"{path}: input {name} should have {expected[0]} heads of {expected[1]}, got {got}",
                hint="pass a graph of the model that was analyzed, with a key-value cache",
            )
    surplus = f"past_key_values.{len(layers)}.key"
    if surplus in shapes:
        raise HeadpruneError(
            f"{path} has more layers than the manifest's {len(layers)}: input {surplus}",
            hint="pass a graph of the model that was analyzed",
        )
