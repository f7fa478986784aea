"""Which questions of a task are asked: all, or a seeded random draw over the whole task."""

from __future__ import annotations

import random
from collections.abc import Mapping


def draw(sizes: Mapping[str, int], samples: int | None, seed: int) -> dict[str, list[int]]:
    """Indices of the questions to ask, sorted, per part of the task.

    Every question of the task is drawn with the same probability, whatever its part, so that the
    plain average over the draw estimates the average over the task.

    Args:
        sizes: Number of questions per part, such as a subject.
        samples: How many to draw in all; None, or more than there are, takes all.
        seed: Seed of the draw.

    Returns:
        Only the parts of which questions were drawn.
    """
    total = sum(sizes.values())
    if samples is None or samples >= total:
        return {part: list(range(size)) for part, size in sizes.items() if size}
    drawn = sorted(random.Random(seed).sample(range(total), samples))  # noqa: S311
    result: dict[str, list[int]] = {}
    start = 0
    for part, size in sizes.items():
        indices = [index - start for index in drawn if start <= index < start + size]
        if indices:
            result[part] = indices
        start += size
    return result
