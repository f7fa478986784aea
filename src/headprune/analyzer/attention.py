"""Attention over whole sequences, with statistics of its weights on request.

Plain causal attention has a fast path of its own. Windows, caps on the scores and attention sinks
go through blocks of written-out weights in float64. So do the first rows of plain attention: the
fast path's absolute error is nothing beside the entropy of a long row, but much of a short one's,
which layer normalisation may divide by a small mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812  PyTorch's own convention
from torch import Tensor

from headprune.analyzer.causal_attention import Statistics, attend_causal
from headprune.analyzer.interception import AttentionCall
from headprune.errors import HeadpruneError

QUERY_BLOCK = 128
EXACT_ROWS = 32


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

    A causal row sees nothing that stands after it, so padding on the right needs no care. A
    sequence with padding on the left is cut out of it.

    Args:
        call: Queries, keys and values of one layer.
        weights: Also compute the statistics of the attention weights.

    Raises:
        HeadpruneError: A sequence's real tokens are not contiguous.
    """
    batch, heads, positions, head_dim = call.query.shape
    ranges = list(real_ranges(call.mask, batch, positions))
    if all(real.start == 0 for real in ranges):
        out, statistics = attend(call, call.query, call.key, call.value, weights=weights)
        output = out.transpose(1, 2)
        if call.mask is not None:
            output = output.masked_fill(~call.mask[..., None, None], 0)
        if statistics is None:
            return AttentionResult(output=output)
        first, entropy = (statistic.transpose(1, 2) for statistic in statistics)
        return AttentionResult(output=output, first_weight=first, entropy=entropy)
    output = call.query.new_zeros((batch, positions, heads, head_dim))
    first = call.query.new_zeros((batch, positions, heads), dtype=torch.float32)
    entropy = torch.zeros_like(first)
    for row, real in enumerate(ranges):
        cut = [t[row : row + 1, :, real] for t in (call.query, call.key, call.value)]
        out, statistics = attend(call, *cut, weights=weights)
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
                f"got {len(real)} real tokens" + (f" in {real[0]}…{real[-1]}" if real else ""),
                hint="pad on one side only",
            )
        yield slice(real[0], real[-1] + 1)


def attend(
    call: AttentionCall, query: Tensor, key: Tensor, value: Tensor, *, weights: bool
) -> tuple[Tensor, Statistics | None]:
    """Sequences that begin at position 0; `[batch, head or kv_head, position, head_dim]`.

    Returns:
        The output, `[batch, head, position, head_dim]`, and (first weight, entropy), each
        `[batch, head, position]`.
    """
    windowed = call.window is not None and call.window < query.shape[2]
    if windowed or call.softcap is not None or call.sinks is not None:
        return attend_blocked(call, query, key, value)
    statistics = None
    if weights:
        out, statistics = attend_causal(query.float(), key.float(), value.float(), call.scale)
        rows = slice(0, EXACT_ROWS)
        shared = query.shape[1] // key.shape[1]
        keys = key[:, :, rows].repeat_interleave(shared, dim=1)
        exact = block_statistics(block_weights(call, query[:, :, rows], keys, 0, 0), low=0)
        for statistic, first_rows in zip(statistics, exact, strict=True):
            statistic[:, :, rows] = first_rows
    if not weights or query.dtype != torch.float32:
        # The model's own precision for its own output.
        out = F.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=call.scale, enable_gqa=True
        )
    return out, statistics


def attend_blocked(
    call: AttentionCall, query: Tensor, key: Tensor, value: Tensor
) -> tuple[Tensor, Statistics]:
    """Attention a block of query rows at a time: for windows, caps and sinks."""
    length = query.shape[2]
    repeat = query.shape[1] // key.shape[1]
    key, value = (t.repeat_interleave(repeat, dim=1) for t in (key, value))
    outputs, firsts, entropies = [], [], []
    for start in range(0, length, QUERY_BLOCK):
        stop = min(start + QUERY_BLOCK, length)
        low = 0 if call.window is None else max(0, start - call.window + 1)
        keys = slice(low, stop)
        rows = block_weights(call, query[:, :, start:stop], key[:, :, keys], start, low)
        outputs.append(rows.to(value.dtype) @ value[:, :, keys])
        first, entropy = block_statistics(rows, low)
        firsts.append(first)
        entropies.append(entropy)
    return torch.cat(outputs, dim=2), (torch.cat(firsts, dim=2), torch.cat(entropies, dim=2))


def block_statistics(weights: Tensor, low: int) -> Statistics:
    """Statistics of written-out weights on the keys from `low`."""
    first = weights[..., 0].float()
    if low > 0:
        first = torch.zeros_like(first)
    return first, torch.special.entr(weights).sum(dim=-1).float()


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
