"""Scores of the heads' outputs after their slices of the output projection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headprune.analyzer.scores.registry import masked_mean, score

if TYPE_CHECKING:
    from torch import Tensor

    from headprune.analyzer.capture import Capture


@score("fhon", title="Final Head Output Norm", inactive_when="below", layer_normalised=True)
def fhon(c: Capture) -> Tensor:
    """Mean L2 norm of each head's output after the projection, over real tokens. [batch, head]"""
    return masked_mean(c.projected_norm, c.mask)


@score(
    "tfhon",
    title="Token's Final Head Output Norm",
    inactive_when="below",
    granularity="token",
    layer_normalised=True,
    reference="headprune, after arXiv 2504.03889",
)
def tfhon(c: Capture) -> Tensor:
    """L2 norm of each head's output after the projection at each token. [batch, position, head]"""
    return c.projected_norm
