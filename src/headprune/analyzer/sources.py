"""Find a model's files: a directory, a hub id, or where this machine last saw it."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from headprune.errors import HeadpruneError, first_line
from headprune.files import write_text_whole
from headprune.manifests.model import ModelInfo

HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$")
CHECK_FILES = "check the directory, or download the model again"
HUB_PATTERNS = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "*.py"]


@dataclass(frozen=True, kw_only=True)
class ModelFiles:
    """Where a model lies.

    Attributes:
        name: Hub id, or the directory's own name.
        revision: Commit on the hub; None for a directory.
        directory: The local directory.
        weights: Its safetensors files, all of them.
    """

    name: str
    revision: str | None
    directory: Path
    weights: tuple[Path, ...]


def find_model_files(source: str, *, revision: str | None = None) -> ModelFiles:
    """Locate `source` as a directory, else as a hub id.

    Raises:
        HeadpruneError: It is neither, or holds no safetensors weights.
    """
    path = Path(source).expanduser()
    if source and path.is_dir():
        directory = path.resolve()
        return ModelFiles(
            name=directory.name, revision=None, directory=directory, weights=weights_of(directory)
        )
    if source and path.exists():
        raise HeadpruneError(
            f"{source} is a file, expected a model directory or a hub id",
            hint=f"pass its directory: --model {path.parent}",
        )
    if not HUB_ID.match(source):
        raise HeadpruneError(
            f"no model at {source or 'an empty path'}: no such directory, and not a hub id "
            "(organisation/name)",
            hint="pass --model DIR with config.json, safetensors weights and a tokenizer",
        )
    directory = download(source, revision)
    return ModelFiles(
        name=source, revision=directory.name, directory=directory, weights=weights_of(directory)
    )


def download(hub_id: str, revision: str | None) -> Path:
    """The local snapshot of a hub repository; its directory's name is the commit."""
    from huggingface_hub import snapshot_download  # noqa: PLC0415  not needed for directories

    try:
        return Path(snapshot_download(hub_id, revision=revision, allow_patterns=HUB_PATTERNS))
    except (OSError, ValueError) as error:
        raise HeadpruneError(
            f"no directory {hub_id}, and the hub did not give a model of that name: "
            f"{first_line(error)}",
            hint="check the name and the network, or pass --model DIR",
        ) from error


def weights_of(directory: Path) -> tuple[Path, ...]:
    """The safetensors files that the directory's index names, or its single file.

    Raises:
        HeadpruneError: There are none, or one that the index names is missing.
    """
    if not (directory / "config.json").is_file():
        raise HeadpruneError(
            f"{directory} is not a model directory: it holds no config.json",
            hint="pass --model DIR with config.json, safetensors weights and a tokenizer",
        )
    index = directory / "model.safetensors.index.json"
    if (directory / "model.safetensors").is_file():
        return (directory / "model.safetensors",)
    if index.is_file():
        names = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
        for name in names:
            if not (directory / name).is_file():
                raise HeadpruneError(
                    f"{directory} is incomplete: its index names {name}, which is missing",
                    hint="download the model again",
                )
        return tuple(directory / name for name in names)
    hint = "headprune reads safetensors only"
    if any(directory.glob("*.bin")):
        hint += "; convert the pickled .bin files with transformers' save_pretrained"
    raise HeadpruneError(f"{directory} holds no weights (model.safetensors)", hint=hint)


def remember_directory(model: ModelInfo, directory: Path) -> None:
    """Note in the user's cache where a model lies: a manifest itself holds no local path."""
    note = _note(model)
    try:
        write_text_whole(note, str(directory))
    except HeadpruneError:
        return  # A read-only home costs the user `--model` at export, nothing else.


def recall_directory(model: ModelInfo) -> Path | None:
    """Where this user's machine last saw a model, if it is still there."""
    try:
        directory = Path(_note(model).read_text("utf-8"))
    except OSError:
        return None
    return directory if directory.is_dir() else None


def _note(model: ModelInfo) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "headprune" / "models" / f"{model.weights_sha256}-{model.config_sha256[:16]}"
