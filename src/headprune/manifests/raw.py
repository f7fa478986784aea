"""Read the raw scores that lie beside a manifest."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from headprune.analyzer.distribution import Distribution, distribution_of
from headprune.analyzer.histogram import Histogram
from headprune.errors import HeadpruneError
from headprune.files import sha256_file
from headprune.manifests.model import Manifest

Tensors = dict[str, NDArray[np.generic]]


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
    heads = [layer.query_heads for layer in manifest.model.layers]
    if manifest.scores[score].granularity == "sequence":
        raw = tensors[f"sequence.{score}"].astype(np.float32)
        return [
            [distribution_of(raw[:, layer, head]) for head in range(count)]
            for layer, count in enumerate(heads)
        ]
    flat = iter(read_histograms(tensors, score))
    return [[next(flat).distribution() for _ in range(count)] for count in heads]


def read_histograms(tensors: Tensors, score: str) -> list[Histogram]:
    """The histograms of a token score, layer by layer and head by head."""
    part = {
        name: tensors[f"token.{score}.{name}"]
        for name in ("bucket", "count", "offset", "minimum", "maximum")
    }
    offset = part["offset"].astype(np.int64)
    return [
        Histogram(
            buckets=part["bucket"][low:high].astype(np.int64),
            counts=part["count"][low:high].astype(np.int64),
            minimum=np.float32(part["minimum"][index]),
            maximum=np.float32(part["maximum"][index]),
        )
        for index, (low, high) in enumerate(pairwise(offset))
    ]


def read_tensors(manifest: Manifest, folder: Path) -> Tensors:
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
    tensors: Tensors = load_file(path)
    return tensors
