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
from headprune.analyzer.scores.registry import layer_normalise
from headprune.errors import HeadpruneError


def collect(capture: Capture, scores: Sequence[Score]) -> LayerScores:
    """All scores of one layer for one batch, real tokens alone.

    Raises:
        HeadpruneError: A score has another shape than its granularity says, or is not finite.
    """
    values: dict[str, NDArray[np.float32]] = {}
    for granularity in ("sequence", "token"):
        some = [score for score in scores if score.granularity == granularity]
        some.sort(key=lambda score: score.base is not None)
        if some:
            table = tabulate(some, capture)
            if granularity == "token":
                table = table.flatten(1, 2) if capture.whole else table[:, capture.mask]
            values |= dict(zip((s.id for s in some), to_numpy(table, some, capture), strict=True))
    return LayerScores(layer=capture.layer, sequences=capture.sequences, values=values)


def tabulate(scores: Sequence[Score], capture: Capture) -> Tensor:
    """Scores of one granularity, the layer-normalised ones last.

    These are divided by their means at once: on small tensors an operation costs more than its
    arithmetic.

    Returns:
        `[score, batch, head]` or `[score, batch, position, head]`, float32.
    """
    tables = [checked(s, s.function(capture), capture) for s in scores if s.base is None]
    bases = [checked(s, s.base(capture), capture) for s in scores if s.base is not None]
    if not bases:
        return torch.stack(tables)
    normalised = layer_normalise(torch.stack(bases))
    return torch.cat([torch.stack(tables), normalised]) if tables else normalised


def checked(score: Score, result: Tensor, capture: Capture) -> Tensor:
    """A score's values in float32, refused if they are not one a head and sequence or token."""
    batch, positions, heads = capture.output.shape[:3]
    expected = (batch, positions, heads) if score.granularity == "token" else (batch, heads)
    if tuple(result.shape) != expected:
        raise HeadpruneError(
            f"score {score.id} gave the shape {tuple(result.shape)}, expected {expected}",
            hint="mend the function of this score; docs/scores.md says what it gets and gives",
        )
    return result.float()


def to_numpy(table: Tensor, scores: Sequence[Score], capture: Capture) -> NDArray[np.float32]:
    """The values of all scores on the CPU, refused if one is not finite."""
    # Contiguous, since safetensors writes an array's memory as it lies.
    array: NDArray[np.float32] = table.cpu().contiguous().numpy()
    finite = np.isfinite(array)
    if not finite.all():
        wrong = next(s for s, fine in zip(scores, finite, strict=True) if not fine.all())
        raise HeadpruneError(
            f"score {wrong.id} is not finite in layer {capture.layer}: the model's activations "
            "overflow or its weights hold NaN",
            hint="try --dtype float32, or check the checkpoint",
        )
    return array
