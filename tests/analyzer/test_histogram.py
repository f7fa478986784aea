"""Histograms over leading bits: exact counts, stated error, the same in any order and pieces."""

from __future__ import annotations

import numpy as np
import pytest

from headprune.analyzer.distribution import distribution_of, pooled
from headprune.analyzer.histogram import (
    RELATIVE_ERROR,
    Histogram,
    HistogramTable,
    buckets_of,
    encode,
    values_of,
)
from headprune.errors import HeadpruneError


def samples(seed: int = 0) -> np.ndarray:
    draw = np.random.default_rng(seed)
    spread = np.exp(draw.normal(0, 6, (500, 3)))
    return (spread * draw.choice([-1, 1, 1], spread.shape)).astype(np.float32)


def test_buckets_keep_the_order() -> None:
    values = np.sort(samples(), axis=None)
    assert (np.diff(buckets_of(values)) >= 0).all()


def test_values_read_back_within_the_stated_error_and_towards_zero() -> None:
    values = samples().ravel()
    back = values_of(buckets_of(values))
    assert (np.abs(back - values) <= RELATIVE_ERROR * np.abs(values)).all()
    assert (np.abs(back) <= np.abs(values)).all()


@pytest.mark.parametrize("value", [0.0, 1.0, -1.0, 0.5, 8.0, 1.5])
def test_short_fractions_read_back_as_themselves(value: float) -> None:
    assert values_of(buckets_of(np.array([value], np.float32))) == value


@pytest.mark.parametrize("pieces", [1, 2, 7, 500])
def test_order_and_pieces_change_nothing(pieces: int) -> None:
    values = samples()
    table = HistogramTable(3)
    for part in np.array_split(values[::-1], pieces):
        table.add(encode(part))
    whole = HistogramTable(3)
    whole.add(encode(values))
    for got, wanted in zip(table.histograms(), whole.histograms(), strict=True):
        assert_same(got, wanted)


@pytest.mark.parametrize("before", [0, 1, 200])
def test_absorbed_parts_are_the_whole(before: int) -> None:
    values = samples()
    first, second, whole = (HistogramTable(3) for _ in range(3))
    first.add(encode(values[:200]))
    if before:
        second.add(encode(values[-before:]))
    second.absorb(first.histograms())
    whole.add(encode(np.concatenate([values[:200], values[len(values) - before :]])))
    for got, wanted in zip(second.histograms(), whole.histograms(), strict=True):
        assert_same(got, wanted)


def test_counts_are_exact_beyond_every_narrow_type() -> None:
    table = HistogramTable(2)
    for size in (200, 100, 70_000):
        table.add(encode(np.ones((size, 2), np.float32)))
    for histogram in table.histograms():
        assert histogram.counts.tolist() == [70_300]
    for _ in range(3):
        table.absorb(table.histograms())
    assert [h.counts.tolist() for h in table.histograms()] == [[8 * 70_300]] * 2


def test_a_layer_has_at_most_4096_heads() -> None:
    values = np.linspace(-1, 1, 2 * 4096, dtype=np.float32).reshape(2, 4096)
    table = HistogramTable(4096)
    table.add(encode(values))
    assert [h.minimum for h in table.histograms()] == values.min(axis=0).tolist()
    with pytest.raises(HeadpruneError, match="4096"):
        HistogramTable(4097)


@pytest.mark.parametrize("count", [1, 2, 3, 500])
def test_the_distribution_has_every_value_and_the_exact_extremes(count: int) -> None:
    values = samples()[:count]
    table = HistogramTable(3)
    table.add(encode(values))
    for head, histogram in enumerate(table.histograms()):
        distribution = histogram.distribution()
        ordered = np.sort(values[:, head].astype(np.float64))
        assert distribution.counts.sum() == count
        assert (np.diff(distribution.values) >= 0).all()
        got = distribution.quantile(np.linspace(0, 1, count))
        np.testing.assert_allclose(got, ordered, rtol=RELATIVE_ERROR)
        assert got[0] == ordered[0]
        assert got[-1] == ordered[-1]


@pytest.mark.parametrize("size", [1, 2, 10, 999])
def test_quantiles_are_numpys(size: int) -> None:
    values = np.random.default_rng(size).normal(size=size).astype(np.float32)
    levels = np.linspace(0, 1, 37)
    got = distribution_of(values).quantile(levels)
    np.testing.assert_allclose(got, np.quantile(values.astype(np.float64), levels), rtol=1e-12)


def test_counted_quantiles_are_those_of_the_values_written_out() -> None:
    values = np.array([1.0, 2.0, 5.0])
    counts = np.array([3, 1, 4])
    parts = [distribution_of(np.repeat(values, counts)[::2]), distribution_of(
        np.repeat(values, counts)[1::2])]  # fmt: skip
    levels = np.linspace(0, 1, 23)
    wanted = np.quantile(np.repeat(values, counts), levels)
    np.testing.assert_allclose(pooled(parts).quantile(levels), wanted, rtol=1e-12)


def test_moments_and_shares_are_numpys() -> None:
    values = np.random.default_rng(1).normal(size=100).astype(np.float32)
    distribution = distribution_of(values)
    assert distribution.mean() == pytest.approx(values.mean(dtype=np.float64))
    assert distribution.std() == pytest.approx(values.std(dtype=np.float64))
    assert distribution.share(0.3, "below") == pytest.approx((values < 0.3).mean())
    assert distribution.share(float(values[0]), "above") == (values > values[0]).mean()


def assert_same(got: Histogram, wanted: Histogram) -> None:
    np.testing.assert_array_equal(got.buckets, wanted.buckets)
    np.testing.assert_array_equal(got.counts, wanted.counts)
    assert (got.minimum, got.maximum) == (wanted.minimum, wanted.maximum)
