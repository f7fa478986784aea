"""Plain causal attention with the two statistics of its weights, in memory linear in the length.

For query row i with log-sum-exp lse_i, the weight on the first token and the entropy of the row are

    A_i0 = exp(s_i0 - lse_i)        -Σ_j A_ij ln A_ij = lse_i - Σ_j A_ij s_ij

with s_ij = scale · q_i · k_j. Subtracting k_0 from every key changes no weight, makes s_i0 = 0 and
so lse_i = -ln A_i0, and keeps both exact for heads that look at the first token alone. The sum is
scale · q_i · (A K)_i: the keys go beside the values, and one product more gives it.

Rows are taken in blocks, whose weights stay in the processor's cache. On a CPU that saves about as
much over PyTorch's fused kernel as the statistics cost.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812  PyTorch's own convention
from torch import Tensor

ROWS = 64
WEIGHT_BYTES = 6 << 20
LEAST_WEIGHT = 1e-20

Statistics = tuple[Tensor, Tensor]
"""Weight on the first token and entropy of each row, `[batch, head, position]`, float32."""


def attend_causal(
    query: Tensor, key: Tensor, value: Tensor, scale: float
) -> tuple[Tensor, Statistics]:
    """Output and statistics of whole sequences.

    Args:
        query: `[batch, head, position, head_dim]`, float32.
        key: `[batch, kv_head, position, head_dim]`, float32.
        value: Likewise.
        scale: Factor on the products of queries and keys.

    Returns:
        The output, `[batch, head, position, head_dim]` (in memory position by position), and the
        statistics. The entropy has an absolute error of about 1e-7 · lse_i.
    """
    batch, heads, length, _ = query.shape
    groups = key.shape[1]
    shared = heads // groups
    step = max(1, WEIGHT_BYTES // (4 * batch * shared * ROWS * length))
    parts = [
        attend_groups(
            query[:, start * shared : (start + step) * shared],
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


def attend_groups(
    query: Tensor, key: Tensor, value: Tensor, scale: float
) -> tuple[Tensor, Statistics]:
    """Some KV groups with all of their heads; see `attend_causal`.

    Operations are few and large, because each costs as much as thousands of numbers. The rows of
    all heads that share a group's keys are rows of one product.
    """
    batch, heads, length, head_dim = query.shape
    groups = key.shape[1]
    shared = heads // groups
    blocks = -(-length // ROWS)
    shifted = key - key[:, :, :1]
    keys = (shifted * scale).flatten(0, 1).transpose(-1, -2)
    values = torch.cat([value, shifted], dim=-1).flatten(0, 1)
    # [group, block, head of the group and row of the block, head_dim]
    rows = in_blocks(query, batch * groups, shared, blocks)
    products = scratch("products", (*rows.shape[:-1], 2 * head_dim), query)
    firsts = query.new_empty(rows.shape[:-1])
    future = torch.ones((ROWS, ROWS), dtype=torch.bool, device=query.device).triu_(1)
    for block in range(blocks):
        start = block * ROWS
        stop = min(start + ROWS, length)
        weights = scratch("weights", (batch * groups, shared * ROWS, stop), query)
        torch.bmm(rows[:, block], keys[..., :stop], out=weights)
        newest = weights.view(-1, shared, ROWS, stop)[..., start:]
        newest.masked_fill_(future[:, : stop - start], float("-inf"))
        torch.softmax(weights, dim=-1, out=weights)
        torch.bmm(weights, values[:, :stop], out=products[:, block])
        firsts[:, block] = weights[..., 0]
    mean_score = torch.linalg.vecdot(rows, products[..., head_dim:]).mul_(scale)
    statistics = torch.stack([firsts, firsts.log().neg_().sub_(mean_score)])
    statistics = statistics.reshape(2 * batch, groups, blocks, shared, ROWS).transpose(2, 3)
    first, entropy = statistics.reshape(2, batch, heads, blocks * ROWS)[..., :length]
    output = products[..., :head_dim].reshape(batch, groups, blocks, shared, ROWS, head_dim)
    output = output.permute(0, 2, 4, 1, 3, 5).reshape(batch, blocks * ROWS, heads, head_dim)
    # With one head a group this is still a view of what the next call overwrites.
    output = output.contiguous()[:, :length].transpose(1, 2)
    return output, (first, mend_sunk(entropy.clamp_(min=0.0), first, query, keys))


def in_blocks(query: Tensor, groups: int, shared: int, blocks: int) -> Tensor:
    """Queries as `[group, block, head of the group and row of the block, head_dim]`."""
    length, head_dim = query.shape[2:]
    if blocks * ROWS > length:
        query = F.pad(query, (0, 0, 0, blocks * ROWS - length))
    blocked = query.reshape(groups, shared, blocks, ROWS, head_dim).transpose(1, 2)
    return blocked.reshape(groups, blocks, shared * ROWS, head_dim)


def mend_sunk(entropy: Tensor, first: Tensor, query: Tensor, keys: Tensor) -> Tensor:
    """Write out the rows where the first weight has sunk so low that its log is no good lse.

    Args:
        entropy: `[batch, head, position]`; changed in place.
        first: Weight on the first token, likewise.
        query: `[batch, head, position, head_dim]`.
        keys: `[batch * kv_head, head_dim, position]`, scaled.
    """
    sunk = first < LEAST_WEIGHT
    if not bool(sunk.any()):
        return entropy
    shared = query.shape[0] * query.shape[1] // len(keys)
    column = torch.arange(keys.shape[-1], device=query.device)
    for batch, head in sunk.any(dim=-1).nonzero().tolist():
        own = keys[(batch * query.shape[1] + head) // shared]
        for row in torch.split(sunk[batch, head].nonzero().flatten(), ROWS):
            scores = query[batch, head, row] @ own
            scores.masked_fill_(column > row[:, None], float("-inf"))
            entropy[batch, head, row] = torch.special.entr(scores.softmax(dim=-1)).sum(dim=-1)
    return entropy


_scratch: dict[tuple[str, torch.device], Tensor] = {}


def scratch(name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
    """A float32 tensor on the device of another, overwritten by the next of its name.

    It is kept from layer to layer: its pages cost more to get from the system than to fill.
    """
    size = torch.Size(shape).numel()
    kept = _scratch.get((name, like.device))
    if kept is None or kept.numel() < size:
        with torch.inference_mode(mode=False):
            kept = _scratch[name, like.device] = torch.empty(size, device=like.device)
    return kept[:size].view(shape)
