"""Files written whole or not at all, and their hashes."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headprune.errors import WRITABLE, HeadpruneError

HASH_BLOCK = 1 << 22


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(HASH_BLOCK):
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def temporary_file(path: Path, *, folder: Path | None = None) -> Iterator[Path]:
    """A temporary file beside `path`, removed when the block ends if it is still there.

    Args:
        path: What the file shall become.
        folder: Where to put it instead: a place on the same file system that is cleared up even
            after the process was killed.

    Raises:
        HeadpruneError: The folder cannot be written to.
    """
    folder = folder or path.parent
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=folder, prefix=f".{path.name}.")
    except OSError as error:
        raise HeadpruneError(f"cannot write {path}: {error.strerror}", hint=WRITABLE) from error
    os.close(handle)
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def move_into_place(temporary: Path, path: Path) -> None:
    """Move a finished temporary file onto `path`.

    Raises:
        HeadpruneError: `path` is there and is not a file.
    """
    check_replaceable(path)
    temporary.chmod(0o666 & ~_umask())
    temporary.replace(path)


def check_replaceable(path: Path) -> None:
    """Raise unless a file may be put at `path`; long work calls this before it starts.

    Raises:
        HeadpruneError: `path` is a directory, a device or the like, or lies under a file.
    """
    if path.exists() and not path.is_file():
        kind = "directory" if path.is_dir() else "device or the like"
        raise HeadpruneError(f"cannot write {path}: it is a {kind}", hint="pass a file's path")
    for parent in path.parents:
        if parent.exists():
            if not parent.is_dir():
                raise HeadpruneError(
                    f"cannot write {path}: {parent} is not a directory", hint="pass another path"
                )
            return


@contextmanager
def staged_file(path: Path, *, folder: Path | None = None) -> Iterator[Path]:
    """A temporary file as `temporary_file`, moved onto `path` if the block ends without an error.

    Raises:
        HeadpruneError: The folder cannot be written to, or `path` is there and is not a file.
    """
    with temporary_file(path, folder=folder) as staging:
        yield staging
        move_into_place(staging, path)


def write_text_whole(path: Path, text: str, *, folder: Path | None = None) -> None:
    """Write UTF-8 text to `path` so that a reader sees the old file or the new one."""
    with staged_file(path, folder=folder) as staging:
        staging.write_text(text, "utf-8")


@contextmanager
def staged_directory(path: Path, *, force: bool = False) -> Iterator[Path]:
    """A temporary directory beside `path`, moved to it when the block ends without an error.

    Args:
        path: Where the directory shall stand; must not exist, or be empty, unless `force`.
        force: Replace an earlier export at `path`, and nothing else.

    Raises:
        HeadpruneError: `path` is taken, or its parent cannot be written to.
    """
    check_free(path, force=force)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    except OSError as error:
        raise HeadpruneError(f"cannot write {path}: {error.strerror}", hint=WRITABLE) from error
    try:
        yield staging
        staging.chmod(0o777 & ~_umask())
        if path.exists():
            shutil.rmtree(path)
        staging.rename(path)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def check_free(path: Path, *, force: bool) -> None:
    """Raise unless a directory may be written at `path`; long work calls this before it starts.

    Raises:
        HeadpruneError: `path` is a file or a link; or a directory with content, and not `force`
            or not an earlier export.
    """
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        kind = "symbolic link" if path.is_symlink() else "file"
        raise HeadpruneError(
            f"{path} is a {kind}, expected a directory to write to", hint="pass another -o DIR"
        )
    if not path.is_dir() or not any(path.iterdir()):
        return
    if not force:
        raise HeadpruneError(
            f"{path} is not empty", hint="pass --force to replace it, or another -o DIR"
        )
    if not is_export(path):
        raise HeadpruneError(
            f"{path} is not an export of headprune: --force replaces nothing else",
            hint="pass another -o DIR, or empty this directory yourself",
        )


def is_export(path: Path) -> bool:
    """Whether a directory holds an exported artefact and no folders.

    A manifest that names no artefact is the analyzer's, which may lie anywhere, also among a
    user's own files.
    """
    try:
        document = json.loads((path / "manifest.json").read_text("utf-8"))
    except (OSError, ValueError):
        return False
    ours = isinstance(document, dict) and "tool_version" in document and document.get("artefact")
    return bool(ours) and not any(child.is_dir() for child in path.iterdir())


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
