"""Scores of the heads' outputs before the output projection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headprune.analyzer.scores.registry import TINY, at_last, masked_mean, score

if TYPE_CHECKING:
    from torch import Tensor

    from headprune.analyzer.capture import Capture


@score("ahon", title="Average Head Output Norm", inactive_when="below", layer_normalised=True)
def ahon(c: Capture) -> Tensor:
    """Mean L2 norm of each head's output over the sequence's real tokens. [batch, head]"""
    return masked_mean(c.output_norm, c.mask)


@score("lthon", title="Last Token Head Output Norm", inactive_when="below", layer_normalised=True)
def lthon(c: Capture) -> Tensor:
    """L2 norm of each head's output at the last real token. [batch, head]"""
    return at_last(c.output_norm, c.mask)


@score(
    "lthon_hn",
    title="Last Token Head Output Norm over the Head's Average",
    inactive_when="below",
)
def lthon_hn(c: Capture) -> Tensor:
    """The last token's output norm over the head's own average output norm. [batch, head]"""
    return lthon(c) / ahon(c).clamp(min=TINY)


@score(
    "thon",
    title="Token's Head Output Norm",
    inactive_when="below",
    granularity="token",
    layer_normalised=True,
    reference="headprune, after arXiv 2504.03889",
)
def thon(c: Capture) -> Tensor:
    """L2 norm of each head's output at each token. [batch, position, head]"""
    return c.output_norm
