"""Run a model that is in memory over the calibration set, and record every score."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from headprune.analyzer.batches import Batch
from headprune.analyzer.capture import capture_layer
from headprune.analyzer.collector import collect
from headprune.analyzer.heap import release
from headprune.analyzer.interception import AttentionCall, intercepted
from headprune.analyzer.projection import ProjectionNorm
from headprune.analyzer.score_table import LayerScores
from headprune.analyzer.scores import Score

LARGE = 4 << 20  # bytes of a layer's output from which its memory matters more than its pages' cost


def profile_batch(
    model: PreTrainedModel,
    batch: Batch,
    scores: Sequence[Score],
    projection: ProjectionNorm,
    *,
    seed: int = 0,
) -> list[LayerScores]:
    """The scores of all layers for one batch; the language-model head is not run.

    Args:
        model: Any model the analyzer serves.
        batch: Sequences.
        scores: Scores to compute.
        projection: Of this model; its factors are kept from batch to batch.
        seed: Seed of seeded scores.
    """
    found: list[LayerScores] = []
    ids, mask = batch.tensors(model.device)
    with (
        torch.inference_mode(),
        intercepted(model, collecting(found, batch, scores, projection, seed=seed)),
    ):
        model.base_model(input_ids=ids, attention_mask=mask, use_cache=False)
    return found


def collecting(
    found: list[LayerScores],
    batch: Batch,
    scores: Sequence[Score],
    projection: ProjectionNorm,
    *,
    seed: int,
) -> Callable[[AttentionCall], Tensor]:
    """A handler of attention calls that appends each layer's scores to `found`."""
    weights = any(score.reads_weights for score in scores)

    def handler(call: AttentionCall) -> Tensor:
        capture = capture_layer(
            call, weights=weights, projection=projection, sequences=batch.sequences, seed=seed
        )
        found.append(collect(capture, scores))
        if capture.output.nbytes > LARGE:
            release()
        return capture.output

    return handler


class Meter:
    """Says how far the work is, how fast, and how long it will take.

    Args:
        total: Amount of all work, in tokens (times layers where the work goes layer by layer).
        tell: Told a line at a time.
        unit: What is counted.
    """

    def __init__(self, total: int, tell: Callable[[str], None], *, unit: str) -> None:
        self.total = total
        self.tell = tell
        self.unit = unit
        self.done = self.skipped = 0
        self.started = time.monotonic()

    def skip(self, amount: int) -> None:
        """Count work that an earlier run has done."""
        self.skipped += amount
        self.done += amount

    def advance(self, amount: int) -> None:
        """Count work and tell."""
        self.done += amount
        seconds = max(time.monotonic() - self.started, 1e-9)
        rate = max(self.done - self.skipped, 1) / seconds
        left = int((self.total - self.done) / rate)
        self.tell(
            f"profiled {self.done:,}/{self.total:,} {self.unit}, {rate:,.0f}/s, "
            f"{left // 60}:{left % 60:02d} left"
        )


@dataclass(frozen=True, kw_only=True)
class Work:
    """What to profile, and what becomes of it; the same in memory and streamed.

    Attributes:
        batches: Batches of the calibration set.
        scores: Scores to compute.
        record: Given the name of each unit of work and its scores.
        done: Names of the units that an earlier run has recorded.
        tell: Told of the progress, a line at a time.
        seed: Seed of seeded scores.
    """

    batches: Sequence[Batch]
    scores: Sequence[Score]
    record: Callable[[str, Sequence[LayerScores]], None]
    done: set[str]
    tell: Callable[[str], None]
    seed: int

    @property
    def size(self) -> int:
        """Real tokens."""
        return sum(batch.size for batch in self.batches)


def profile(model: PreTrainedModel, work: Work) -> None:
    """Run all batches that are not done yet through a model in memory."""
    projection = ProjectionNorm()
    meter = Meter(work.size, work.tell, unit="tokens")
    todo = [batch for batch in work.batches if str(batch.number) not in work.done]
    meter.skip(work.size - sum(batch.size for batch in todo))
    for batch in todo:
        found = profile_batch(model, batch, work.scores, projection, seed=work.seed)
        work.record(str(batch.number), found)
        meter.advance(batch.size)
