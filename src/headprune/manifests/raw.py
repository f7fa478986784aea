"""Read the raw scores that lie beside a manifest."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors.numpy import load_file

from headprune.analyzer.distribution import Distribution
from headprune.analyzer.score_table import distributions_of
from headprune.errors import HeadpruneError
from headprune.files import sha256_file
from headprune.manifests.model import Manifest


def inactive_shares(
    manifest: Manifest, folder: Path, score: str, threshold: float
) -> list[list[float]]:
    """Share of calibration cells in which each head is inactive, `[layer][head]`.

    From the manifest where it holds this threshold, else from the raw scores.

    Args:
        manifest: The analyzer's manifest.
        folder: Its directory.
        score: Score id in the manifest.
        threshold: Any threshold.

    Raises:
        HeadpruneError: The raw scores are needed, but missing or changed.
    """
    summary = manifest.scores[score]
    for index, entry in enumerate(summary.thresholds):
        if math.isclose(entry.threshold, threshold, rel_tol=1e-7):
            return [list(row) for row in summary.heads.inactive_share[index]]
    distributions = read_distributions(manifest, folder, score)
    return [[d.share(threshold, summary.inactive_when) for d in layer] for layer in distributions]


def read_distributions(manifest: Manifest, folder: Path, score: str) -> list[list[Distribution]]:
    """The distribution of a score per layer and head, from the raw file."""
    tensors = read_tensors(manifest, folder)
    return distributions_of(tensors, score, manifest.scores[score].granularity)


def read_tensors(manifest: Manifest, folder: Path) -> dict[str, NDArray[Any]]:
    """All raw scores, checked against the hash in the manifest."""
    hint = (
        "make the manifest anew with headprune analyze, or keep its scores-*.safetensors beside it"
    )
    if manifest.raw_scores is None:
        raise HeadpruneError("this needs the raw scores, but the manifest has none", hint=hint)
    path = folder / manifest.raw_scores.file
    if not path.is_file():
        raise HeadpruneError(f"this needs the raw scores, but there is no {path}", hint=hint)
    if sha256_file(path) != manifest.raw_scores.sha256:
        raise HeadpruneError(f"{path} is not the file the manifest was written with", hint=hint)
    tensors: dict[str, NDArray[Any]] = load_file(path)
    return tensors
