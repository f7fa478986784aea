"""Read all sources: each gives its documents, and no document comes twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headprune.analyzer.calibration.hub import stream_documents
from headprune.analyzer.calibration.readers import read_documents
from headprune.analyzer.calibration.rows import Document
from headprune.analyzer.calibration.sources import FINEWEB_EDU, Source, parse_source, share_out
from headprune.errors import HeadpruneError

DEFAULT_SEQUENCES = 100


@dataclass(frozen=True, kw_only=True)
class SourceDocuments:
    """What a source gave.

    Attributes:
        source: The source.
        share: How many sequences it is to give.
        read: How many documents were read.
        documents: Those of them that no earlier document equals.
    """

    source: Source
    share: int
    read: int
    documents: tuple[Document, ...]


def load_documents(
    calibration: Sequence[str] = (), sequences: int = DEFAULT_SEQUENCES
) -> tuple[SourceDocuments, ...]:
    """Read the sources and drop every document that equals an earlier one.

    Args:
        calibration: SOURCE[=WEIGHT] of each; FineWeb-Edu from the hub if there is none.
        sequences: How many sequences all of them are to give.

    Raises:
        HeadpruneError: A source cannot be read.
    """
    if sequences < 1:
        raise HeadpruneError(
            f"cannot take {sequences} sequences", hint="pass --sequences N (at least 1)"
        )
    sources = [parse_source(given) for given in calibration] or [FINEWEB_EDU]
    shares = share_out(sequences, [source.weight for source in sources])
    seen: set[tuple[bool, str]] = set()
    loaded = []
    for source, share in zip(sources, shares, strict=True):
        documents = read_source(source, share)
        loaded.append(
            SourceDocuments(
                source=source,
                share=share,
                read=len(documents),
                documents=_without_duplicates(documents, seen),
            )
        )
    return tuple(loaded)


def read_source(source: Source, share: int) -> list[Document]:
    """A source's documents: all of a file, the first `share` of a dataset on the hub."""
    if source.kind == "hub":
        return stream_documents(source.address, share)
    if source.kind == "builtin":
        from headprune.demo.assets import calibration_file  # noqa: PLC0415

        return read_documents(calibration_file())
    return read_documents(Path(source.address))


def _without_duplicates(
    documents: list[Document], seen: set[tuple[bool, str]]
) -> tuple[Document, ...]:
    unique = []
    for document in documents:
        key = (document.chat, document.content)
        if key not in seen:
            seen.add(key)
            unique.append(document)
    return tuple(unique)
