"""Exactly mergeable histograms of float32 values over their leading bits.

A bucket is the first 20 bits of a float32 in an order-preserving encoding: sign, exponent and 11
bits of the mantissa. Counting is exact, so histograms of the same values are the same in whatever
order and pieces they were made. A value reads back as its bucket's edge towards 0, at most 2⁻¹¹ too
small; 0, 1 and other short fractions read back as themselves. The extremes are kept exactly, so
that the threshold at 0 % calls nothing inactive.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headprune.analyzer.distribution import Distribution

BITS = 20
RELATIVE_ERROR = 2.0**-11
_DROPPED = 32 - BITS
_SIGN = np.uint32(1 << 31)
_COMPACT_ABOVE = 1 << 18


def buckets_of(values: NDArray[np.float32]) -> NDArray[np.int64]:
    """The bucket of each value; buckets are ordered as the values are."""
    bits = values.view(np.uint32)
    # Negative floats count down as their bits count up: flip all their bits, else the sign alone.
    ordered = np.where(bits & _SIGN, ~bits, bits | _SIGN)
    return (ordered >> np.uint32(_DROPPED)).astype(np.int64)


def values_of(buckets: NDArray[np.int64]) -> NDArray[np.float64]:
    """The edge towards 0 of each bucket."""
    low = (buckets.astype(np.uint64) << _DROPPED).astype(np.uint32)
    # A negative bucket runs from its lowest ordered code, its most negative value, towards 0.
    nearest = np.where(low & _SIGN, low, low | np.uint32((1 << _DROPPED) - 1))
    bits = np.where(nearest & _SIGN, nearest ^ _SIGN, ~nearest)
    return bits.view(np.float32).astype(np.float64)


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """Counts of one head's values.

    Attributes:
        buckets: Occupied buckets, ascending.
        counts: How many values fell into each.
        minimum: The smallest value.
        maximum: The largest value.
    """

    buckets: NDArray[np.int64]
    counts: NDArray[np.int64]
    minimum: np.float32
    maximum: np.float32

    def distribution(self) -> Distribution:
        """The values as they read back, with the extremes exact."""
        values, counts = values_of(self.buckets), self.counts
        low, high = float(self.minimum), float(self.maximum)
        inner = np.clip(values, low, high)
        if counts.sum() == 1:
            return Distribution(np.array([low]), counts)
        # One of the values in the outer buckets is the extreme itself.
        taken = counts.copy()
        taken[0] -= 1
        taken[-1] -= 1
        return Distribution(
            np.concatenate([[low], inner, [high]]), np.concatenate([[1], taken, [1]])
        )


def merge(histograms: list[Histogram]) -> Histogram:
    """The histogram of all values of several."""
    buckets, counts = _combine(
        np.concatenate([h.buckets for h in histograms]),
        np.concatenate([h.counts for h in histograms]),
    )
    return Histogram(
        buckets=buckets,
        counts=counts,
        minimum=min(h.minimum for h in histograms),
        maximum=max(h.maximum for h in histograms),
    )


def _combine(
    keys: NDArray[np.int64], counts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    unique, inverse = np.unique(keys, return_inverse=True)
    total = np.zeros(len(unique), np.int64)
    np.add.at(total, inverse, counts)
    return unique, total


class HistogramTable:
    """Histograms of all heads of one layer, filled batch by batch.

    Args:
        heads: Number of heads.
    """

    def __init__(self, heads: int) -> None:
        self.heads = heads
        self._keys: list[NDArray[np.int64]] = []
        self._counts: list[NDArray[np.int64]] = []
        self._pending = 0
        self._minimum = np.full(heads, np.inf, np.float32)
        self._maximum = np.full(heads, -np.inf, np.float32)

    def add(self, values: NDArray[np.float32]) -> None:
        """Count `[token, head]` values."""
        self._minimum = np.minimum(self._minimum, values.min(axis=0))
        self._maximum = np.maximum(self._maximum, values.max(axis=0))
        keys = buckets_of(np.ascontiguousarray(values)) + (np.arange(self.heads) << BITS)
        unique, counts = np.unique(keys, return_counts=True)
        self._keys.append(unique)
        self._counts.append(counts.astype(np.int64))
        self._pending += len(unique)
        if self._pending > _COMPACT_ABOVE:
            self._compact()

    def _compact(self) -> None:
        keys, counts = _combine(np.concatenate(self._keys), np.concatenate(self._counts))
        self._keys, self._counts = [keys], [counts]
        self._pending = 0

    def histograms(self) -> list[Histogram]:
        """One histogram per head."""
        self._compact()
        keys, counts = self._keys[0], self._counts[0]
        edges = np.searchsorted(keys, np.arange(self.heads + 1) << BITS)
        mask = (1 << BITS) - 1
        return [
            Histogram(
                buckets=keys[edges[head] : edges[head + 1]] & mask,
                counts=counts[edges[head] : edges[head + 1]],
                minimum=self._minimum[head],
                maximum=self._maximum[head],
            )
            for head in range(self.heads)
        ]
