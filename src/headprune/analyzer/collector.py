"""Compute the scores of one layer for one batch, checked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headprune.analyzer.capture import Capture
from headprune.analyzer.score_table import LayerScores
from headprune.analyzer.scores import Score
from headprune.errors import HeadpruneError


def collect(capture: Capture, scores: Sequence[Score]) -> LayerScores:
    """All scores of one layer for one batch, real tokens alone.

    Raises:
        HeadpruneError: A score has another shape than its granularity says, or is not finite.
    """
    batch, positions, heads = capture.output.shape[:3]
    values: dict[str, NDArray[np.float32]] = {}
    for score in scores:
        result = score.function(capture)
        token = score.granularity == "token"
        expected = (batch, positions, heads) if token else (batch, heads)
        if tuple(result.shape) != expected:
            raise HeadpruneError(
                f"score {score.id} gave the shape {tuple(result.shape)}, expected {expected}",
                hint="mend the function of this score; docs/scores.md says what it gets and gives",
            )
        if token:
            result = result.flatten(0, 1) if capture.whole else result[capture.mask]
        values[score.id] = to_numpy(result, score, capture)
    return LayerScores(layer=capture.layer, sequences=capture.sequences, values=values)


def to_numpy(values: Tensor, score: Score, capture: Capture) -> NDArray[np.float32]:
    """Float32 on the CPU, refused if not finite."""
    # Contiguous, since safetensors writes an array's memory as it lies.
    plain = values.to(dtype=torch.float32, device="cpu").contiguous()
    array: NDArray[np.float32] = plain.numpy()
    if not np.isfinite(array).all():
        raise HeadpruneError(
            f"score {score.id} is not finite in layer {capture.layer}: the model's activations "
            "overflow or its weights hold NaN",
            hint="try --dtype float32, or check the checkpoint",
        )
    return array
