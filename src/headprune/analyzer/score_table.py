"""All scores of a calibration run: raw for sequences, histograms for tokens. NumPy alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headprune.analyzer.distribution import Distribution, distribution_of
from headprune.analyzer.histogram import Histogram, HistogramTable, encode, narrow
from headprune.manifests.model import Granularity

Floats = NDArray[np.float32]
Tensors = Mapping[str, NDArray[Any]]


class ScoreKind(Protocol):
    """What the table must know of a score."""

    @property
    def id(self) -> str:
        """Its id."""

    @property
    def granularity(self) -> Granularity:
        """`sequence` or `token`."""


@dataclass(frozen=True, kw_only=True)
class LayerScores:
    """The scores of one layer for one batch.

    Attributes:
        layer: Index of the layer in the model.
        sequences: Number of each sequence of the batch in the calibration set.
        values: By score id: `[sequence, head]`, or `[real token, head]` for token scores.
    """

    layer: int
    sequences: tuple[int, ...]
    values: dict[str, Floats]


class ScoreTable:
    """Holds every score of a calibration run, and nothing else of it.

    Args:
        scores: Id and granularity of the scores.
        sequences: How many sequences the calibration set has.
    """

    def __init__(self, scores: Sequence[ScoreKind], sequences: int) -> None:
        self.granularity: dict[str, Granularity] = {s.id: s.granularity for s in scores}
        self.sequences = sequences
        self._rows: dict[str, dict[int, Floats]] = {s: {} for s in self._ids("sequence")}
        self._histograms: dict[str, dict[int, HistogramTable]] = {s: {} for s in self._ids("token")}
        self._heads: dict[int, int] = {}

    def record(self, scores: LayerScores) -> None:
        """Keep the scores of one layer for one batch."""
        for name, values in scores.values.items():
            heads = self._heads.setdefault(scores.layer, values.shape[1])
            if self.granularity[name] == "sequence":
                self._row(name, scores.layer, heads)[list(scores.sequences)] = values
        names = [name for name in scores.values if self.granularity[name] == "token"]
        if names:
            encoded = encode(np.stack([scores.values[name] for name in names]))
            for index, name in enumerate(names):
                self._histogram(name, scores.layer, self._heads[scores.layer]).add(encoded[index])

    def absorb(self, tensors: Tensors) -> None:
        """Keep what another table holds; `tensors` are its `tensors()`."""
        heads = dict(tensors["layers"].tolist())
        self._heads.update(heads)
        for name in self._ids("sequence"):
            raw = tensors[f"sequence.{name}"]
            for position, (layer, count) in enumerate(heads.items()):
                row = self._row(name, layer, count)
                other = raw[:, position, :count]
                known = ~np.isnan(other[:, 0])
                row[known] = other[known]
        for name in self._ids("token"):
            flat = iter(read_histograms(tensors, name))
            for layer, count in heads.items():
                self._histogram(name, layer, count).absorb([next(flat) for _ in range(count)])

    def distributions(self, name: str) -> list[list[Distribution]]:
        """The distribution of one score per layer and head."""
        return distributions_of(self.tensors([name]), name, self.granularity[name])

    def tensors(self, names: Sequence[str] | None = None) -> dict[str, NDArray[Any]]:
        """All raw scores, named as in the file beside the manifest.

        `layers` is `[layer, 2]`: index in the model and number of query heads. `sequence.<score>`
        is float32 `[sequence, layer, head]` (NaN where a layer has fewer heads than the widest, or
        a sequence was profiled elsewhere). `token.<score>.bucket` and `.count` list the occupied
        buckets of all histograms, layer by layer and head by head; `.offset`, `[layer * head + 1]`,
        says where each histogram begins; `.minimum` and `.maximum` are the exact extremes.
        """
        heads = dict(sorted(self._heads.items()))
        tensors: dict[str, NDArray[Any]] = {"layers": np.array([*heads.items()], np.int32)}
        for name in names or self.granularity:
            if self.granularity[name] == "sequence":
                shape = (self.sequences, len(heads), max(heads.values()))
                raw = np.full(shape, np.nan, np.float32)
                for position, (layer, count) in enumerate(heads.items()):
                    raw[:, position, :count] = self._row(name, layer, count)
                tensors[f"sequence.{name}"] = raw
            else:
                tables = [self._histograms[name][layer] for layer in heads]
                tensors |= histogram_tensors(name, [h for t in tables for h in t.histograms()])
        return tensors

    def _ids(self, granularity: Granularity) -> list[str]:
        return [name for name, kind in self.granularity.items() if kind == granularity]

    def _row(self, name: str, layer: int, heads: int) -> Floats:
        rows = self._rows[name]
        if layer not in rows:
            rows[layer] = np.full((self.sequences, heads), np.nan, np.float32)
        return rows[layer]

    def _histogram(self, name: str, layer: int, heads: int) -> HistogramTable:
        tables = self._histograms[name]
        if layer not in tables:
            tables[layer] = HistogramTable(heads)
        return tables[layer]


def histogram_tensors(name: str, histograms: list[Histogram]) -> dict[str, NDArray[Any]]:
    """The five tensors of one token score."""
    sizes = [len(h.buckets) for h in histograms]
    return {
        f"token.{name}.bucket": np.concatenate([h.buckets for h in histograms]),
        f"token.{name}.count": narrow(np.concatenate([h.counts for h in histograms])),
        f"token.{name}.offset": np.cumsum([0, *sizes], dtype=np.int64),
        f"token.{name}.minimum": np.array([h.minimum for h in histograms]),
        f"token.{name}.maximum": np.array([h.maximum for h in histograms]),
    }


def read_histograms(tensors: Tensors, name: str) -> list[Histogram]:
    """The histograms of a token score, layer by layer and head by head."""
    part = {
        field: tensors[f"token.{name}.{field}"]
        for field in ("bucket", "count", "offset", "minimum", "maximum")
    }
    return [
        Histogram(
            buckets=part["bucket"][low:high],
            counts=part["count"][low:high],
            minimum=np.float32(part["minimum"][index]),
            maximum=np.float32(part["maximum"][index]),
        )
        for index, (low, high) in enumerate(pairwise(part["offset"].tolist()))
    ]


def distributions_of(
    tensors: Tensors, name: str, granularity: Granularity
) -> list[list[Distribution]]:
    """The distribution of one score per layer and head, over the sequences that were profiled."""
    heads = tensors["layers"][:, 1].tolist()
    if granularity == "token":
        flat = iter(read_histograms(tensors, name))
        return [[next(flat).distribution() for _ in range(count)] for count in heads]
    raw = tensors[f"sequence.{name}"]
    raw = raw[~np.isnan(raw[:, 0, 0])]
    return [
        [distribution_of(raw[:, layer, head]) for head in range(count)]
        for layer, count in enumerate(heads)
    ]
