"""The identity of a model's weights: a hash over its tensors, however they are cut into files."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from headprune.analyzer.sources import CHECK_FILES
from headprune.errors import HeadpruneError, first_line

HASHING_THREADS = 4


def hash_weights(files: Iterable[Path]) -> str:
    """The identity of the weights in safetensors files."""
    digests: dict[str, str] = {}
    with ThreadPoolExecutor(HASHING_THREADS) as pool:
        for path in files:
            names = tensor_names(path)
            digests |= dict(zip(names, pool.map(hash_in_file, repeat(path), names), strict=True))
    return combine(digests)


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """A safetensors file, to read tensors from.

    Raises:
        HeadpruneError: It is not one, or is cut off.
    """
    try:
        content = safe_open(path, "pt")
    except (OSError, SafetensorError) as error:
        raise HeadpruneError(
            f"cannot load the weights in {path}: {first_line(error)}",
            hint=CHECK_FILES,
        ) from error
    with content:
        yield content


def tensor_names(path: Path) -> list[str]:
    """Names of the tensors in a safetensors file."""
    with opened(path) as content:
        return list(content.keys())


def hash_in_file(path: Path, name: str) -> str:
    """The hash of one tensor of a file."""
    with opened(path) as content:
        return hash_tensor(content.get_tensor(name))


def hash_tensor(tensor: Tensor) -> str:
    """SHA-256 over data type, shape and content of a tensor."""
    digest = hashlib.sha256(f"{tensor.dtype} {list(tensor.shape)}\n".encode())
    content: NDArray[np.uint8] = tensor.contiguous().flatten().view(torch.uint8).numpy()
    digest.update(content.data)
    return digest.hexdigest()


def combine(digests: Mapping[str, str]) -> str:
    """SHA-256 over the names of all tensors and their hashes, in the order of the names."""
    text = "".join(f"{name} {digest}\n" for name, digest in sorted(digests.items()))
    return hashlib.sha256(text.encode()).hexdigest()


def weights_size(files: Iterable[Path], dtype: torch.dtype | None) -> int:
    """Bytes that the weights take in memory, all in `dtype`, or as they are on disk."""
    return sum(tensor_bytes(path, dtype) for path in files)


def tensor_bytes(path: Path, dtype: torch.dtype | None) -> int:
    """Bytes of all tensors of one file."""
    total = 0
    with opened(path) as content:
        for name in content.keys():  # noqa: SIM118  not a dict
            piece = content.get_slice(name)
            kind = torch.empty(0, dtype=dtype) if dtype else content.get_tensor(name)
            total += math.prod(piece.get_shape()) * kind.element_size()
    return total
