"""Scores of the attention weights: on the first token, and their entropy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headprune.analyzer.scores.registry import masked_mean, score

if TYPE_CHECKING:
    from torch import Tensor

    from headprune.analyzer.capture import Capture


@score(
    "awft",
    title="Average Weight on the First Token",
    inactive_when="above",
    reads_weights=True,
    layer_normalised=True,
)
def awft(c: Capture) -> Tensor:
    """Mean attention weight on the first token over the sequence's real tokens. [batch, head]"""
    return masked_mean(c.first_weight, c.mask)


@score(
    "twft",
    title="Token's Weight on the First Token",
    inactive_when="above",
    granularity="token",
    reads_weights=True,
    layer_normalised=True,
    reference="headprune, after arXiv 2504.03889",
)
def twft(c: Capture) -> Tensor:
    """Attention weight of each token on the first token. [batch, position, head]"""
    return c.first_weight


@score(
    "aeqd",
    title="Average Entropy of the Query Distribution",
    inactive_when="below",
    reads_weights=True,
    layer_normalised=True,
)
def aeqd(c: Capture) -> Tensor:
    """Mean entropy of the attention rows over the sequence's real tokens, in nats. [batch, head]"""
    return masked_mean(c.entropy, c.mask)


@score(
    "teqd",
    title="Token's Entropy of the Query Distribution",
    inactive_when="below",
    granularity="token",
    reads_weights=True,
    layer_normalised=True,
    reference="headprune, after arXiv 2504.03889",
)
def teqd(c: Capture) -> Tensor:
    """Entropy of each token's attention row, in nats. [batch, position, head]"""
    return c.entropy
