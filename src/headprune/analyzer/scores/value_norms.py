"""Scores of the value vectors of each head's KV group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headprune.analyzer.scores.registry import at_first, masked_mean, score

if TYPE_CHECKING:
    from torch import Tensor

    from headprune.analyzer.capture import Capture


@score("avvn", title="Average Value Vector Norm", inactive_when="below", layer_normalised=True)
def avvn(c: Capture) -> Tensor:
    """Mean L2 norm of the head's value vectors over the sequence's real tokens. [batch, head]"""
    return masked_mean(c.value_norm, c.mask)


@score("ftvvn", title="First Token Value Vector Norm", inactive_when="below", layer_normalised=True)
def ftvvn(c: Capture) -> Tensor:
    """L2 norm of the head's value vector at the first real token. [batch, head]"""
    return at_first(c.value_norm, c.mask)


@score(
    "tvvn",
    title="Token's Value Vector Norm",
    inactive_when="below",
    granularity="token",
    layer_normalised=True,
    reference="headprune, after arXiv 2504.03889",
)
def tvvn(c: Capture) -> Tensor:
    """L2 norm of the head's value vector at each token. [batch, position, head]"""
    return c.value_norm
