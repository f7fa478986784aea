"""Calibration text: read it, choose documents and lengths by seed, turn it into token ids."""

from headprune.analyzer.calibration.choose import DEFAULT_LENGTHS, CalibrationSet, choose_sequences
from headprune.analyzer.calibration.load import (
    DEFAULT_SEQUENCES,
    SourceDocuments,
    load_documents,
)
from headprune.analyzer.calibration.readers import read_documents
from headprune.analyzer.calibration.rows import Document
from headprune.analyzer.calibration.sources import Source, parse_source, share_out

__all__ = [
    "DEFAULT_LENGTHS",
    "DEFAULT_SEQUENCES",
    "CalibrationSet",
    "Document",
    "Source",
    "SourceDocuments",
    "choose_sequences",
    "load_documents",
    "parse_source",
    "read_documents",
    "share_out",
]
