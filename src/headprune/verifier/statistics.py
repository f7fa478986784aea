"""Paired statistics of two models' answers to the same questions.

Of the questions that only one model gets right, `losses` are the baseline's and `gains` the
candidate's; `n` counts all questions. A difference is candidate minus baseline, as a share of n.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from scipy.stats import binom, binomtest

CONFIDENCE = 0.95
POWER = 0.8
BISECTIONS = 80


def mcnemar_p(losses: int, gains: int) -> float:
    """Two-sided exact p-value of McNemar's test: are losses and gains equally likely?"""
    if losses + gains == 0:
        return 1.0
    return float(binomtest(losses, losses + gains).pvalue)


def above_chance_p(right: int, n: int, chance: float) -> float:
    """One-sided p-value of `right` or more correct answers out of `n` for a guesser."""
    return float(binomtest(right, n, chance, alternative="greater").pvalue)


def tango_interval(losses: int, gains: int, n: int, confidence: float) -> tuple[float, float]:
    """Two-sided score interval of a paired difference (Tango 1998, Statistics in Medicine 17).

    The bounds are the differences at which the score test, whose variance is estimated under the
    difference tested, just rejects. Each bound alone is one-sided at (1 + confidence) / 2.
    """
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    estimate = (gains - losses) / n

    def inside(delta: float, side: int) -> bool:
        return side * (gains - losses - n * delta) <= z * _score_deviation(losses, gains, n, delta)

    def bound(outer: float, side: int) -> float:
        inner = estimate
        for _ in range(BISECTIONS):
            middle = (outer + inner) / 2
            if inside(middle, side):
                inner = middle
            else:
                outer = middle
        return inner

    return bound(-1.0, 1), bound(1.0, -1)


def _score_deviation(losses: int, gains: int, n: int, delta: float) -> float:
    """Standard deviation of gains - losses if the true difference is `delta`."""
    linear = (2 * n - gains + losses) * delta - gains - losses
    constant = -losses * delta * (1 - delta)
    loss_rate = (math.sqrt(max(linear * linear - 8 * n * constant, 0.0)) - linear) / (4 * n)
    return math.sqrt(max(n * (2 * loss_rate + delta * (1 - delta)), 0.0))


def certifies(losses: int, gains: int, n: int, margin: float) -> bool:
    """Whether the one-sided bound shows that no more than `margin` (a share) is lost."""
    z = NormalDist().inv_cdf(CONFIDENCE)
    return gains - losses + n * margin > z * _score_deviation(losses, gains, n, -margin)


def smallest_certifying(margin: float) -> int:
    """Number of questions below which not even a candidate without flips can be certified."""
    z = NormalDist().inv_cdf(CONFIDENCE)
    return math.floor(z * z * (1 - margin) / margin) + 1


def power_to_certify(n: int, flip_rate: float, margin: float) -> float:
    """Probability that `n` questions certify a candidate as good as the baseline.

    Args:
        n: Number of questions.
        flip_rate: Probability that exactly one of the two models is right; losses and gains are
            equally likely.
        margin: Loss to be ruled out, as a share.
    """
    low, high = binom.interval(1 - 1e-6, n, flip_rate)
    power = 0.0
    for flips in range(int(low), int(high) + 1):
        passing, failing = -1, flips + 1  # losses; certifying is monotone in them
        while failing - passing > 1:
            middle = (passing + failing) // 2
            if certifies(middle, flips - middle, n, margin):
                passing = middle
            else:
                failing = middle
        power += float(binom.pmf(flips, n, flip_rate) * binom.cdf(passing, flips, 0.5))
    return power


def questions_needed(flip_rate: float, margin: float) -> int:
    """Smallest number of questions, to about 1 %, that certifies with power 0.8."""
    low = high = smallest_certifying(margin)
    while power_to_certify(high, flip_rate, margin) < POWER:
        low, high = high, 2 * high
    while high - low > max(1, low // 100):
        middle = (low + high) // 2
        if power_to_certify(middle, flip_rate, margin) < POWER:
            low = middle
        else:
            high = middle
    return high


def choice_divergence(baseline: Sequence[float], candidate: Sequence[float]) -> float:
    """KL divergence in nats of the candidate's from the baseline's probabilities of the choices."""
    before, after = _log_softmax(baseline), _log_softmax(candidate)
    return float(np.sum(np.exp(before) * (before - after)))


def _log_softmax(values: Sequence[float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    shifted = np.asarray(values, np.float64) - max(values)
    return shifted - np.log(np.sum(np.exp(shifted)))  # type: ignore[no-any-return]
