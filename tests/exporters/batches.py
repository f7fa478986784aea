"""Seeded token ids with their masks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .families import VOCABULARY

LENGTHS = (11, 4, 8)


def tokens(batch: int, length: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(3, VOCABULARY, (batch, length))


def prompt(length: int) -> tuple[np.ndarray, np.ndarray]:
    ids = tokens(1, length, seed=length)
    return ids, np.ones_like(ids)


def padded_batch(side: str) -> tuple[np.ndarray, np.ndarray]:
    """Three rows of different lengths; ids of padding are as good as any other."""
    ids = tokens(len(LENGTHS), max(LENGTHS), seed=5)
    mask = np.zeros_like(ids)
    for row, length in zip(mask, LENGTHS, strict=True):
        row[slice(-length, None) if side == "left" else slice(length)] = 1
    return ids, mask


def decode_steps(*, batch: int, steps: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    ids = tokens(batch, steps, seed=6)
    for step in range(steps):
        yield ids[:, step : step + 1], np.ones((batch, 1), np.int64)
