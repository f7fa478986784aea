"""From the table of scores to the manifest and the raw scores beside it. NumPy alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from safetensors.numpy import save_file

from headprune import __version__
from headprune.analyzer.histogram import RELATIVE_ERROR
from headprune.analyzer.score_table import ScoreKind, ScoreTable
from headprune.analyzer.thresholds import summarise
from headprune.files import move_into_place, sha256_file, temporary_file
from headprune.manifests.files import write_manifest
from headprune.manifests.model import (
    CalibrationInfo,
    Direction,
    Manifest,
    ModelInfo,
    RawScores,
    Shard,
    TokenizerInfo,
)

FORMAT = "headprune raw scores 2"


class DirectedScore(ScoreKind, Protocol):
    """What a summary must know of a score."""

    @property
    def inactive_when(self) -> Direction:
        """Side of the threshold on which a head is inactive."""


def write_results(
    path: Path,
    table: ScoreTable,
    scores: Sequence[DirectedScore],
    *,
    model: ModelInfo,
    tokenizer: TokenizerInfo,
    calibration: CalibrationInfo,
    fractions: Sequence[float],
    shard: Shard | None = None,
) -> Manifest:
    """Summarise all scores; write the raw scores and then the manifest that names them.

    Args:
        path: The manifest's path.
        table: All scores.
        scores: What to summarise.
        model: The model's identity.
        tokenizer: The tokenizer's identity.
        calibration: The whole calibration set.
        fractions: Fractions to keep thresholds for.
        shard: Which share of the calibration set the table covers; None for all of it.
    """
    manifest = Manifest(
        tool_version=__version__,
        model=model,
        tokenizer=tokenizer,
        calibration=calibration,
        scores={
            score.id: summarise(
                table.distributions(score.id),
                granularity=score.granularity,
                inactive_when=score.inactive_when,
                fractions=fractions,
            )
            for score in scores
        },
        raw_scores=write_raw_scores(table, path.parent),
        shard=shard,
    )
    write_manifest(manifest, path)
    return manifest


def write_raw_scores(table: ScoreTable, folder: Path) -> RawScores:
    """Write the raw scores to a file that carries the start of its own hash in its name."""
    with temporary_file(folder / "scores.safetensors") as staging:
        save_file(table.tensors(), staging, metadata={"format": FORMAT})
        digest = sha256_file(staging)
        name = f"scores-{digest[:16]}.safetensors"
        move_into_place(staging, folder / name)
    return RawScores(file=name, sha256=digest, relative_error=RELATIVE_ERROR)
