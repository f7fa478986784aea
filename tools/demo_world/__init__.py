"""The small world whose facts the demo model is trained on and asked about."""

from random import Random


def seeded(seed: int) -> Random:
    """Returns a generator of reproducible random numbers."""
    return Random(seed)  # noqa: S311 - nothing here is secret
