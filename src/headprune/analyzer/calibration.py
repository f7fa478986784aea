"""Calibration text: read it, choose documents and lengths by seed, turn it into token ids."""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headprune.errors import HeadpruneError
from headprune.manifests.model import CalibrationInfo

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BUILTIN = "builtin"
HUB_DEFAULT = "HuggingFaceFW/fineweb-edu"
DEFAULT_SEQUENCES = 100
DEFAULT_LENGTHS = (10, 3000)


@dataclass(frozen=True, kw_only=True)
class CalibrationSet:
    """Token ids to profile, and where they are from.

    Attributes:
        sequences: Token ids of each sequence, BOS included where the tokenizer adds one.
        info: What the manifest records.
    """

    sequences: tuple[tuple[int, ...], ...]
    info: CalibrationInfo


def read_documents(path: Path) -> list[str]:
    """The texts of a JSONL file, one per line, in its order.

    Raises:
        HeadpruneError: The file is missing, empty, not UTF-8, not JSONL, or a row has no `text`.
    """
    hint = 'expected JSONL: one object per line with a string field "text"'
    try:
        content = path.read_text("utf-8")
    except FileNotFoundError as error:
        raise HeadpruneError(f"no calibration file at {path}", hint=hint) from error
    except UnicodeDecodeError as error:
        raise HeadpruneError(
            f"the calibration file {path} is not UTF-8 (byte {error.start})", hint=hint
        ) from error
    except OSError as error:
        raise HeadpruneError(f"cannot read {path}: {error.strerror}", hint=hint) from error
    documents = []
    for number, line in enumerate(content.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise HeadpruneError(
                f"{path}, line {number} is not JSON: {error}", hint=hint
            ) from error
        text = row.get("text") if isinstance(row, dict) else None
        if not isinstance(text, str):
            raise HeadpruneError(f'{path}, line {number} has no string field "text"', hint=hint)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise HeadpruneError(
                f"{path}, line {number} has half a surrogate", hint=hint
            ) from error
        documents.append(text)
    if not documents:
        raise HeadpruneError(f"the calibration file {path} is empty", hint=hint)
    return documents


def stream_hub_documents(count: int) -> list[str]:
    """The first `count` documents of FineWeb-Edu, the paper's calibration text.

    Raises:
        HeadpruneError: The hub cannot be reached, or `datasets` is not installed.
    """
    hint = "pass --calibration FILE.jsonl, or --calibration builtin for the demo's text"
    try:
        from datasets import load_dataset  # noqa: PLC0415  only this default needs it
    except ImportError as error:
        raise HeadpruneError(
            f"the default calibration text ({HUB_DEFAULT}) needs the package datasets", hint=hint
        ) from error
    try:
        rows = load_dataset(HUB_DEFAULT, name="sample-10BT", split="train", streaming=True)
        return [row["text"] for row in rows.take(count)]
    except (OSError, ValueError) as error:
        raise HeadpruneError(
            f"cannot read the default calibration text ({HUB_DEFAULT}) from the hub", hint=hint
        ) from error


def load_documents(calibration: str | None, sequences: int) -> tuple[str, list[str]]:
    """The source's name for the manifest, and its documents."""
    if calibration is None:
        return HUB_DEFAULT, stream_hub_documents(sequences)
    if calibration == BUILTIN:
        from headprune.demo.assets import calibration_file  # noqa: PLC0415

        return BUILTIN, read_documents(calibration_file())
    path = Path(calibration).expanduser()
    return path.name, read_documents(path)


def choose_sequences(
    documents: list[str],
    tokenizer: PreTrainedTokenizerBase,
    *,
    source: str,
    sequences: int = DEFAULT_SEQUENCES,
    lengths: tuple[int, int] = DEFAULT_LENGTHS,
    max_positions: int | None = None,
    seed: int = 0,
) -> CalibrationSet:
    """Choose documents and cut each to a random length, both by seed.

    Documents are taken in a seeded random order. Each is given a length drawn evenly from `lengths`
    and cut to it; a document with fewer tokens than the shortest length is passed over.

    Args:
        documents: Texts.
        tokenizer: Encodes them with its own BOS policy.
        source: Name of the text for the manifest.
        sequences: How many to take at most.
        lengths: Shortest and longest length, in tokens, BOS included.
        max_positions: The model's longest sequence; caps `lengths`.
        seed: Seed of both draws.

    Raises:
        HeadpruneError: The range is empty, or no document is long enough.
    """
    low, high = lengths[0], min(lengths[1], max_positions or lengths[1])
    if not 1 <= low <= high or sequences < 1:
        raise HeadpruneError(
            f"cannot take {sequences} sequences of {low} to {high} tokens",
            hint="pass --sequences N (at least 1) and --length MIN:MAX that the model can hold",
        )
    draw = random.Random(seed)  # noqa: S311  reproducible sampling, not cryptography
    order = sorted(range(len(documents)), key=lambda _: draw.random())
    chosen: list[tuple[int, ...]] = []
    texts: list[str] = []
    cut = skipped = 0
    for index in order:
        if len(chosen) == sequences:
            break
        length = low + int(draw.random() * (high - low + 1))
        ids = tokenizer(documents[index], verbose=False)["input_ids"]
        if len(ids) < low:
            skipped += 1
            continue
        cut += len(ids) > length
        chosen.append(tuple(ids[:length]))
        texts.append(documents[index])
    if not chosen:
        raise HeadpruneError(
            f"no document of {source} has {low} tokens or more",
            hint="pass longer texts, or a lower --length MIN:MAX",
        )
    info = CalibrationInfo(
        source=source,
        sha256=_hash_texts(texts),
        sequences=len(chosen),
        tokens=sum(len(ids) for ids in chosen),
        length_range=(low, high),
        seed=seed,
        cut=cut,
        skipped=skipped,
    )
    return CalibrationSet(sequences=tuple(chosen), info=info)


def _hash_texts(texts: list[str]) -> str:
    digest = hashlib.sha256()
    for text in texts:
        data = text.encode()
        digest.update(f"{len(data)}\n".encode() + data)
    return digest.hexdigest()
