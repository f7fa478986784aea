"""Choose documents and lengths by seed."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headprune.analyzer.calibration.encode import encode
from headprune.analyzer.calibration.load import SourceDocuments
from headprune.analyzer.calibration.rows import Document
from headprune.errors import HeadpruneError
from headprune.manifests.model import CalibrationInfo, CalibrationSource

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

DEFAULT_LENGTHS = (10, 3000)


@dataclass(frozen=True, kw_only=True)
class CalibrationSet:
    """Token ids to profile, and where they are from.

    Attributes:
        sequences: Token ids of each sequence, BOS included where the tokenizer or the chat template
            adds one; those of the first source come first.
        info: What the manifest records.
        report: One line for the user: what each source gave of what was asked, and what was left.
    """

    sequences: tuple[tuple[int, ...], ...]
    info: CalibrationInfo
    report: str


@dataclass(frozen=True, kw_only=True)
class Draw:
    """What was drawn from one source.

    Attributes:
        documents: The documents, in the order drawn.
        sequences: Their token ids, cut to the lengths drawn.
        cut: How many were longer than that.
        skipped: Documents passed over because they have fewer tokens than the shortest length.
    """

    documents: tuple[Document, ...]
    sequences: tuple[tuple[int, ...], ...]
    cut: int
    skipped: int


def choose_sequences(
    sources: Sequence[SourceDocuments],
    tokenizer: PreTrainedTokenizerBase,
    *,
    lengths: tuple[int, int] = DEFAULT_LENGTHS,
    max_positions: int | None = None,
    seed: int = 0,
) -> CalibrationSet:
    """Choose documents and cut each to a random length, both by seed.

    A source's documents are taken in a seeded random order. Each is given a length drawn evenly
    from `lengths` and cut to it; a document with fewer tokens than the shortest length is passed
    over. A source with fewer documents than its share gives what it has; no other source fills in.

    Args:
        sources: What was read; a source's draw depends on its place and share, not on the others.
        tokenizer: Encodes them with its own BOS policy or chat template.
        lengths: Shortest and longest length, in tokens, BOS included.
        max_positions: The model's longest sequence; caps `lengths`.
        seed: Seed of both draws.

    Raises:
        HeadpruneError: The range is empty, no document is long enough, or a chat cannot be encoded.
    """
    low, high = lengths[0], min(lengths[1], max_positions or lengths[1])
    if not 1 <= low <= high:
        raise HeadpruneError(
            f"cannot take sequences of {low} to {high} tokens",
            hint="pass --length MIN:MAX that the model can hold",
        )
    draws = [
        draw_sequences(source, tokenizer, lengths=(low, high), draw=source_draw(seed, index))
        for index, source in enumerate(sources)
    ]
    sequences = tuple(ids for draw in draws for ids in draw.sequences)
    if not sequences:
        names = ", ".join(source.source.name for source in sources)
        raise HeadpruneError(
            f"no document of {names} has {low} tokens or more",
            hint="pass longer texts, or a lower --length MIN:MAX",
        )
    info = CalibrationInfo(
        sources=tuple(
            CalibrationSource(
                name=source.source.name,
                kind=source.source.kind,
                weight=source.source.weight,
                documents=source.read,
                sequences=len(draw.sequences),
            )
            for source, draw in zip(sources, draws, strict=True)
        ),
        sha256=_hash_documents([document for draw in draws for document in draw.documents]),
        sequences=len(sequences),
        tokens=sum(len(ids) for ids in sequences),
        length_range=(low, high),
        seed=seed,
        cut=sum(draw.cut for draw in draws),
        skipped=sum(draw.skipped for draw in draws),
        duplicates=sum(source.read - len(source.documents) for source in sources),
    )
    report = _report(info, [source.share for source in sources])
    return CalibrationSet(sequences=sequences, info=info, report=report)


def source_draw(seed: int, index: int) -> random.Random:
    """The random numbers of the source at `index`; those of the first are the seed's own."""
    return random.Random(f"{seed}:{index}" if index else seed)  # noqa: S311  sampling, no secrets


def draw_sequences(
    source: SourceDocuments,
    tokenizer: PreTrainedTokenizerBase,
    *,
    lengths: tuple[int, int],
    draw: random.Random,
) -> Draw:
    """Draw a source's share of sequences; only documents that are drawn are encoded."""
    low, high = lengths
    order = sorted(range(len(source.documents)), key=lambda _: draw.random())
    documents: list[Document] = []
    sequences: list[tuple[int, ...]] = []
    cut = skipped = 0
    for index in order:
        if len(sequences) == source.share:
            break
        length = low + int(draw.random() * (high - low + 1))
        ids = encode(source.documents[index], tokenizer)
        if len(ids) < low:
            skipped += 1
            continue
        cut += len(ids) > length
        sequences.append(tuple(ids[:length]))
        documents.append(source.documents[index])
    return Draw(documents=tuple(documents), sequences=tuple(sequences), cut=cut, skipped=skipped)


def _report(info: CalibrationInfo, shares: Sequence[int]) -> str:
    given = ", ".join(
        f"{source.name} {source.sequences}"
        + (f" of {share} asked for" if source.sequences < share else "")
        for source, share in zip(info.sources, shares, strict=True)
    )
    return (
        f"calibration: {info.sequences} sequences ({given}), {info.tokens:,} tokens; "
        f"{info.cut} cut to their length, {info.skipped} documents too short, "
        f"{info.duplicates} duplicates dropped"
    )


def _hash_documents(documents: Sequence[Document]) -> str:
    """Hash of the documents used; of texts alone, the bytes are length, newline and text."""
    digest = hashlib.sha256()
    for document in documents:
        data = document.content.encode()
        kind = "messages " if document.chat else ""
        digest.update(f"{kind}{len(data)}\n".encode() + data)
    return digest.hexdigest()
