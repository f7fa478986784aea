"""Take over a model's attention through transformers' attention interface.

Every model that dispatches through `AttentionInterface` calls `attend` below with its rotated
queries and keys, so no model family needs code of its own here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface, causal_mask_function

from headprune.errors import HeadpruneError

IMPLEMENTATION = "headprune"
PATTERN = "_headprune_pattern"
SPARSE = ("indices", "block_indices")
DECODER_HINT = "headprune scores decoder-only models with rotary or absolute positions"


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


@dataclass(frozen=True, kw_only=True)
class MaskPattern:
    """What a model's mask hides besides padding and the future.

    Attributes:
        window: Width of the sliding window; None for full attention.
        padded: Whether the model was given an attention mask.
    """

    window: int | None
    padded: bool


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
    **others: Any,
) -> tuple[Tensor, None]:
    """The attention function registered with transformers; hands the call to the handler."""
    # Not every family that masks by a window passes its width on: the mask is the truth.
    pattern = getattr(
        attention_mask,
        PATTERN,
        MaskPattern(window=sliding_window, padded=attention_mask is not None),
    )
    call = AttentionCall(
        module=module,
        layer=layer_index(module),
        query=query,
        key=key,
        value=value,
        mask=attention_mask if pattern.padded else None,
        scale=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        window=pattern.window,
        softcap=softcap,
        sinks=s_aux,
    )
    check_served(call, others)
    return _handler.get()(call), None


def check_served(call: AttentionCall, others: dict[str, Any]) -> None:
    """Raise unless the scores are defined for this attention, and the call says all of it.

    Args:
        call: What the model asks for.
        others: Further arguments that it gave.

    Raises:
        HeadpruneError: Another kind of attention.
    """
    what = type(call.module).__name__
    causal = others.get("is_causal")
    causal = getattr(call.module, "is_causal", True) if causal is None else causal
    biased = others.get("position_bias") is not None
    if not causal or call.query.shape[2] != call.key.shape[2] or biased:
        raise HeadpruneError(
            f"{what} is not causal self-attention over one whole sequence without position bias",
            hint=DECODER_HINT,
        )
    if any(others.get(name) is not None for name in SPARSE):
        raise HeadpruneError(
            f"{what} attends to tokens that it selects itself (sparse attention), expected all "
            "tokens or a sliding window",
            hint=DECODER_HINT,
        )
    if call.mask is not None and call.mask.dim() != 2:  # noqa: PLR2004  [batch, position]
        raise HeadpruneError(
            f"{what} brings an attention mask of its own, of shape {tuple(call.mask.shape)}, "
            "expected one that transformers builds",
            hint=DECODER_HINT,
        )
    if call.value.shape[-1] != call.query.shape[-1]:
        raise HeadpruneError(
            f"{what} has values of width {call.value.shape[-1]} and queries of width "
            f"{call.query.shape[-1]}, expected one head_dim (multi-head latent attention is not "
            "served)",
            hint=DECODER_HINT,
        )


def layer_index(module: nn.Module) -> int:
    """The index that an attention module gives itself.

    Raises:
        HeadpruneError: It has none.
    """
    index = getattr(module, "layer_idx", None)
    if not isinstance(index, int):
        raise HeadpruneError(
            f"{type(module).__name__} does not say which layer it is (layer_idx)", hint=DECODER_HINT
        )
    return index


def padding_mask(
    *,
    batch_size: int,
    kv_length: int,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    config: Any = None,
    **_: Any,
) -> Tensor:
    """The mask function registered with transformers: the two-dimensional mask itself.

    No `position × position` mask is built; causality and windows are `attend`'s own affair. The
    window goes with the mask, because the model gives each layer the mask of its kind.
    """
    if use_vmap or not is_causal_window(mask_function, local_size, device):
        raise HeadpruneError(
            f"{getattr(config, 'model_type', 'the model')} masks its attention by another rule "
            "than causal attention, whole or over a sliding window (such as chunks or both ways)",
            hint=DECODER_HINT,
        )
    if attention_mask is None:
        mask = torch.ones((batch_size, kv_length), dtype=torch.bool, device=device)
    else:
        mask = attention_mask[:, -kv_length:].to(torch.bool)
    setattr(mask, PATTERN, MaskPattern(window=local_size, padded=attention_mask is not None))
    return mask


def is_causal_window(
    mask_function: Callable[..., Any], window: int | None, device: torch.device | str
) -> bool:
    """Whether a mask rule is causal attention over a window, tried where chunks would differ."""
    row = 1 if window is None else window
    columns = torch.tensor([0, 1, row, row + 1], device=device)
    rows = torch.full_like(columns, row)
    nowhere = torch.zeros_like(columns)
    allowed = mask_function(nowhere, nowhere, rows, columns)
    expected = columns <= rows
    if window is not None:
        expected &= columns > rows - window
    return bool((allowed == expected).all())


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
