"""The manifest in memory: what the analyzer found, which gate was chosen, what verified it.

Every stage hands these frozen objects on; dictionaries exist only inside the reader and the writer.
The JSON Schema `schemas/manifest-v1.schema.json` is the truth about the file.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from headprune.errors import HeadpruneError

SCHEMA_VERSION = "1.0"
DEFAULT_FRACTIONS = (0.0, 0.05, 0.10, 0.15, 0.20, 0.25, 0.30)
DEFAULT_SCORE = "thon_ln"
DEFAULT_FRACTION = 0.10

Direction = Literal["above", "below"]
Granularity = Literal["sequence", "token"]
GateMode = Literal["dynamic", "static"]
DecodeRule = Literal["running", "new"]
SourceKind = Literal["jsonl", "text", "parquet", "hub", "builtin"]


@dataclass(frozen=True, kw_only=True)
class LayerHeads:
    """Attention geometry of one layer.

    Attributes:
        query_heads: H, the number of query heads.
        kv_heads: Number of key-value heads; divides `query_heads`.
        head_dim: Width of one head's output; `query_heads * head_dim` need not be the hidden size.
    """

    query_heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """Which model was profiled: its name, and the hashes that are its identity.

    Attributes:
        name: Hub id, or the last part of the directory's path.
        revision: Commit of the hub repository, if it came from the hub.
        weights_sha256: SHA-256 over the names, types, shapes and contents of all tensors.
        config_sha256: SHA-256 over the settings in config.json.
        model_type: `model_type` of the configuration.
        dtype: Data type the analysis ran in, such as `float32`.
        layers: Geometry of every layer with softmax attention, in order.
        left_out_layers: Indices of the model's other layers, ascending; scores have none of them.
    """

    name: str
    revision: str | None
    weights_sha256: str
    config_sha256: str
    model_type: str
    dtype: str
    layers: tuple[LayerHeads, ...]
    left_out_layers: tuple[int, ...] = ()

    def difference(self, other: ModelInfo) -> str | None:
        """How another model differs from this one, in words; None if it is the same model."""
        for what, own, its in (
            ("weights", self.weights_sha256, other.weights_sha256),
            ("config.json", self.config_sha256, other.config_sha256),
        ):
            if own != its:
                return f"hash of {what} {its[:12]}…, expected {own[:12]}…"
        return None

    @property
    def layer_indices(self) -> tuple[int, ...]:
        """The model's own index of each of `layers`."""
        count = len(self.layers) + len(self.left_out_layers)
        return tuple(index for index in range(count) if index not in self.left_out_layers)

    @property
    def head_count(self) -> int:
        """Query heads of the whole model."""
        return sum(layer.query_heads for layer in self.layers)


def describe_layers(indices: Sequence[int]) -> str:
    """Ascending layer indices in words, such as `0-2, 4, 6-8`."""
    runs: list[list[int]] = []
    for index in indices:
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


@dataclass(frozen=True, kw_only=True)
class TokenizerInfo:
    """Identity of the tokenizer and what it does at the start of a sequence.

    Attributes:
        sha256: SHA-256 of the tokenizer's vocabulary, merges and special tokens.
        bos: `added` if encoding a text puts exactly one BOS token in front, else `none`.
    """

    sha256: str
    bos: Literal["added", "none"]


@dataclass(frozen=True, kw_only=True)
class CalibrationSource:
    """One source of calibration text.

    Attributes:
        name: File name, `builtin`, or hub id with the configuration and split asked for.
        kind: How it was read.
        weight: Its share of the sequences asked for, relative to the other sources' weights.
        documents: Documents read from it.
        sequences: Sequences taken from it.
    """

    name: str
    kind: SourceKind
    weight: float
    documents: int
    sequences: int


@dataclass(frozen=True, kw_only=True)
class CalibrationInfo:
    """Which text the scores were taken on.

    Attributes:
        sources: Where it is from; the sequences of the first source come first.
        sha256: Hash of the documents that were used, in order.
        sequences: Number of sequences.
        tokens: Real tokens over all sequences.
        length_range: Shortest and longest length that could be drawn, in tokens.
        seed: Seed of the choice of documents and lengths.
        cut: Sequences cut to the length drawn for them.
        skipped: Documents passed over because they were empty or shorter than the range allows.
        duplicates: Documents dropped before the draw because an earlier one is the same.
    """

    sources: tuple[CalibrationSource, ...]
    sha256: str
    sequences: int
    tokens: int
    length_range: tuple[int, int]
    seed: int
    cut: int
    skipped: int
    duplicates: int


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """The threshold at which `fraction` of all cells of a score are inactive."""

    fraction: float
    threshold: float


@dataclass(frozen=True, kw_only=True)
class HeadStatistics:
    """A score's distribution per head; each field is indexed `[layer][head]`.

    Attributes:
        mean: Mean over sequences or tokens.
        std: Population standard deviation.
        minimum: Smallest value.
        q25: First quartile.
        median: Second quartile.
        q75: Third quartile.
        maximum: Largest value.
        inactive_share: For each of the score's thresholds, in order, the share of the head's
            cells that are inactive there: `[threshold][layer][head]`.
    """

    mean: tuple[tuple[float, ...], ...]
    std: tuple[tuple[float, ...], ...]
    minimum: tuple[tuple[float, ...], ...]
    q25: tuple[tuple[float, ...], ...]
    median: tuple[tuple[float, ...], ...]
    q75: tuple[tuple[float, ...], ...]
    maximum: tuple[tuple[float, ...], ...]
    inactive_share: tuple[tuple[tuple[float, ...], ...], ...]


@dataclass(frozen=True, kw_only=True)
class ScoreSummary:
    """What calibration found out about one score.

    Attributes:
        granularity: `sequence` or `token`: what one cell is.
        inactive_when: Side of the threshold on which a head is inactive.
        quantiles: 101 quantiles of the pooled score, at 0 %, 1 %, …, 100 %.
        thresholds: Thresholds at the fractions asked for.
        heads: Distribution per layer and head.
    """

    granularity: Granularity
    inactive_when: Direction
    quantiles: tuple[float, ...]
    thresholds: tuple[Threshold, ...]
    heads: HeadStatistics


@dataclass(frozen=True, kw_only=True)
class RawScores:
    """The safetensors file of raw scores beside the manifest.

    Attributes:
        file: Its name, in the manifest's directory.
        sha256: Its hash.
        relative_error: Largest relative error of a token score read back from its histogram.
    """

    file: str
    sha256: str
    relative_error: float


@dataclass(frozen=True, kw_only=True)
class Gate:
    """The gate chosen for deployment.

    Attributes:
        score: Score id that decides, such as `thon_ln`.
        granularity: Granularity of that score.
        inactive_when: Direction of that score.
        mode: `dynamic` decides in every forward; `static` switches `heads` off for good.
        threshold: Threshold of the score.
        fraction: The fraction of cells asked for, or None if the threshold was given itself.
        decode: For a dynamic gate of sequence granularity: `running` scores the whole sequence so
            far, `new` the new tokens alone. None otherwise.
        share: For a static gate chosen by score: heads inactive in at least this share of cells.
        heads: `(layer, head)` pairs that are always off, sorted. In a dynamic gate they are off
            besides those that the score finds.
    """

    score: str
    granularity: Granularity
    inactive_when: Direction
    mode: GateMode
    threshold: float
    fraction: float | None = None
    decode: DecodeRule | None = None
    share: float | None = None
    heads: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        if not math.isfinite(self.threshold):
            raise HeadpruneError(
                f"gate threshold is {self.threshold}, expected a finite number",
                hint="pass --threshold X, or --fraction P to take it from the manifest",
            )
        if self.fraction is not None and not 0 <= self.fraction <= 1:
            raise HeadpruneError(
                f"gate fraction is {self.fraction}, expected a number from 0 to 1",
                hint="for ten percent pass --fraction 0.10",
            )

    @property
    def has_state(self) -> bool:
        """Whether a decode step needs sums and counts of the tokens before it."""
        return self.mode == "dynamic" and self.decode == "running"


@dataclass(frozen=True, kw_only=True)
class OperatingPoint:
    """An accuracy measured at one gate.

    Attributes:
        score: Score id.
        fraction: Fraction of cells gated.
        threshold: Threshold used.
        task: Task that was measured.
        accuracy: Accuracy of the gated model, 0 to 1.
        baseline: Accuracy of the ungated model, 0 to 1.
        verdict: PASS, FAIL, INCONCLUSIVE or INVALID.
    """

    score: str
    fraction: float
    threshold: float
    task: str
    accuracy: float
    baseline: float
    verdict: str


@dataclass(frozen=True, kw_only=True)
class Shard:
    """Which share of the calibration set a partial analysis covers.

    Attributes:
        index: From 0.
        count: How many there are.
    """

    index: int
    count: int


@dataclass(frozen=True, kw_only=True)
class Artefact:
    """The exported files that this manifest lies beside.

    Attributes:
        format: `onnx`.
        graph: Name of the graph file in this directory.
        opset: Version of the default operator set.
        files: SHA-256 of the graph and of its external data, by file name.
    """

    format: Literal["onnx"]
    graph: str
    opset: int
    files: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """All that headprune knows of a model, its calibration and its gate."""

    tool_version: str
    model: ModelInfo
    tokenizer: TokenizerInfo
    calibration: CalibrationInfo
    scores: dict[str, ScoreSummary]
    raw_scores: RawScores | None = None
    gate: Gate | None = None
    operating_points: tuple[OperatingPoint, ...] = ()
    artefact: Artefact | None = None
    shard: Shard | None = None
    schema_version: str = field(default=SCHEMA_VERSION)
