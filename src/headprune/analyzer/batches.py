"""Batches of sequences alike in length, and their share for each of several processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headprune.manifests.model import Shard


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Sequences that go through the model together.

    Attributes:
        number: Which batch of the calibration set.
        sequences: Number of each sequence in the calibration set.
        tokens: Token ids of each.
    """

    number: int
    sequences: tuple[int, ...]
    tokens: tuple[tuple[int, ...], ...]

    @property
    def size(self) -> int:
        """Real tokens."""
        return sum(map(len, self.tokens))

    def tensors(self, device: torch.device) -> tuple[Tensor, Tensor | None]:
        """Token ids and attention mask, padded on the right: `[batch, position]` each.

        The padding id is 0: padding is known by the mask alone, never by an id. Without padding
        there is no mask.
        """
        longest = max(map(len, self.tokens))
        ids = torch.zeros((len(self.tokens), longest), dtype=torch.long)
        mask = torch.zeros((len(self.tokens), longest), dtype=torch.long)
        for row, tokens in enumerate(self.tokens):
            ids[row, : len(tokens)] = torch.tensor(tokens)
            mask[row, : len(tokens)] = 1
        whole = bool(mask.all())
        return ids.to(device), None if whole else mask.to(device)


def make_batches(
    sequences: Sequence[tuple[int, ...]], size: int, *, shard: Shard | None = None
) -> list[Batch]:
    """Batches of at most `size` sequences, the longest first, so that memory runs out at once.

    Args:
        sequences: Token ids of the whole calibration set.
        size: Sequences in one batch.
        shard: This process's share, every count-th batch; None for all. The batches themselves are
            the same for any count, and so are their scores.
    """
    index, count = (shard.index, shard.count) if shard else (0, 1)
    order = sorted(range(len(sequences)), key=lambda number: (-len(sequences[number]), number))
    groups = [tuple(order[start : start + size]) for start in range(0, len(order), size)]
    return [
        Batch(number=number, sequences=group, tokens=tuple(sequences[i] for i in group))
        for number, group in enumerate(groups)
        if number % count == index
    ]
