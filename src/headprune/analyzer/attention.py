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
EXACT_ROWS = 32
COPY_BYTES = 48 << 20

Statistics = tuple[Tensor, Tensor]
"""Weight on the first token and entropy of each row, `[batch, head, position]`, float32."""


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
    fused = query.device.type == "cpu"
    if weights and not fused:
        return attend_blocked(call, query, key, value)
    statistics = None
    if weights:
        out, statistics = attend_fused(query.float(), key.float(), value.float(), call.scale)
        rows = slice(0, EXACT_ROWS)
        _, exact = attend_blocked(call, query[:, :, rows], key[:, :, rows], value[:, :, rows])
        for statistic, first_rows in zip(statistics, exact, strict=True):
            statistic[:, :, rows] = first_rows
    if not weights or query.dtype != torch.float32:
        # The model's own precision for its own output.
        out = F.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=call.scale, enable_gqa=True
        )
    return out, statistics


def attend_fused(
    query: Tensor, key: Tensor, value: Tensor, scale: float
) -> tuple[Tensor, Statistics]:
    """Output and statistics from the fused CPU kernel, which gives log-sum-exp.

    Values and shifted keys share one call, side by side along head_dim; queries and keys are padded
    with zeros to that width. Long sequences go a few KV groups at a time, to bound the copies.
    """
    groups = key.shape[1]
    heads = query.shape[1] // groups
    copies = 4 * 2 * query.shape[0] * heads * query.shape[2] * query.shape[3] * 4
    step = max(1, min(groups, COPY_BYTES // copies))
    parts = [
        fuse_groups(
            query[:, start * heads : (start + step) * heads],
            key[:, start : start + step],
            value[:, start : start + step],
            scale,
        )
        for start in range(0, groups, step)
    ]
    if len(parts) == 1:
        return parts[0]
    output, first, entropy = (
        torch.cat(pieces, dim=1)
        for pieces in zip(*((out, *statistics) for out, statistics in parts), strict=True)
    )
    return output, (first, entropy)


def fuse_groups(
    query: Tensor, key: Tensor, value: Tensor, scale: float
) -> tuple[Tensor, Statistics]:
    """The fused kernel on some KV groups with all of their heads."""
    head_dim = query.shape[-1]
    left, right = slice(0, head_dim), slice(head_dim, None)
    wide_query, wide_key, both = (
        scratch("query", query), scratch("key", key), scratch("both", value)
    )  # fmt: skip
    wide_query[..., left] = query
    torch.sub(key, key[:, :, :1], out=wide_key[..., left])
    both[..., left] = value
    both[..., right] = wide_key[..., left]
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        wide_query, wide_key, both, is_causal=True, scale=scale
    )
    output, mean_key = out[..., :head_dim], out[..., head_dim:]
    mean_score = torch.mul(query, mean_key, out=wide_query[..., left]).sum(dim=-1)
    entropy = torch.sub(lse, mean_score, alpha=scale).clamp_(min=0.0)
    return output, (lse.neg().exp_().clamp_(max=1.0), entropy)


_scratch: dict[str, Tensor] = {}


def scratch(name: str, like: Tensor) -> Tensor:
    """A tensor twice as wide, zeros at first, and kept from layer to layer; one of each name.

    Its pages cost more to get from the system than to fill. What is written to the left half alone
    leaves zeros beside it.
    """
    shape = (*like.shape[:-1], 2 * like.shape[-1])
    kept = _scratch.get(name)
    if kept is None or kept.shape != shape:
        kept = _scratch[name] = like.new_zeros(shape)
    return kept


def attend_blocked(
    call: AttentionCall, query: Tensor, key: Tensor, value: Tensor
) -> tuple[Tensor, Statistics]:
    """Attention a block of query rows at a time: for windows, caps, sinks, and exact first rows."""
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
