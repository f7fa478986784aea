"""The BOS tokens at the start of a sequence: a second one changes every score."""

from __future__ import annotations

from collections.abc import Sequence


def leading_bos(ids: Sequence[int], bos_token_id: int | None) -> int:
    """How many BOS tokens stand in front, one after the other."""
    if bos_token_id is None:
        return 0
    return next((place for place, token in enumerate(ids) if token != bos_token_id), len(ids))
