"""An exported directory as the verifier reads it, and its fingerprint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headprune.analyzer.identity import describe_tokenizer
from headprune.analyzer.loading import load_tokenizer
from headprune.errors import EXPORT, EXPORT_AGAIN, HeadpruneError
from headprune.files import sha256_file
from headprune.manifests import Manifest, read_manifest
from headprune.schemas.validation import parse_json
from headprune.verifier.model import FileHash, Fingerprint
from headprune.verifier.quiet import quiet

LENGTH_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len")
NO_LIMIT = 1 << 60


@dataclass(frozen=True, kw_only=True)
class Exported:
    """An exported directory, opened.

    Attributes:
        manifest: Its manifest.json.
        graph: Path of the graph.
        tokenizer: The tokenizer in the directory.
        max_length: Most tokens that the model can read; None if its configuration has no limit.
        fingerprint: Hashes of its files, as they should be and as they are.
    """

    manifest: Manifest
    graph: Path
    tokenizer: Any
    max_length: int | None
    fingerprint: Fingerprint


def open_exported(directory: Path) -> Exported:
    """Open a directory written by `headprune export --format onnx`.

    Raises:
        HeadpruneError: It is no such directory, or a file of it is missing.
    """
    hint = f"make one: {EXPORT} " + ("DIR" if directory.exists() else str(directory))
    if not directory.is_dir():
        raise HeadpruneError(f"no exported model at {directory}", hint=hint)
    manifest = read_manifest(directory / "manifest.json", hint=hint)
    if manifest.artefact is None:
        raise HeadpruneError(
            f"{directory / 'manifest.json'} describes no exported graph", hint=hint
        )
    files = {}
    for name, expected in sorted(manifest.artefact.files.items()):
        if not (directory / name).is_file():
            raise HeadpruneError(
                f"{directory} lacks {name}, which its manifest.json lists",
                hint=f"copy the whole directory, or export it again: {EXPORT} DIR",
            )
        files[name] = FileHash(expected=expected, actual=sha256_file(directory / name))
    with quiet():
        tokenizer = load_tokenizer(directory, str(directory), trust_remote_code=False)
        actual = describe_tokenizer(tokenizer, str(directory)).sha256
    tokenizer.model_max_length = NO_LIMIT  # prompts that are too long are counted, not warned of
    return Exported(
        manifest=manifest,
        graph=directory / manifest.artefact.graph,
        tokenizer=tokenizer,
        max_length=_max_length(directory / "config.json"),
        fingerprint=Fingerprint(
            files=files,
            weights_sha256=manifest.model.weights_sha256,
            tokenizer=FileHash(expected=manifest.tokenizer.sha256, actual=actual),
        ),
    )


def check_same_model(manifest: Manifest, candidate: Exported) -> None:
    """Raise unless the candidate was exported from the manifest's model.

    Raises:
        HeadpruneError: Weights or configuration differ.
    """
    actual = candidate.manifest.model
    difference = manifest.model.difference(actual)
    if difference is not None:
        raise HeadpruneError(
            f"the candidate was exported from {actual.name}, another model than the manifest's "
            f"{manifest.model.name}: {difference}",
            hint="pass the manifest that the candidate was exported with",
        )


def _max_length(path: Path) -> int | None:
    try:
        config = parse_json(path.read_text("utf-8"), where=str(path), hint=EXPORT_AGAIN)
    except OSError as error:
        raise HeadpruneError(f"cannot read {path}: {error.strerror}", hint=EXPORT_AGAIN) from error
    for part in (config, config.get("text_config") or {}):
        for key in LENGTH_KEYS:
            if isinstance(part.get(key), int):
                return int(part[key])
    return None
