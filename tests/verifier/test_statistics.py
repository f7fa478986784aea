"""Statistics against published examples, brute force and simulation."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import norm

from headprune.verifier.statistics import (
    above_chance_p,
    certifies,
    choice_divergence,
    mcnemar_p,
    power_to_certify,
    questions_needed,
    smallest_certifying,
    tango_interval,
)

TABLES = [
    (1, 7, 21),
    (0, 0, 50),
    (0, 5, 40),
    (5, 0, 40),
    (3, 3, 30),
    (0, 9, 9),
    (9, 0, 9),
    (40, 25, 900),
]


def brute_force_interval(losses: int, gains: int, n: int, confidence: float) -> tuple[float, float]:
    """Differences that the score test keeps, the restricted likelihood maximised by search."""
    z = norm.ppf((1 + confidence) / 2)

    def negative_likelihood(loss: float, delta: float) -> float:
        parts = ((losses, loss), (gains, loss + delta), (n - losses - gains, 1 - 2 * loss - delta))
        return -sum(count * math.log(max(p, 1e-300)) for count, p in parts if count)

    def kept(delta: float) -> bool:
        low, high = max(0.0, -delta), (1 - delta) / 2
        loss = minimize_scalar(
            negative_likelihood, (low, high), (low, high), (delta,), method="bounded",
            options={"xatol": 1e-12},
        ).x  # fmt: skip
        variance = n * max(2 * loss + delta - delta * delta, 1e-15)
        return abs(gains - losses - n * delta) <= z * math.sqrt(variance)

    def edge(outer: float) -> float:
        inner = (gains - losses) / n
        for _ in range(16):
            middle = (inner + outer) / 2
            inner, outer = (middle, outer) if kept(middle) else (inner, middle)
        return inner

    return edge(-1.0), edge(1.0)


def test_interval_of_the_published_example() -> None:
    low, high = tango_interval(losses=7, gains=1, n=21, confidence=0.95)
    assert (round(low, 3), round(high, 3)) == (-0.517, -0.026)


@pytest.mark.parametrize(("losses", "gains", "n"), TABLES)
@pytest.mark.parametrize("confidence", [0.90, 0.95])
def test_interval_against_brute_force(losses: int, gains: int, n: int, confidence: float) -> None:
    low, high = tango_interval(losses, gains, n, confidence)
    assert (low, high) == pytest.approx(
        brute_force_interval(losses, gains, n, confidence), abs=1e-4
    )
    assert -1 <= low <= (gains - losses) / n <= high <= 1
    mirrored = tango_interval(gains, losses, n, confidence)
    assert mirrored == pytest.approx((-high, -low), abs=1e-9)


@pytest.mark.parametrize(("losses", "gains", "n"), TABLES)
def test_certifying_is_the_lower_bound_above_the_margin(losses: int, gains: int, n: int) -> None:
    low, _ = tango_interval(losses, gains, n, 0.90)
    for margin in (0.005, 0.01, 0.02, 0.05, 0.2):
        assert certifies(losses, gains, n, margin) == (low > -margin)


def test_mcnemar_is_the_exact_binomial() -> None:
    assert mcnemar_p(0, 0) == 1
    assert mcnemar_p(7, 1) == pytest.approx(2 * (1 + 8) / 2**8)
    assert mcnemar_p(1, 7) == mcnemar_p(7, 1)


def test_above_chance_is_the_exact_tail() -> None:
    chance = Fraction(1, 4)
    tail = sum(math.comb(20, k) * chance**k * (1 - chance) ** (20 - k) for k in range(11, 21))
    assert above_chance_p(11, 20, 0.25) == pytest.approx(float(tail))


def test_questions_needed_without_flips() -> None:
    assert smallest_certifying(0.01) == 268
    assert not certifies(0, 0, 267, 0.01)
    assert certifies(0, 0, 268, 0.01)


@pytest.mark.parametrize(
    ("flips", "needed"), [(0.01, 804), (0.02, 1363), (0.05, 3153), (0.10, 6173)]
)
def test_questions_needed_for_one_point(flips: float, needed: int) -> None:
    assert questions_needed(flips, 0.01) == pytest.approx(needed, rel=0.015)


def test_power_against_simulation() -> None:
    rng = np.random.default_rng(0)
    tables = rng.multinomial(700, [0.03, 0.03, 0.94], size=4000)
    share = np.mean([certifies(losses, gains, 700, 0.02) for losses, gains, _ in tables])
    assert power_to_certify(700, 0.06, 0.02) == pytest.approx(share, abs=0.025)


def test_divergence_of_choices() -> None:
    before, after = np.log([0.7, 0.1, 0.1, 0.1]), np.log([0.4, 0.2, 0.2, 0.2])
    expected = 0.7 * math.log(0.7 / 0.4) + 3 * 0.1 * math.log(0.1 / 0.2)
    assert choice_divergence(list(before), list(after)) == pytest.approx(expected)
    assert choice_divergence(list(before - 1000), list(after + 5)) == pytest.approx(expected)
    assert choice_divergence([-1.0, -900.0], [-1.0, -900.0]) == 0
