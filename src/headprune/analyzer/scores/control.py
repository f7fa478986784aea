"""The control that every other score must beat."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from headprune.analyzer.scores.registry import score

if TYPE_CHECKING:
    from torch import Tensor

    from headprune.analyzer.capture import Capture


@score("random", title="Random (control)", inactive_when="below")
def random(c: Capture) -> Tensor:
    """A number drawn from [0, 1) by seed, sequence, layer and head alone. [batch, head]"""
    heads = c.output.shape[2]
    # Philox is counter-based: the key is the cell's own, so batches and order change nothing.
    rows = [
        np.random.Generator(np.random.Philox(key=[c.seed, (number << 20) + c.layer])).random(heads)
        for number in c.sequences
    ]
    return torch.tensor(np.stack(rows), dtype=torch.float32, device=c.output.device)
