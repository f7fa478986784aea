"""Sources in memory and a tokenizer whose ids can be read back."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from headprune.analyzer.calibration import Document, Source, SourceDocuments


class Characters:
    """A tokenizer that gives one id per character, after a BOS of 1; it counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, text: str, *, verbose: bool) -> dict[str, list[int]]:
        assert not verbose
        self.calls += 1
        return {"input_ids": [1, *(ord(character) for character in text)]}


DOCUMENTS = [f"document {number} " * (1 + number % 7) for number in range(40)]


def text_of(ids: Iterable[int]) -> str:
    """What `Characters` encoded."""
    return "".join(chr(token) for token in list(ids)[1:])


def source(texts: list[str], share: int, name: str = "test") -> SourceDocuments:
    """A source that was read from a file of these texts, none of them twice."""
    documents = tuple(Document(content=text, where=name) for text in texts)
    return SourceDocuments(
        source=Source(kind="jsonl", name=name, address=name),
        share=share,
        read=len(texts),
        documents=documents,
    )


def write_rows(path: Path, rows: Iterable[object]) -> Path:
    """A JSONL file of these rows."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def write_texts(path: Path, texts: Iterable[str]) -> Path:
    """A JSONL file of these texts."""
    return write_rows(path, ({"text": text} for text in texts))
