"""Files of calibration text: JSONL, plain text and Parquet, told apart by their suffix."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import BinaryIO, Literal

from headprune.analyzer.calibration.rows import FIELDS, Document, parse_row
from headprune.errors import HeadpruneError, first_line

FileKind = Literal["jsonl", "text", "parquet"]

KINDS: dict[str, FileKind] = {".txt": "text", ".md": "text", ".parquet": "parquet"}
TEXT_DOCUMENT = 16_000
ROW = 'a string "text", or with a list "messages" of {"role": …, "content": …}'
HINTS: dict[FileKind, str] = {
    "jsonl": f"expected JSONL: one object per line with {ROW}",
    "text": "expected plain text in UTF-8",
    "parquet": f"expected Parquet: rows with {ROW}",
}


def file_kind(path: Path) -> FileKind:
    """How a file is read; JSONL unless its suffix says otherwise."""
    return KINDS.get(path.suffix.lower(), "jsonl")


def read_documents(path: Path) -> list[Document]:
    """The documents of a file, in its order.

    Raises:
        HeadpruneError: The file is missing, empty, or not what its suffix says.
    """
    kind = file_kind(path)
    readers = {"jsonl": read_jsonl, "text": read_text, "parquet": read_parquet}
    documents = readers[kind](path)
    if not documents:
        raise HeadpruneError(f"the calibration file {path} is empty", hint=HINTS[kind])
    return documents


def read_jsonl(path: Path) -> list[Document]:
    """One document per line that is not blank."""
    hint = HINTS["jsonl"]
    documents = []
    # Not `splitlines`: a string in JSON may hold U+2028 and other characters that it cuts at.
    for number, line in enumerate(_decode(path, hint).split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise HeadpruneError(f"{where} is not JSON: {error}", hint=hint) from error
        documents.append(parse_row(row, where=where, hint=hint))
    return documents


def read_text(path: Path) -> list[Document]:
    """Whole paragraphs, joined until a document has 16,000 characters; the last may have fewer."""
    lines = _decode(path, HINTS["text"]).split("\n")
    blocks = groupby(lines, key=lambda line: bool(line.strip()))
    documents: list[Document] = []
    gathered: list[str] = []
    size = 0

    def close() -> None:
        where = f"{path}, document {len(documents) + 1}"
        documents.append(Document(content="\n\n".join(gathered), where=where))

    for paragraph in ("\n".join(block) for filled, block in blocks if filled):
        size += len(paragraph) + (2 if gathered else 0)
        gathered.append(paragraph)
        if size >= TEXT_DOCUMENT:
            close()
            gathered, size = [], 0
    if gathered:
        close()
    return documents


def read_parquet(path: Path) -> list[Document]:
    """One document per row of the column `text` or `messages`."""
    hint = HINTS["parquet"]
    try:
        import pyarrow as pa  # type: ignore[import-untyped]  # noqa: PLC0415
        from pyarrow import parquet  # noqa: PLC0415
    except ImportError as error:
        raise HeadpruneError(
            f"reading {path} needs the package pyarrow", hint="pip install pyarrow"
        ) from error
    rows: list[object] = []
    with _opened(path, hint) as file:
        try:
            table = parquet.ParquetFile(file)
            columns = [name for name in FIELDS if name in table.schema_arrow.names]
            if columns:
                for batch in table.iter_batches(columns=columns):
                    rows += batch.to_pylist()
        except (pa.ArrowException, ValueError) as error:
            raise HeadpruneError(
                f"{path} cannot be read as Parquet: {first_line(error)}", hint=hint
            ) from error
    if not columns:
        raise HeadpruneError(f'{path} has no column "text" or "messages"', hint=hint)
    return [
        parse_row(row, where=f"{path}, row {number}", hint=hint)
        for number, row in enumerate(rows, start=1)
    ]


def _decode(path: Path, hint: str) -> str:
    """A file's text without a byte order mark, whichever way its lines end."""
    with _opened(path, hint) as file:
        data = file.read()
    body = data.removeprefix(codecs.BOM_UTF8)
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        place = error.start + len(data) - len(body)
        raise HeadpruneError(
            f"the calibration file {path} is not UTF-8 (byte {place})", hint=hint
        ) from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


@contextmanager
def _opened(path: Path, hint: str) -> Iterator[BinaryIO]:
    """The open file; whatever the system refuses becomes one line."""
    try:
        with path.open("rb") as file:
            yield file
    except FileNotFoundError as error:
        raise HeadpruneError(f"no calibration file at {path}", hint=hint) from error
    except IsADirectoryError as error:
        raise HeadpruneError(
            f"cannot read {path}: it is a directory, expected a file",
            hint="pass each of its files: --calibration FILE --calibration FILE",
        ) from error
    except OSError as error:
        reason = error.strerror or first_line(error)
        raise HeadpruneError(f"cannot read {path}: {reason}", hint=hint) from error
