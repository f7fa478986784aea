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
from headprune.errors import HeadpruneError
from headprune.files import move_into_place, sha256_file, temporary_file
from headprune.manifests.files import read_manifest, write_manifest
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
    folder: Path | None = None,
) -> Manifest:
    """Summarise all scores; write the raw scores and then the manifest that names them.

    Raw scores of a manifest that is replaced are removed, unless another file names them.

    Args:
        path: The manifest's path.
        table: All scores.
        scores: What to summarise.
        model: The model's identity.
        tokenizer: The tokenizer's identity.
        calibration: The whole calibration set.
        fractions: Fractions to keep thresholds for.
        shard: Which share of the calibration set the table covers; None for all of it.
        folder: For unfinished files; the folder of `path` by default.
    """
    replaced = raw_scores_of(path)
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
        raw_scores=write_raw_scores(table, path.parent, folder),
        shard=shard,
    )
    write_manifest(manifest, path, folder=folder)
    if replaced is not None and not is_named(replaced, path.parent):
        (path.parent / replaced).unlink(missing_ok=True)
    return manifest


def raw_scores_of(path: Path) -> str | None:
    """Name of the raw scores of the manifest at `path`; None if there is no sound manifest."""
    try:
        raw = read_manifest(path, shards=True).raw_scores if path.is_file() else None
    except HeadpruneError:
        return None  # A broken manifest is replaced too, and tells of no file to clear up.
    return None if raw is None else raw.file


def is_named(file: str, folder: Path) -> bool:
    """Whether a JSON file of `folder`, such as another manifest, names `file`."""
    others = (path for path in folder.glob("*.json*") if path.is_file())
    return any(file.encode() in other.read_bytes() for other in others)


def write_raw_scores(table: ScoreTable, target: Path, folder: Path | None) -> RawScores:
    """Write the raw scores to a file that carries the start of its own hash in its name."""
    with temporary_file(target / "scores.safetensors", folder=folder) as staging:
        save_file(table.tensors(), staging, metadata={"format": FORMAT})
        digest = sha256_file(staging)
        name = f"scores-{digest[:16]}.safetensors"
        move_into_place(staging, target / name)
    return RawScores(file=name, sha256=digest, relative_error=RELATIVE_ERROR)
