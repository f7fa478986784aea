"""Exactly mergeable histograms of float32 values over their leading bits.

A bucket is the first 20 bits of a float32 in an order-preserving encoding: sign, exponent and 11
bits of the mantissa. Counting is exact, so histograms of the same values are the same in whatever
order and pieces they were made. A value reads back as its bucket's edge towards 0, at most 2⁻¹¹ too
small; 0, 1 and other short fractions read back as themselves. The extremes are kept exactly, so
that the threshold at 0 % calls nothing inactive.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headprune.analyzer.distribution import Distribution
from headprune.errors import HeadpruneError

Keys = NDArray[np.uint32]
Counts = NDArray[np.unsignedinteger[Any]]

BITS = 20
RELATIVE_ERROR = 2.0**-11
_DROPPED = 32 - BITS
_SIGN = np.uint32(1 << 31)
MANY = 1 << 16
_MAX_HEADS = 1 << (32 - BITS)


def buckets_of(values: NDArray[np.float32]) -> NDArray[np.uint32]:
    """The bucket of each value; buckets are ordered as the values are."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    # Negative floats count down as their bits count up: flip all their bits, else the sign alone.
    negative = (bits.view(np.int32) >> 31).view(np.uint32)
    ordered: NDArray[np.uint32] = bits ^ (negative | _SIGN)
    ordered >>= np.uint32(_DROPPED)
    return ordered


def values_of(buckets: NDArray[np.uint32]) -> NDArray[np.float64]:
    """The edge towards 0 of each bucket."""
    low = buckets << np.uint32(_DROPPED)
    # A negative bucket runs from its lowest ordered code, its most negative value, towards 0.
    nearest = np.where(low & _SIGN, low, low | np.uint32((1 << _DROPPED) - 1))
    bits = np.where(nearest & _SIGN, nearest ^ _SIGN, ~nearest)
    return bits.view(np.float32).astype(np.float64)


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """Counts of one head's values.

    Attributes:
        buckets: Occupied buckets, ascending, uint32.
        counts: How many values fell into each, an unsigned type as wide as they need.
        minimum: The smallest value.
        maximum: The largest value.
    """

    buckets: Keys
    counts: Counts
    minimum: np.float32
    maximum: np.float32

    def distribution(self) -> Distribution:
        """The values as they read back, with the extremes exact."""
        values, counts = values_of(self.buckets), self.counts.astype(np.int64)
        low, high = float(self.minimum), float(self.maximum)
        inner = np.clip(values, low, high)
        if counts.sum() == 1:
            return Distribution(np.array([low]), counts)
        # One of the values in the outer buckets is the extreme itself.
        counts[0] -= 1
        counts[-1] -= 1
        return Distribution(
            np.concatenate([[low], inner, [high]]), np.concatenate([[1], counts, [1]])
        )


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """Values made ready to be counted.

    Attributes:
        buckets: `[…, head, token]`.
        minimum: `[…, head]`.
        maximum: `[…, head]`.
    """

    buckets: Keys
    minimum: NDArray[np.float32]
    maximum: NDArray[np.float32]

    def __getitem__(self, index: int) -> Encoded:
        """One score of several."""
        return Encoded(
            buckets=self.buckets[index], minimum=self.minimum[index], maximum=self.maximum[index]
        )


def encode(values: NDArray[np.float32]) -> Encoded:
    """Encode `[…, token, head]` values, of several scores at once if need be."""
    rows = np.ascontiguousarray(np.swapaxes(values, -1, -2))
    return Encoded(buckets=buckets_of(rows), minimum=rows.min(axis=-1), maximum=rows.max(axis=-1))


class HistogramTable:
    """Histograms of all heads of one layer, filled batch by batch.

    A key is a head and a bucket in 32 bits. New keys wait until there are many of them, and as many
    as keys at rest; counts at rest are as narrow as they can be, since most are small.

    Args:
        heads: Number of heads, at most 4,096.
    """

    def __init__(self, heads: int) -> None:
        if heads > _MAX_HEADS:
            raise HeadpruneError(
                f"a layer has {heads} heads, expected at most {_MAX_HEADS}",
                hint="leave out the scores of tokens: --scores awft,ahon,…",
            )
        self.heads = heads
        self._keys: Keys = np.empty(0, np.uint32)
        self._counts: Counts = np.empty(0, np.uint8)
        self._raw: list[Keys] = []
        self._counted: list[tuple[Keys, Counts]] = []
        self._waiting = 0
        self._minimum = np.full(heads, np.inf, np.float32)
        self._maximum = np.full(heads, -np.inf, np.float32)

    def add(self, values: Encoded) -> None:
        """Count the values of one score, `[head, token]`."""
        self._minimum = np.minimum(self._minimum, values.minimum)
        self._maximum = np.maximum(self._maximum, values.maximum)
        keys = values.buckets | self._head_bits()[:, None]
        self._raw.append(keys.ravel())
        self._wait(keys.size)

    def absorb(self, histograms: list[Histogram]) -> None:
        """Count what other histograms have counted, one per head."""
        self._minimum = np.minimum(self._minimum, [h.minimum for h in histograms])
        self._maximum = np.maximum(self._maximum, [h.maximum for h in histograms])
        keys = [h.buckets | bits for h, bits in zip(histograms, self._head_bits(), strict=True)]
        counts = np.concatenate([h.counts for h in histograms])
        self._counted.append((np.concatenate(keys), counts))
        self._wait(len(counts))

    def histograms(self) -> list[Histogram]:
        """One histogram per head."""
        self._merge()
        edges = [*np.searchsorted(self._keys, self._head_bits()), len(self._keys)]
        return [
            Histogram(
                buckets=self._keys[edges[head] : edges[head + 1]] & np.uint32((1 << BITS) - 1),
                counts=self._counts[edges[head] : edges[head + 1]],
                minimum=self._minimum[head],
                maximum=self._maximum[head],
            )
            for head in range(self.heads)
        ]

    def _head_bits(self) -> Keys:
        return np.arange(self.heads, dtype=np.uint32) << np.uint32(BITS)

    def _wait(self, size: int) -> None:
        self._waiting += size
        if self._waiting > max(MANY, len(self._keys)):
            self._merge()

    def _merge(self) -> None:
        if self._raw:
            self._counted.append(count(np.concatenate(self._raw)))
        for counted in self._counted:
            self._keys, self._counts = add_counts((self._keys, self._counts), counted)
        self._raw, self._counted, self._waiting = [], [], 0


def count(keys: Keys) -> tuple[Keys, Counts]:
    """Distinct keys, ascending, and how often each occurs; sorts `keys` in place."""
    keys.sort()
    ends = last_of_each(keys)
    return keys[ends], narrow(np.diff(ends, prepend=np.int64(-1)))


def add_counts(one: tuple[Keys, Counts], other: tuple[Keys, Counts]) -> tuple[Keys, Counts]:
    """The sum of two counts of distinct keys."""
    if not len(one[0]):
        return other
    # Key and count side by side in 64 bits: sorting plain integers is several times as fast as
    # sorting an order, and sums over runs are differences of running sums, which wrap around alike.
    pairs = np.concatenate([pack(*one), pack(*other)])
    pairs.sort()
    keys = (pairs >> np.uint64(32)).astype(np.uint32)
    ends = last_of_each(keys)
    sums = np.cumsum(pairs.astype(np.uint32), dtype=np.uint32)[ends]
    return keys[ends], narrow(np.diff(sums, prepend=np.uint32(0)))


def last_of_each(keys: Keys) -> NDArray[np.int64]:
    """Where in ascending keys the last of each kind is."""
    ends = np.empty(len(keys), np.bool_)
    np.not_equal(keys[1:], keys[:-1], out=ends[:-1])
    ends[-1] = True
    return np.flatnonzero(ends)


def pack(keys: Keys, counts: Counts) -> NDArray[np.uint64]:
    """Keys above counts in 64 bits."""
    pairs = keys.astype(np.uint64)
    pairs <<= np.uint64(32)
    pairs |= counts
    return pairs


def narrow(counts: NDArray[Any]) -> Counts:
    """Counts in the narrowest unsigned type that holds them."""
    return counts.astype(np.min_scalar_type(int(counts.max())))
