"""The gate in float64 NumPy, straight from its definition, as hooks on a PyTorch model.

Written without a look at the package: it must not share the package's mistakes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import DynamicCache, PreTrainedModel


@dataclass
class Oracle:
    """A model under a gate; keeps its own cache and running sums from call to call.

    Attributes:
        model: The PyTorch model.
        projections: Output projection of each layer.
        heads: Heads per layer.
        score: Score id, or None to gate nothing.
        decode: Decode rule.
        thresholds: `[layer, head]`.
    """

    model: PreTrainedModel
    projections: Sequence[nn.Module]
    heads: Sequence[int]
    score: str | None = None
    decode: str | None = None
    thresholds: np.ndarray | None = None
    cache: Any = None
    past_mask: np.ndarray | None = None
    sums: dict[int, np.ndarray] = field(default_factory=dict)
    counts: np.ndarray | None = None

    def run(self, ids: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Feed new tokens; returns logits and the share of real tokens that kept each head.

        Args:
            ids: New tokens, `[batch, sequence]`.
            mask: Which of them are real, `[batch, sequence]`.
        """
        batch = len(ids)
        self.cache = DynamicCache() if self.cache is None else self.cache
        past = np.zeros((batch, 0), np.int64) if self.past_mask is None else self.past_mask
        counts = np.zeros(batch) if self.counts is None else self.counts
        full = np.concatenate([past, mask], axis=1)
        positions = np.maximum(full.cumsum(1) - 1, 0)[:, past.shape[1] :]
        active = np.ones((batch, len(self.heads), max(self.heads)))

        def gate(layer: int, x: torch.Tensor) -> torch.Tensor:
            heads = self.heads[layer]
            outputs = x.detach().numpy().astype(np.float64)
            outputs = outputs.reshape(batch, mask.shape[1], heads, -1)
            keep = self.decide(layer, outputs, mask.astype(bool), counts)
            for row in range(batch):
                real = mask[row].astype(bool)
                if real.any():
                    active[row, layer, :heads] = keep[row, real].mean(axis=0)
            gated = outputs * keep[..., None]
            return torch.from_numpy(gated.reshape(x.shape)).to(x.dtype)

        hooks = [
            module.register_forward_pre_hook(
                lambda _, inputs, layer=layer: (gate(layer, inputs[0]), *inputs[1:])
            )
            for layer, module in enumerate(self.projections)
        ]
        try:
            with torch.no_grad():
                logits = self.model(
                    torch.from_numpy(ids),
                    attention_mask=torch.from_numpy(full),
                    position_ids=torch.from_numpy(positions),
                    cache=self.cache,
                    use_cache=True,
                ).logits
        finally:
            for hook in hooks:
                hook.remove()
        self.past_mask = full
        self.counts = counts + mask.sum(axis=1)
        return logits.numpy(), active

    def decide(
        self, layer: int, outputs: np.ndarray, real: np.ndarray, counts: np.ndarray
    ) -> np.ndarray:
        """Whether each head is kept, `[batch, sequence, head]`."""
        batch, length, heads, _ = outputs.shape
        keep = np.ones((batch, length, heads), bool)
        if self.score is None:
            return keep
        norms = np.sqrt((outputs**2).sum(axis=-1))
        base = self.score.removesuffix("_ln")
        for row in range(batch):
            tokens = norms[row][real[row]]
            if base == "thon":
                values = norms[row]
            elif len(tokens) == 0:
                continue
            elif base == "lthon":
                values = tokens[-1:]
            elif self.decode == "running":
                sums = self.sums.setdefault(layer, np.zeros((batch, heads)))
                sums[row] += tokens.sum(axis=0)
                values = sums[row : row + 1] / (counts[row] + len(tokens))
            else:
                values = tokens.mean(axis=0, keepdims=True)
            if self.score.endswith("_ln"):
                means = values.mean(axis=-1, keepdims=True)
                values = np.divide(values, means, out=np.zeros_like(values), where=means > 0)
            keep[row] = ~(values < self.thresholds[layer, :heads])
        return keep

    def reorder(self, rows: Sequence[int]) -> None:
        """Continue with other rows of the batch, as beam search does."""
        index = list(rows)
        self.cache.reorder_cache(torch.tensor(index))
        self.past_mask = self.past_mask[index]
        self.counts = self.counts[index]
        self.sums = {layer: sums[index] for layer, sums in self.sums.items()}
