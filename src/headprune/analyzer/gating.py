"""The gate in PyTorch: the reference that an exported graph is compared with.

It runs the score functions themselves, so it can gate by any score, not by those alone that an
exporter has an op for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from headprune.analyzer.capture import Capture, capture_layer
from headprune.analyzer.interception import AttentionCall, intercepted
from headprune.analyzer.projection import ProjectionNorm
from headprune.analyzer.scores import Score, find_scores
from headprune.manifests.model import Gate


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What the gate decided in one layer.

    Attributes:
        layer: Index of the layer.
        scores: The scores, `[batch, head]` or `[batch, position, head]`; None for a static gate.
        keep: True where the head was kept, `[batch, position, head]`.
        mask: Real tokens, `[batch, position]`.
    """

    layer: int
    scores: Tensor | None
    keep: Tensor
    mask: Tensor


@contextmanager
def gated(
    model: PreTrainedModel, gate: Gate, *, observe: Callable[[Decision], None] | None = None
) -> Iterator[None]:
    """Gate the heads of `model` inside the block, in forwards over whole sequences.

    Layers act in order: a later layer sees what the earlier gates left.

    Args:
        model: Any model the analyzer serves.
        gate: Score, threshold, and heads that are always off.
        observe: Told each layer's decision in each forward.
    """
    (score,) = find_scores([gate.score])
    projection = ProjectionNorm()

    def handler(call: AttentionCall) -> Tensor:
        capture = capture_layer(
            call,
            weights=score.reads_weights and gate.mode == "dynamic",
            projection=projection,
            sequences=tuple(range(call.query.shape[0])),
        )
        decision = decide(capture, score, gate)
        if observe is not None:
            observe(decision)
        return capture.output * decision.keep[..., None]

    with intercepted(model, handler):
        yield


def decide(capture: Capture, score: Score, gate: Gate) -> Decision:
    """Which heads of one layer the gate keeps at which tokens."""
    batch, positions, heads, _ = capture.output.shape
    keep = torch.ones((batch, positions, heads), dtype=torch.bool, device=capture.output.device)
    scores = None
    if gate.mode == "dynamic":
        scores = score.function(capture)
        above = score.inactive_when == "above"
        inactive = scores > gate.threshold if above else scores < gate.threshold
        keep &= ~(inactive if score.granularity == "token" else inactive[:, None, :])
    off = [head for layer, head in gate.heads if layer == capture.layer]
    keep[:, :, off] = False
    return Decision(layer=capture.layer, scores=scores, keep=keep, mask=capture.mask)
