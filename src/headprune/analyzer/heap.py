"""Memory that is free, given back to the system."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache


@cache
def malloc_trim() -> Callable[[int], int] | None:
    """The C library's function of that name; None where there is none."""
    try:
        function: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None  # Not glibc.
    return function


def release() -> None:
    """Give the pages of all free memory back.

    What outlives a layer, though small, lies in the heap among the layer's large temporary tensors.
    The holes that these leave no longer fit the next layer's, so without this a long sequence takes
    two tensors' worth of memory a layer.
    """
    trim = malloc_trim()
    if trim is not None:
        trim(0)
