"""Export to ONNX: load, export or read the graph, compare, gate, write."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import onnx_ir as ir

from headprune.errors import WRITABLE, HeadpruneError
from headprune.exporters.artefact import (
    GRAPH_FILE,
    copy_companions,
    finish,
    rewrite_data,
    write_data,
    write_graph,
)
from headprune.exporters.existing_graph import check_same_model, load_existing
from headprune.exporters.fold_static import fold_static
from headprune.exporters.insert_gate import insert_gate
from headprune.exporters.request import ExportRequest, ExportResult
from headprune.exporters.score_table import resolve_gate
from headprune.files import check_free, staged_directory
from headprune.manifests.model import Gate, Manifest
from headprune.manifests.show import describe_left_out

if TYPE_CHECKING:
    from headprune.analyzer.loading import LoadedModel


def run_export(request: ExportRequest) -> ExportResult:
    """Write the ONNX directory that `request` describes, whole or not at all.

    Raises:
        HeadpruneError: The request cannot be fulfilled, or the graph differs from the model.
    """
    gate = resolve_gate(request.gate)
    check_request(request, gate)
    model = None if request.model is None else load(request, request.model)
    if request.from_onnx is not None:
        request.progress(f"reading {request.from_onnx.name}")
        graph = load_existing(request.from_onnx, request.manifest)
    else:
        request.progress("exporting the model to ONNX")
        graph = export(model)
    try:
        error, manifest = write_directory(request, gate, graph, model)
    except OSError as failure:
        raise HeadpruneError(
            f"cannot write {request.output}: {failure}", hint=WRITABLE
        ) from failure
    return ExportResult(
        directory=request.output,
        manifest=manifest,
        gated_layers=gated_layers(gate, manifest),
        export_error=error,
    )


def write_directory(
    request: ExportRequest, gate: Gate | None, graph: ir.Model, model: LoadedModel | None
) -> tuple[float | None, Manifest]:
    """Write all files into a staging place and move them into place; gives error and manifest."""
    with staged_directory(request.output, force=request.force) as staging:
        error = write_ungated(request, graph, staging, model)
        if gate is not None:
            request.progress(f"inserting the {gate.mode} gate on {gate.score}")
            apply_gate(graph, gate, request.manifest, staging)
        copy_companions(companions_directory(request, model), staging)
        manifest = finish(request.manifest, gate, graph.opset_imports[""], staging)
    return error, manifest


def check_request(request: ExportRequest, gate: Gate | None) -> None:
    """Find out what can be found out before the long work begins.

    Raises:
        HeadpruneError: The model has layers that were left out, the output is taken or is where the
            input lies, or the gate names heads that the model does not have.
    """
    check_every_layer(request.manifest)
    check_free(request.output, force=request.force)
    output = request.output.resolve()
    sources = [Path(request.model)] if request.model is not None else []
    sources += [request.from_onnx.parent] if request.from_onnx is not None else []
    for source in sources:
        if source.is_dir() and source.resolve().is_relative_to(output):
            raise HeadpruneError(
                f"{request.output} holds the model to be exported, expected another directory",
                hint="pass another -o DIR",
            )
    layers = request.manifest.model.layers
    for layer, head in gate.heads if gate is not None else ():
        if not (0 <= layer < len(layers) and 0 <= head < layers[layer].query_heads):
            raise HeadpruneError(
                f"the gate names layer {layer} head {head}: no such head",
                hint="headprune manifest show FILE lists the layers and their heads",
            )


def check_every_layer(manifest: Manifest) -> None:
    """Raise for a hybrid model: the exporter counts on softmax attention in every layer.

    Raises:
        HeadpruneError: The analyzer left layers out.
    """
    model = manifest.model
    if model.left_out_layers:
        raise HeadpruneError(
            f"{model.name} ({model.model_type}) cannot be exported: {describe_left_out(model)}",
            hint="gates of hybrid models are not served yet; the manifest holds their scores",
        )


def load(request: ExportRequest, source: str) -> LoadedModel:
    """The PyTorch model, refused unless the manifest is of it.

    Raises:
        HeadpruneError: It cannot be loaded, or it is another one.
    """
    from headprune.analyzer.loading import (  # noqa: PLC0415  not with --from-onnx alone
        describe_unused,
        load_model,
    )

    request.progress(f"loading {source}")
    loaded = load_model(
        source,
        revision=request.revision,
        dtype="float32",
        trust_remote_code=request.trust_remote_code,
    )
    check_same_model(source, loaded.info, request.manifest)
    if loaded.unused:
        request.progress(describe_unused(source, loaded.unused))
    return loaded


def export(loaded: LoadedModel | None) -> ir.Model:
    """The ungated graph of a loaded model."""
    from headprune.exporters.torch_graph import export_graph  # noqa: PLC0415  loads torch

    if loaded is None:
        raise HeadpruneError("no model to export", hint="pass --model DIR")
    return export_graph(loaded.model, loaded.info.layers)


def write_ungated(
    request: ExportRequest, graph: ir.Model, staging: Path, loaded: LoadedModel | None
) -> float | None:
    """Write the ungated graph and its weights, and measure its error if there is a model."""
    request.progress("writing the weights")
    write_data(graph, staging)
    write_graph(graph, staging)
    if loaded is None:
        return None
    from headprune.exporters.compare import check_export  # noqa: PLC0415  loads torch

    request.progress("comparing ONNX Runtime with PyTorch")
    return check_export(staging / GRAPH_FILE, loaded.model, loaded.info.layers)


def apply_gate(graph: ir.Model, gate: Gate, manifest: Manifest, staging: Path) -> None:
    """Gate the graph, and write it over the ungated one.

    A dynamic gate leaves the data file as it is. Folding makes some weights new.
    """
    if gate.mode == "dynamic":
        insert_gate(graph, gate, manifest.model.layers)
    else:
        fold_static(graph, gate, manifest.model.layers)
        rewrite_data(graph, staging)
    write_graph(graph, staging)


def companions_directory(request: ExportRequest, loaded: LoadedModel | None) -> Path:
    """Where configuration and tokenizer come from: the model, else beside the ONNX file."""
    if loaded is not None:
        return loaded.files.directory
    if request.from_onnx is None:
        raise HeadpruneError("no model to export", hint="pass --model DIR")
    return request.from_onnx.parent


def gated_layers(gate: Gate | None, manifest: Manifest) -> tuple[int, ...]:
    """Layers that can have a head off."""
    if gate is None:
        return ()
    if gate.mode == "dynamic":
        return tuple(range(len(manifest.model.layers)))
    return tuple(sorted({layer for layer, _ in gate.heads}))
