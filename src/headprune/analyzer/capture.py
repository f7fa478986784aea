"""What a score function sees of one layer in one forward pass."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from headprune.analyzer.attention import AttentionResult, attention
from headprune.analyzer.interception import AttentionCall
from headprune.analyzer.projection import ProjectionNorm
from headprune.errors import HeadpruneError


@dataclass(frozen=True, kw_only=True)
class Capture:
    """One layer's attention in one forward; the quantities per token are computed on first use.

    All quantities are float32 tensors `[batch, position, head]`; their values at padding mean
    nothing, so a score must aggregate with `mask`.

    Attributes:
        layer: Index of the layer.
        mask: Real tokens, `[batch, position]`, bool.
        sequences: Number of each sequence in the calibration set, for seeded scores.
        seed: Seed of seeded scores.
        call: The layer's queries, keys and values.
        result: Outputs, and the statistics of the attention weights if they were asked for.
        projection: Norms after the output projection.
        computed: What score functions have computed already.
    """

    layer: int
    mask: Tensor
    sequences: tuple[int, ...]
    seed: int
    call: AttentionCall
    result: AttentionResult
    projection: ProjectionNorm
    computed: dict[object, Tensor] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Whether all tokens are real."""
        return self.call.mask is None

    @property
    def output(self) -> Tensor:
        """o_i, the heads' outputs before the projection, `[batch, position, head, head_dim]`."""
        return self.result.output

    @cached_property
    def output_norm(self) -> Tensor:
        """‖o_i‖."""
        return norm(self.output)

    @cached_property
    def value_norm(self) -> Tensor:
        """‖v_i‖ of the head's KV group."""
        heads_per_group = self.call.query.shape[1] // self.call.value.shape[1]
        return norm(self.call.value).repeat_interleave(heads_per_group, dim=1).transpose(1, 2)

    @cached_property
    def projected_norm(self) -> Tensor:
        """‖o_i W_O^h‖, after the head's slice of the output projection."""
        return self.projection.norm(self.call.module, self.output)

    @property
    def first_weight(self) -> Tensor:
        """A_i,0, the attention weight on the first real token."""
        return self._weights(self.result.first_weight)

    @property
    def entropy(self) -> Tensor:
        """−Σ_j A_ij ln A_ij, in nats."""
        return self._weights(self.result.entropy)

    def _weights(self, statistic: Tensor | None) -> Tensor:
        if statistic is None:
            raise HeadpruneError(
                "a score reads attention weights, but was not registered as one that does",
                hint="register it with @score(..., reads_weights=True)",
            )
        return statistic


def capture_layer(
    call: AttentionCall,
    *,
    weights: bool,
    projection: ProjectionNorm,
    sequences: tuple[int, ...],
    seed: int = 0,
) -> Capture:
    """Run one layer's attention and hold on to what scores need."""
    batch, _, positions, _ = call.query.shape
    mask = call.mask
    if mask is None:
        mask = torch.ones((batch, positions), dtype=torch.bool, device=call.query.device)
    return Capture(
        layer=call.layer,
        mask=mask,
        sequences=sequences,
        seed=seed,
        call=call,
        result=attention(call, weights=weights),
        projection=projection,
    )


def norm(vectors: Tensor) -> Tensor:
    """L2 norm over the last dimension, accumulated in float32."""
    norms: Tensor = torch.linalg.vector_norm(vectors, dim=-1, dtype=torch.float32)
    return norms
