"""Take over a model's attention through transformers' attention interface.

Every model that dispatches through `AttentionInterface` calls `attend` below with its rotated
queries and keys, so no model family needs code of its own here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from headprune.errors import HeadpruneError

IMPLEMENTATION = "headprune"


@dataclass(frozen=True, kw_only=True)
class AttentionCall:
    """What one attention layer asks for in one forward.

    Attributes:
        module: The attention module; holds the output projection.
        layer: Its index.
        query: `[batch, head, position, head_dim]`, after rotary embedding.
        key: `[batch, kv_head, position, head_dim]`, likewise.
        value: `[batch, kv_head, position, head_dim]`.
        mask: Real tokens, `[batch, position]`, bool; None if all are real.
        scale: Factor on the products of queries and keys.
        window: Width of the sliding window, the token itself included; None for full attention.
        softcap: Cap of the attention scores before softmax; None for no cap.
        sinks: A learned score per head that takes part in the softmax; `[head]` or None.
    """

    module: nn.Module
    layer: int
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    scale: float
    window: int | None
    softcap: float | None
    sinks: Tensor | None


Handler = Callable[[AttentionCall], Tensor]
"""Returns the heads' outputs, `[batch, position, head, head_dim]`."""

_handler: ContextVar[Handler] = ContextVar("headprune_attention_handler")


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """The attention function registered with transformers; hands the call to the handler."""
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    if not causal or query.shape[2] != key.shape[2] or position_bias is not None:
        what = type(module).__name__
        raise HeadpruneError(
            f"{what} is not causal self-attention over one whole sequence without position bias",
            hint="headprune scores decoder-only models with rotary or absolute positions",
        )
    if value.shape[-1] != query.shape[-1]:
        raise HeadpruneError(
            f"{type(module).__name__} has values of width {value.shape[-1]} and queries of width "
            f"{query.shape[-1]}, expected one head_dim (multi-head latent attention is not served)"
        )
    call = AttentionCall(
        module=module,
        layer=cast("int", module.layer_idx),
        query=query,
        key=key,
        value=value,
        mask=attention_mask,
        scale=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        window=sliding_window,
        softcap=softcap,
        sinks=s_aux,
    )
    return _handler.get()(call), None


def padding_mask(
    *, kv_length: int, attention_mask: Tensor | None = None, **_: Any
) -> Tensor | None:
    """The mask function registered with transformers: the two-dimensional mask itself.

    No `position × position` mask is built; causality and windows are `attend`'s own affair.
    """
    return None if attention_mask is None else attention_mask[:, -kv_length:].to(torch.bool)


AttentionInterface.register(IMPLEMENTATION, attend)
AttentionMaskInterface.register(IMPLEMENTATION, padding_mask)


@contextmanager
def intercepted(model: PreTrainedModel, handler: Handler) -> Iterator[None]:
    """Let `handler` compute all attention of `model` inside the block."""
    before = model.config._attn_implementation
    token = _handler.set(handler)
    try:
        model.set_attn_implementation(IMPLEMENTATION)
        yield
    finally:
        model.set_attn_implementation(before)
        _handler.reset(token)
