"""Read and write manifest files: validated both ways, the same bytes for the same content."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import cattrs

from headprune.errors import ANALYZE_AGAIN, REPORT_BUG, HeadpruneError
from headprune.files import check_replaceable, write_text_whole
from headprune.manifests.model import Manifest
from headprune.schemas.validation import make_one, read_document, validate

SCHEMA = "manifest-v1"


def read_manifest(path: Path, *, shards: bool = False, hint: str | None = None) -> Manifest:
    """Read and validate a manifest.

    Args:
        path: The file.
        shards: Also accept the manifest of one shard of an analysis.
        hint: What to do where there is none; by default, to analyze a model.

    Raises:
        HeadpruneError: The file is missing, not JSON, does not follow the schema, or is that of a
            shard where the whole is wanted.
    """
    hint = hint or make_one("headprune analyze --model DIR -o", path, default="manifest.json")
    document = read_document(path, SCHEMA, what="manifest", hint=hint)
    manifest = cattrs.structure(document, Manifest)
    check_shapes(manifest, where=str(path))
    if manifest.shard is not None and not shards:
        raise HeadpruneError(
            f"{path} is shard {manifest.shard.index + 1} of {manifest.shard.count}, expected the "
            "manifest of a whole analysis",
            hint="headprune manifest merge SHARD.json … -o manifest.json",
        )
    return manifest


def write_manifest(manifest: Manifest, path: Path, *, folder: Path | None = None) -> None:
    """Validate `manifest` and write it to `path`, whole or not at all.

    Args:
        manifest: What to write.
        path: Where.
        folder: For the unfinished file; the folder of `path` by default.
    """
    document = json.loads(json.dumps(asdict(manifest)))
    validate(document, SCHEMA, where="the manifest to be written", hint=REPORT_BUG)
    check_shapes(manifest, where="the manifest to be written")
    write_text_whole(path, dumps(document) + "\n", folder=folder)


def check_manifest_path(path: Path) -> None:
    """Raise unless a manifest may be written to `path`; long work calls this before it starts.

    Raises:
        HeadpruneError: `path` cannot be written to, or is a file that is not a manifest.
    """
    check_replaceable(path)
    if not path.is_file() or path.stat().st_size == 0:
        return
    try:
        document = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        document = None
    if not isinstance(document, dict) or "schema_version" not in document:
        raise HeadpruneError(
            f"{path} is there and is not a manifest, which alone would be replaced",
            hint="pass another -o FILE, or remove it yourself",
        )


def check_shapes(manifest: Manifest, *, where: str) -> None:
    """Check what a JSON Schema cannot say: that all per-head tables have the model's shape.

    Raises:
        HeadpruneError: A table has other layers or heads than `model.layers`, or the gate names a
            head that does not exist.
    """
    heads = [layer.query_heads for layer in manifest.model.layers]
    for name, score in manifest.scores.items():
        statistics = score.heads
        tables = [
            statistics.mean, statistics.std, statistics.minimum, statistics.q25,
            statistics.median, statistics.q75, statistics.maximum, *statistics.inactive_share,
        ]  # fmt: skip
        if any([len(row) for row in table] != heads for table in tables):
            raise HeadpruneError(
                f"{where}: scores.{name}.heads does not have the shape of model.layers",
                hint=ANALYZE_AGAIN,
            )
        if len(statistics.inactive_share) != len(score.thresholds):
            raise HeadpruneError(
                f"{where}: scores.{name}.heads.inactive_share has "
                f"{len(statistics.inactive_share)} tables, expected one per threshold",
                hint=ANALYZE_AGAIN,
            )
    for layer, head in manifest.gate.heads if manifest.gate else ():
        if layer >= len(heads) or head >= heads[layer]:
            raise HeadpruneError(
                f"{where}: gate.heads names layer {layer} head {head}: no such head",
                hint=ANALYZE_AGAIN,
            )


def dumps(value: Any, indent: int = 0) -> str:
    """JSON with one line per row of numbers, so that a manifest can be read and diffed."""
    pad, inner = " " * indent, " " * (indent + 2)
    if isinstance(value, dict) and value:
        rows = (f"{inner}{json.dumps(k)}: {dumps(v, indent + 2)}" for k, v in value.items())
        return "{\n" + ",\n".join(rows) + f"\n{pad}}}"
    if isinstance(value, list) and any(isinstance(item, (list, dict)) for item in value):
        rows = (f"{inner}{dumps(item, indent + 2)}" for item in value)
        return "[\n" + ",\n".join(rows) + f"\n{pad}]"
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
