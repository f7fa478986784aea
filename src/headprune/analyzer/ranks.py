"""Several processes of `torchrun` or `accelerate launch`, each with its share of the batches."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from safetensors.numpy import load, save

from headprune.analyzer.score_table import ScoreTable

PATIENCE = timedelta(days=7)


@dataclass(frozen=True, kw_only=True)
class Rank:
    """This process among all.

    Attributes:
        index: From 0; the first writes the manifest.
        count: How many there are.
        local: Index on this machine, which is that of its GPU.
    """

    index: int
    count: int
    local: int


def launched_rank() -> Rank:
    """What the launcher says in the environment; the only process if there was no launcher."""
    return Rank(
        index=int(os.environ.get("RANK", "0")),
        count=int(os.environ.get("WORLD_SIZE", "1")),
        local=int(os.environ.get("LOCAL_RANK", "0")),
    )


@contextmanager
def connected(rank: Rank) -> Iterator[None]:
    """Connect all processes for the length of the block.

    They may finish far apart, so they wait for one another without a practical limit; the launcher
    ends all of them when one fails.
    """
    if rank.count == 1:
        yield
        return
    dist.init_process_group("gloo", timeout=PATIENCE)
    try:
        yield
    finally:
        dist.destroy_process_group()


def gather(table: ScoreTable, rank: Rank) -> None:
    """Bring the scores of all processes into the table of the first."""
    if rank.index > 0:
        content = torch.frombuffer(bytearray(save(table.tensors())), dtype=torch.uint8)
        dist.send(torch.tensor([len(content)]), 0)
        dist.send(content, 0)
        return
    for other in range(1, rank.count):
        size = torch.zeros(1, dtype=torch.long)
        dist.recv(size, other)
        content = torch.empty(int(size), dtype=torch.uint8)
        dist.recv(content, other)
        table.absorb(load(content.numpy().tobytes()))


def wait(rank: Rank) -> None:
    """Wait until all processes are here."""
    if rank.count > 1:
        dist.barrier()
