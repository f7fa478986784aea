"""Weighted quantiles and moments: one set of formulas for raw scores and for histograms.

A distribution is its distinct values, ascending, and how often each occurs. Raw sequence scores are
one with counts of 1, token scores one per histogram.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Distribution:
    """Values in ascending order with their counts.

    Attributes:
        values: Ascending, `[entry]`.
        counts: Occurrences of each, `[entry]`.
    """

    values: Floats
    counts: NDArray[np.int64]

    def quantile(self, fractions: Floats) -> Floats:
        """Quantiles by linear interpolation between order statistics, as in `numpy.quantile`."""
        ends = np.cumsum(self.counts)
        position = fractions * (ends[-1] - 1)
        low = np.floor(position).astype(np.int64)
        high = np.minimum(low + 1, ends[-1] - 1)
        below = self.values[np.searchsorted(ends, low, side="right")]
        above = self.values[np.searchsorted(ends, high, side="right")]
        between: Floats = below + (above - below) * (position - low)
        return between

    def mean(self) -> float:
        """Mean."""
        return float(np.dot(self.values, self.counts) / self.counts.sum())

    def std(self) -> float:
        """Population standard deviation."""
        squares = np.dot((self.values - self.mean()) ** 2, self.counts)
        return float(np.sqrt(squares / self.counts.sum()))

    def share(self, threshold: float, inactive_when: str) -> float:
        """Share of the values on the inactive side of `threshold`, strictly."""
        inactive = self.values > threshold if inactive_when == "above" else self.values < threshold
        return float(self.counts[inactive].sum() / self.counts.sum())


def distribution_of(values: NDArray[np.float32]) -> Distribution:
    """The distribution of raw values of any shape."""
    ordered = np.sort(values.astype(np.float64), axis=None)
    return Distribution(ordered, np.ones(len(ordered), np.int64))


def pooled(parts: list[Distribution]) -> Distribution:
    """All values of several distributions."""
    values = np.concatenate([part.values for part in parts])
    counts = np.concatenate([part.counts for part in parts])
    order = np.argsort(values, kind="stable")
    return Distribution(values[order], counts[order])
