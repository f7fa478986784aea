"""Causal attention with the two statistics of its weights, in memory linear in the length.

For query row i with log-sum-exp lse_i, the weight on the first token and the entropy of the row are

    A_i0 = exp(s_i0 - lse_i)        -Σ_j A_ij ln A_ij = lse_i - Σ_j A_ij s_ij

with s_ij = scale · q_i · k_j. Subtracting k_0 from every key changes no weight, turns s_i0 into 0
and keeps both exact for heads that look at the first token alone. The sum is scale · q_i · (A K)_i,
the same fused attention with the keys as values.

The difference leaves an absolute error of about 1e-7 · lse_i. That is nothing beside the entropy of
a long row, but much of a short one's, which layer normalisation may divide by a small mean: the
first rows are computed in float64 with their few weights written out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812  PyTorch's own convention
from torch import Tensor

from headprune.analyzer.interception import AttentionCall
from headprune.errors import HeadpruneError

QUERY_BLOCK = 128

Statistics = tuple[Tensor, Tensor]
"""Weight on the first token and entropy of each row, `[1, head, position]`, float32."""


@dataclass(frozen=True, kw_only=True)
class AttentionResult:
    """Outputs of one layer's heads, and statistics of their attention weights.

    Attributes:
        output: `[batch, position, head, head_dim]`, in the model's dtype; 0 at padding.
        first_weight: Weight on the first real token, `[batch, position, head]`, float32.
        entropy: Entropy of the attention row in nats, likewise.
    """

    output: Tensor
    first_weight: Tensor | None = None
    entropy: Tensor | None = None


def attention(call: AttentionCall, *, weights: bool = False) -> AttentionResult:
    """Attention over the real tokens of each sequence of the batch.

    Each sequence is cut out of its padding, so that padding takes no part on either side.

    Args:
        call: Queries, keys and values of one layer.
        weights: Also compute the statistics of the attention weights.

    Raises:
        HeadpruneError: A sequence's real tokens are not contiguous.
    """
    batch, heads, positions, head_dim = call.query.shape
    output = call.query.new_zeros((batch, positions, heads, head_dim))
    first = call.query.new_zeros((batch, positions, heads), dtype=torch.float32)
    entropy = torch.zeros_like(first)
    repeat = heads // call.key.shape[1]
    for row, real in enumerate(real_ranges(call.mask, batch, positions)):
        query = call.query[row : row + 1, :, real]
        key = call.key[row : row + 1, :, real].repeat_interleave(repeat, dim=1)
        value = call.value[row : row + 1, :, real].repeat_interleave(repeat, dim=1)
        out, statistics = attend_sequence(call, query, key, value, weights=weights)
        output[row, real] = out[0].transpose(0, 1)
        if statistics is not None:
            first[row, real] = statistics[0][0].transpose(0, 1)
            entropy[row, real] = statistics[1][0].transpose(0, 1)
    if not weights:
        return AttentionResult(output=output)
    return AttentionResult(output=output, first_weight=first, entropy=entropy)


def real_ranges(mask: Tensor | None, batch: int, positions: int) -> Iterator[slice]:
    """The range of real tokens of each sequence; `mask` is `[batch, position]` or None."""
    if mask is None:
        yield from [slice(0, positions)] * batch
        return
    for row in mask:
        real = row.nonzero().flatten().tolist()
        if not real or real[-1] - real[0] + 1 != len(real):
            raise HeadpruneError(
                "a sequence's attention mask must be 1 on one contiguous run of tokens, "
                f"got {len(real)} real tokens" + (f" in {real[0]}…{real[-1]}" if real else "")
            )
        yield slice(real[0], real[-1] + 1)


def attend_sequence(
    call: AttentionCall, query: Tensor, key: Tensor, value: Tensor, *, weights: bool
) -> tuple[Tensor, Statistics | None]:
    """One sequence without padding; tensors are `[1, head, position, head_dim]`.

    Returns:
        The output, like `value`, and (first weight, entropy), each `[1, head, position]`.
    """
    windowed = call.window is not None and call.window < query.shape[2]
    plain = not windowed and call.softcap is None and call.sinks is None
    if not plain:
        return attend_blocked(call, query, key, value)
    if not weights:
        out = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=call.scale)
        return out, None
    if query.device.type != "cpu":
        return attend_blocked(call, query, key, value)
    out, (first, entropy) = attend_fused(query.float(), key.float(), value.float(), call.scale)
    if query.dtype != torch.float32:
        out = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=call.scale)
    rows = slice(0, QUERY_BLOCK)
    _, exact = attend_blocked(call, query[:, :, rows], key[:, :, rows], value[:, :, rows])
    first[:, :, rows], entropy[:, :, rows] = exact
    return out, (first, entropy)


def attend_fused(
    query: Tensor, key: Tensor, value: Tensor, scale: float
) -> tuple[Tensor, Statistics]:
    """Output and statistics from one call of the fused CPU kernel, which gives log-sum-exp.

    Values and shifted keys share the call, side by side along head_dim; queries and keys are padded
    with zeros to that width.
    """
    head_dim = query.shape[-1]
    shifted = key - key[:, :, :1]
    pad = (0, head_dim)
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        F.pad(query, pad),
        F.pad(shifted, pad),
        torch.cat([value, shifted], dim=-1),
        is_causal=True,
        scale=scale,
    )
    output, mean_key = out[..., :head_dim], out[..., head_dim:]
    mean_score = scale * (query * mean_key).sum(dim=-1)
    return output, (torch.exp(-lse).clamp(max=1.0), (lse - mean_score).clamp(min=0.0))


def attend_blocked(
    call: AttentionCall, query: Tensor, key: Tensor, value: Tensor
) -> tuple[Tensor, Statistics]:
    """Attention a block of query rows at a time: for windows, caps, sinks, and exact first rows."""
    length = query.shape[2]
    outputs, firsts, entropies = [], [], []
    for start in range(0, length, QUERY_BLOCK):
        stop = min(start + QUERY_BLOCK, length)
        low = 0 if call.window is None else max(0, start - call.window + 1)
        rows = block_weights(call, query[:, :, start:stop], key[:, :, low:stop], start, low)
        outputs.append(rows.to(value.dtype) @ value[:, :, low:stop])
        first = rows[..., 0].float()
        firsts.append(first if low == 0 else torch.zeros_like(first))
        entropies.append(torch.special.entr(rows).sum(dim=-1).float())
    return torch.cat(outputs, dim=2), (torch.cat(firsts, dim=2), torch.cat(entropies, dim=2))


def block_weights(call: AttentionCall, query: Tensor, key: Tensor, start: int, low: int) -> Tensor:
    """Weights of the query rows from `start` on the keys from `low`: `[1, head, row, key]`.

    In float64 on the CPU; many GPUs are too slow at that, and get float32.
    """
    precise = torch.float64 if query.device.type == "cpu" else torch.float32
    scores = query.to(precise) @ key.to(precise).transpose(-1, -2) * call.scale
    if call.softcap is not None:
        scores = torch.tanh(scores / call.softcap) * call.softcap
    row = torch.arange(start, start + query.shape[2], device=query.device)[:, None]
    column = torch.arange(low, low + key.shape[2], device=query.device)[None, :]
    hidden = column > row
    if call.window is not None:
        hidden = hidden | (column <= row - call.window)
    scores = scores.masked_fill(hidden, float("-inf"))
    if call.sinks is None:
        return scores.softmax(dim=-1)
    sinks = call.sinks.to(precise).reshape(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
    return torch.cat([scores, sinks], dim=-1).softmax(dim=-1)[..., :-1]
