"""Manifest + model or graph -> artefact: an ONNX directory with the chosen gate in its graph."""

from __future__ import annotations

from headprune.errors import HeadpruneError
from headprune.exporters.request import ExportRequest, ExportResult
from headprune.exporters.score_table import DYNAMIC_SCORES, DynamicScore

__all__ = ["DYNAMIC_SCORES", "DynamicScore", "ExportRequest", "ExportResult", "export_onnx"]


def export_onnx(request: ExportRequest) -> ExportResult:
    """Write the ONNX directory that `request` describes, whole or not at all.

    Raises:
        HeadpruneError: The request cannot be fulfilled, or the graph differs from the model.
    """
    try:
        from headprune.exporters.pipeline import run_export  # noqa: PLC0415  loads torch
    except ModuleNotFoundError as error:
        raise HeadpruneError(
            f"exporting needs the package {error.name}, which is not installed",
            hint="pip install 'headprune[onnx]'",
        ) from error
    return run_export(request)
