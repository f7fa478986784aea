"""Thresholds from pooled scores, and the summaries that the manifest keeps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headprune.analyzer.distribution import Distribution, pooled
from headprune.errors import HeadpruneError
from headprune.manifests.gates import exact_float32
from headprune.manifests.model import (
    Direction,
    Granularity,
    HeadStatistics,
    ScoreSummary,
    Threshold,
)

HeadDistributions = Sequence[Sequence[Distribution]]
"""One distribution per layer and head."""


def threshold_at(distribution: Distribution, fraction: float, inactive_when: Direction) -> float:
    """The threshold that calls `fraction` of all cells inactive.

    The p-quantile for scores that are inactive below it, the (1 − p)-quantile for the others, with
    linear interpolation, rounded to float32 as the gate will compare it.

    Args:
        distribution: The score, pooled over all cells.
        fraction: p, from 0 to 1.
        inactive_when: Direction of the score.

    Raises:
        HeadpruneError: `fraction` is not within 0 and 1.
    """
    if not 0 <= fraction <= 1:
        raise HeadpruneError(
            f"the fraction is {fraction}, expected a number from 0 to 1",
            hint="for ten percent pass --fraction 0.10",
        )
    level = 1 - fraction if inactive_when == "above" else fraction
    return exact_float32(float(distribution.quantile(np.array([level]))[0]))


def summarise(
    heads: HeadDistributions,
    *,
    granularity: Granularity,
    inactive_when: Direction,
    fractions: Sequence[float],
) -> ScoreSummary:
    """Quantiles, thresholds and per-head statistics of one score.

    Args:
        heads: The score's distribution per layer and head.
        granularity: What one cell is.
        inactive_when: Direction of the score.
        fractions: Fractions to give thresholds for.
    """
    everything = pooled([distribution for layer in heads for distribution in layer])
    thresholds = tuple(
        Threshold(fraction=p, threshold=threshold_at(everything, p, inactive_when))
        for p in fractions
    )
    quantiles = everything.quantile(np.linspace(0, 1, 101))
    quartiles = [[d.quantile(np.array([0, 0.25, 0.5, 0.75, 1])) for d in layer] for layer in heads]

    def quartile(index: int) -> tuple[tuple[float, ...], ...]:
        return tuple(tuple(short_float32(float(q[index])) for q in layer) for layer in quartiles)

    return ScoreSummary(
        granularity=granularity,
        inactive_when=inactive_when,
        quantiles=tuple(exact_float32(float(q)) for q in quantiles),
        thresholds=thresholds,
        heads=HeadStatistics(
            mean=tuple(tuple(short_float32(d.mean()) for d in layer) for layer in heads),
            std=tuple(tuple(short_float32(d.std()) for d in layer) for layer in heads),
            minimum=quartile(0),
            q25=quartile(1),
            median=quartile(2),
            q75=quartile(3),
            maximum=quartile(4),
            inactive_share=tuple(
                tuple(
                    tuple(short_float32(d.share(t.threshold, inactive_when)) for d in layer)
                    for layer in heads
                )
                for t in thresholds
            ),
        ),
    )


def short_float32(value: float) -> float:
    """The shortest decimal that reads as the same float32, for statistics that people read."""
    return float(str(np.float32(value)))
