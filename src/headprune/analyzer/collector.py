"""Collect the scores of all layers and sequences: raw for sequences, histograms for tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headprune.analyzer.capture import Capture
from headprune.analyzer.distribution import Distribution, distribution_of
from headprune.analyzer.histogram import HistogramTable
from headprune.analyzer.scores import Score
from headprune.errors import HeadpruneError
from headprune.manifests.model import LayerHeads


class Collector:
    """Holds every score of a calibration run, and nothing else of it.

    Args:
        scores: The scores to compute.
        layers: Geometry of the model.
        sequences: How many sequences there will be.
        indices: The model's own index of each of `layers`, if it has others besides.
    """

    def __init__(
        self,
        scores: Sequence[Score],
        layers: Sequence[LayerHeads],
        sequences: int,
        *,
        indices: Sequence[int] | None = None,
    ) -> None:
        self.scores = tuple(scores)
        self.layers = tuple(layers)
        own = range(len(layers)) if indices is None else indices
        self.position = {index: position for position, index in enumerate(own)}
        widest = max(layer.query_heads for layer in layers)
        shape = (sequences, len(layers), widest)
        self.sequence_scores: dict[str, NDArray[np.float32]] = {
            s.id: np.full(shape, np.nan, np.float32) for s in scores if s.granularity == "sequence"
        }
        self.token_scores: dict[str, list[HistogramTable]] = {
            s.id: [HistogramTable(layer.query_heads) for layer in layers]
            for s in scores
            if s.granularity == "token"
        }

    def add(self, capture: Capture) -> None:
        """Compute and keep the scores of one layer for one batch.

        Raises:
            HeadpruneError: A score has another shape than its granularity says, or is not finite.
        """
        layer = self.position[capture.layer]
        heads = self.layers[layer].query_heads
        for score in self.scores:
            values = score.function(capture)
            expected = (*capture.mask.shape, heads)
            if score.granularity == "sequence":
                expected = (capture.mask.shape[0], heads)
            if tuple(values.shape) != expected:
                raise HeadpruneError(
                    f"score {score.id} gave the shape {tuple(values.shape)}, expected {expected}"
                )
            if score.granularity == "token":
                values = values[capture.mask]
            array = to_numpy(values, score, capture)
            if score.granularity == "token":
                self.token_scores[score.id][layer].add(array)
            else:
                rows = list(capture.sequences)
                self.sequence_scores[score.id][rows, layer, :heads] = array

    def distributions(self, score: Score) -> list[list[Distribution]]:
        """The distribution of one score per layer and head."""
        if score.granularity == "token":
            return [
                [histogram.distribution() for histogram in table.histograms()]
                for table in self.token_scores[score.id]
            ]
        raw = self.sequence_scores[score.id]
        return [
            [distribution_of(raw[:, index, head]) for head in range(layer.query_heads)]
            for index, layer in enumerate(self.layers)
        ]

    def tensors(self) -> dict[str, NDArray[np.generic]]:
        """All raw scores, named as in the file beside the manifest.

        `sequence.<score>` is float32 `[sequence, layer, head]` (NaN where a layer has fewer heads
        than the widest). `token.<score>.bucket` and `.count` list the occupied buckets of all
        histograms, layer by layer and head by head; `.offset`, `[layer * head + 1]`, says where
        each histogram begins; `.minimum` and `.maximum` are the exact extremes.
        """
        tensors: dict[str, NDArray[np.generic]] = {}
        for name, raw in self.sequence_scores.items():
            tensors[f"sequence.{name}"] = raw
        for name, tables in self.token_scores.items():
            histograms = [h for table in tables for h in table.histograms()]
            sizes = [len(h.buckets) for h in histograms]
            buckets = np.concatenate([h.buckets for h in histograms])
            tensors[f"token.{name}.bucket"] = buckets.astype(np.int32)
            tensors[f"token.{name}.count"] = np.concatenate([h.counts for h in histograms])
            tensors[f"token.{name}.offset"] = np.cumsum([0, *sizes], dtype=np.int64)
            tensors[f"token.{name}.minimum"] = np.array([h.minimum for h in histograms])
            tensors[f"token.{name}.maximum"] = np.array([h.maximum for h in histograms])
        return tensors


def to_numpy(values: Tensor, score: Score, capture: Capture) -> NDArray[np.float32]:
    """Float32 on the CPU, refused if not finite."""
    if not bool(torch.isfinite(values).all()):
        raise HeadpruneError(
            f"score {score.id} is not finite in layer {capture.layer}: the model's activations "
            "overflow or its weights hold NaN",
            hint="try --dtype float32, or check the checkpoint",
        )
    array: NDArray[np.float32] = values.float().cpu().numpy()
    return array
