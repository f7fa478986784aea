"""Merge the manifests of all shards of an analysis into that of the whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headprune.analyzer.score_table import ScoreTable
from headprune.analyzer.summary import write_results
from headprune.errors import HeadpruneError
from headprune.manifests.files import check_manifest_path, read_manifest
from headprune.manifests.model import Direction, Granularity, Manifest
from headprune.manifests.raw import read_tensors


@dataclass(frozen=True, kw_only=True)
class MergedScore:
    """A score as the manifests name it; its function is not needed."""

    id: str
    granularity: Granularity
    inactive_when: Direction


def merge(paths: Sequence[Path], output: Path) -> Manifest:
    """Merge shards; the result is the manifest of one run over the whole calibration set.

    Args:
        paths: Manifests of all shards, in any order, raw scores beside them.
        output: The merged manifest.

    Raises:
        HeadpruneError: A manifest is not that of a shard, is of another analysis, is missing or
            given twice, or its raw scores are missing.
    """
    check_manifest_path(output)
    manifests = [read_manifest(path, shards=True) for path in paths]
    first = manifests[0]
    for path, manifest in zip(paths, manifests, strict=True):
        check_same(first, manifest, paths[0], path)
    check_complete(manifests)
    scores = [
        MergedScore(id=name, granularity=s.granularity, inactive_when=s.inactive_when)
        for name, s in first.scores.items()
    ]
    table = ScoreTable(scores, first.calibration.sequences)
    for path, manifest in zip(paths, manifests, strict=True):
        table.absorb(read_tensors(manifest, path.parent))
    return write_results(
        output,
        table,
        scores,
        model=first.model,
        tokenizer=first.tokenizer,
        calibration=first.calibration,
        fractions=fractions_of(first),
    )


def fractions_of(manifest: Manifest) -> tuple[float, ...]:
    """The fractions a manifest has thresholds for."""
    summary = next(iter(manifest.scores.values()))
    return tuple(threshold.fraction for threshold in summary.thresholds)


def check_same(first: Manifest, other: Manifest, first_path: Path, path: Path) -> None:
    """Refuse shards of different analyses, and say in what they differ."""
    if other.shard is None:
        raise HeadpruneError(
            f"{path} is the manifest of a whole analysis, expected those of shards",
            hint="make them with headprune analyze --shard 1/N, 2/N, …, N/N",
        )
    pairs = {
        "tool version": (first.tool_version, other.tool_version),
        "model": (first.model, other.model),
        "tokenizer": (first.tokenizer, other.tokenizer),
        "calibration": (first.calibration, other.calibration),
        "scores": (list(first.scores), list(other.scores)),
        "fractions": (fractions_of(first), fractions_of(other)),
        "number of shards": (first.shard and first.shard.count, other.shard.count),
    }
    differing = [name for name, (one, two) in pairs.items() if one != two]
    if differing:
        raise HeadpruneError(
            f"{path} and {first_path} are not of one analysis: {', '.join(differing)} differ",
            hint="run headprune analyze with the same options for every shard",
        )


def check_complete(manifests: Sequence[Manifest]) -> None:
    """Refuse missing and repeated shards."""
    shards = [manifest.shard for manifest in manifests if manifest.shard]
    found = sorted(shard.index + 1 for shard in shards)
    count = shards[0].count
    repeated = sorted({number for number in found if found.count(number) > 1})
    if repeated:
        raise HeadpruneError(
            f"shard {repeated[0]} of {count} is given more than once", hint="pass every shard once"
        )
    missing = sorted(set(range(1, count + 1)) - set(found))
    if missing:
        raise HeadpruneError(
            f"{len(missing)} of {count} shards are missing: {', '.join(map(str, missing))}",
            hint=f"headprune analyze … --shard {missing[0]}/{count}",
        )
