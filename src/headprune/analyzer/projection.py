"""Norms of head outputs after the output projection, without projecting them."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from headprune.errors import HeadpruneError

PROJECTION_NAMES = ("o_proj", "out_proj", "c_proj", "dense", "wo")


@dataclass(frozen=True)
class ProjectionNorm:
    """‖o W_O^h‖ for every head, through the triangular factor of each head's slice.

    With the QR decomposition W_O^hᵀ = Q R, Q has orthonormal columns, so ‖o W_O^h‖ = ‖R o‖:
    head_dim² products a token instead of head_dim × hidden. (The Gram matrix costs the same, but
    squares the rounding error.) The factors are computed once per layer and kept.
    """

    _factors: dict[nn.Module, Tensor] = field(default_factory=dict)

    def norm(self, module: nn.Module, output: Tensor) -> Tensor:
        """Norms of `[batch, position, head, head_dim]` outputs: `[batch, position, head]`."""
        heads, head_dim = output.shape[-2:]
        if module not in self._factors:
            weight = projection_weight(module, heads * head_dim)
            slices = weight.double().reshape(heads, head_dim, -1).transpose(-1, -2)
            factors = torch.linalg.qr(slices, mode="r").R.float()
            self._factors[module] = factors.transpose(-1, -2).contiguous()
        projected = output.float().transpose(1, 2) @ self._factors[module]
        norms: Tensor = torch.linalg.vector_norm(projected, dim=-1)
        return norms.transpose(1, 2)


def projection_weight(module: nn.Module, rows: int) -> Tensor:
    """The output projection W_O of an attention module, `[head * head_dim, hidden]`.

    Args:
        module: The attention module.
        rows: Heads times head_dim.

    Raises:
        HeadpruneError: The module has no linear output projection of that many rows.
    """
    for name in PROJECTION_NAMES:
        projection = getattr(module, name, None)
        if isinstance(projection, nn.Linear) and projection.weight.shape[1] == rows:
            return projection.weight.detach().T
        if isinstance(projection, Conv1D) and projection.weight.shape[0] == rows:
            return projection.weight.detach()
    raise HeadpruneError(
        f"{type(module).__name__} has no linear output projection with {rows} inputs "
        f"(looked for {', '.join(PROJECTION_NAMES)})",
        hint="leave out the scores after the projection (fhon, fhon_ln, tfhon, tfhon_ln)",
    )
