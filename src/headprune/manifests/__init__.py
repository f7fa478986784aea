"""The manifest: typed model, reader, writer, gate choice."""

from headprune.manifests.files import read_manifest, write_manifest
from headprune.manifests.model import (
    Artefact,
    CalibrationInfo,
    CalibrationSource,
    Gate,
    HeadStatistics,
    LayerHeads,
    Manifest,
    ModelInfo,
    OperatingPoint,
    RawScores,
    ScoreSummary,
    Threshold,
    TokenizerInfo,
)

__all__ = [
    "Artefact",
    "CalibrationInfo",
    "CalibrationSource",
    "Gate",
    "HeadStatistics",
    "LayerHeads",
    "Manifest",
    "ModelInfo",
    "OperatingPoint",
    "RawScores",
    "ScoreSummary",
    "Threshold",
    "TokenizerInfo",
    "read_manifest",
    "write_manifest",
]
