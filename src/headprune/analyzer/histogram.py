"""Exactly mergeable histograms of float32 values over their leading bits.

A bucket is the first 20 bits of a float32 in an order-preserving encoding: sign, exponent and 11 bits
of the mantissa. Counting is exact, so histograms of the same values are the same in whatever order
and pieces they were made. A value read back is its bucket's midpoint, within 2⁻¹² of the value; the
manifest states 2⁻¹¹. Values below 6e-42 read back as 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
    """The midpoint of each bucket; the one around 0 reads as 0."""
    ordered = ((buckets.astype(np.uint64) << _DROPPED) + (1 << (_DROPPED - 1))).astype(np.uint32)
    bits = np.where(ordered & _SIGN, ordered ^ _SIGN, ~ordered)
    zero = (bits & ~_SIGN) < (1 << _DROPPED)
    return np.where(zero, 0.0, bits.view(np.float32)).astype(np.float64)


@dataclass(frozen=True)
class Histogram:
    """Counts of the occupied buckets of one head.

    Attributes:
        buckets: Occupied buckets, ascending.
        counts: How many values fell into each.
    """

    buckets: NDArray[np.int64]
    counts: NDArray[np.int64]

    @property
    def values(self) -> NDArray[np.float64]:
        """The values the buckets read back as, ascending."""
        return values_of(self.buckets)


def merge(histograms: list[Histogram]) -> Histogram:
    """The histogram of all values of several."""
    buckets = np.concatenate([h.buckets for h in histograms])
    counts = np.concatenate([h.counts for h in histograms])
    return _combine(buckets, counts)


def _combine(keys: NDArray[np.int64], counts: NDArray[np.int64]) -> Histogram:
    unique, inverse = np.unique(keys, return_inverse=True)
    total = np.zeros(len(unique), np.int64)
    np.add.at(total, inverse, counts)
    return Histogram(unique, total)


class HistogramTable:
    """Histograms of all heads of one layer, filled batch by batch."""

    def __init__(self, heads: int) -> None:
        self.heads = heads
        self._keys: list[NDArray[np.int64]] = []
        self._counts: list[NDArray[np.int64]] = []
        self._pending = 0

    def add(self, values: NDArray[np.float32]) -> None:
        """Count `[token, head]` values."""
        keys = buckets_of(np.ascontiguousarray(values)) + (np.arange(self.heads) << BITS)
        unique, counts = np.unique(keys, return_counts=True)
        self._keys.append(unique)
        self._counts.append(counts.astype(np.int64))
        self._pending += len(unique)
        if self._pending > _COMPACT_ABOVE:
            self._compact()

    def _compact(self) -> None:
        table = _combine(np.concatenate(self._keys), np.concatenate(self._counts))
        self._keys, self._counts = [table.buckets], [table.counts]
        self._pending = 0

    def histograms(self) -> list[Histogram]:
        """One histogram per head."""
        self._compact()
        keys, counts = self._keys[0], self._counts[0]
        edges = np.searchsorted(keys, np.arange(self.heads + 1) << BITS)
        mask = (1 << BITS) - 1
        return [
            Histogram(keys[low:high] & mask, counts[low:high])
            for low, high in zip(edges[:-1], edges[1:], strict=True)
        ]
