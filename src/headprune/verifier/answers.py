"""Answers kept while a run goes on, so that an interrupted run resumes where it stopped."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from headprune.errors import WRITABLE, HeadpruneError

SUFFIX = ".rows.jsonl"


@dataclass(frozen=True, kw_only=True)
class Scored:
    """What one forward said about its continuations.

    Attributes:
        loglikelihoods: Log-likelihood of each continuation, nats.
        greedy: Whether each continuation is what greedy decoding gives.
        gated: Share of cells that the gate switched off, if the graph tells.
    """

    loglikelihoods: tuple[float, ...]
    greedy: tuple[bool, ...]
    gated: float | None


def forward_key(model: str, ids: Sequence[int], continuations: Sequence[Sequence[int]]) -> str:
    """Content hash of one forward: which model reads which token ids, and what is scored."""
    text = json.dumps([model, list(ids), [list(c) for c in continuations]])
    return hashlib.sha256(text.encode()).hexdigest()


class Answers:
    """Scored forwards by content hash, in memory and, if a path is given, one JSON line each.

    A file is used again only if its first line holds the same `key`: the hash of everything that
    the answers depend on besides the token ids.

    Args:
        path: The file, or None to keep the answers in memory only.
        key: Hash of graphs, weights, tokenizer, thresholds and settings.
    """

    def __init__(self, path: Path | None, key: str) -> None:
        self.path = path
        self.other_inputs = False
        self._known: dict[str, Scored] = {}
        self._stream: IO[str] | None = None
        if path is not None:
            self._known = self._read(path, key)
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._stream = path.open("w", encoding="utf-8")
            except OSError as error:
                raise HeadpruneError(
                    f"cannot write {path}: {error.strerror}", hint=WRITABLE
                ) from error
            self._line({"key": key})
            for name, scored in self._known.items():
                self._line(_to_json(name, scored))

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: str) -> Scored | None:
        """What an earlier forward with this key said."""
        return self._known.get(key)

    def put(self, key: str, scored: Scored) -> None:
        """Keep what a forward said."""
        self._known[key] = scored
        self._line(_to_json(key, scored))

    def close(self, *, remove: bool) -> None:
        """Close the file; `remove` it once the report holds the answers."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        if remove and self.path is not None:
            self.path.unlink(missing_ok=True)

    def _line(self, record: dict[str, Any]) -> None:
        if self._stream is not None:
            self._stream.write(json.dumps(record) + "\n")
            self._stream.flush()

    def _read(self, path: Path, key: str) -> dict[str, Scored]:
        """The file's whole lines; the last one may have been cut short."""
        try:
            lines = path.read_text("utf-8").splitlines()
            header = json.loads(lines[0]) if lines else {}
        except FileNotFoundError:
            return {}
        except ValueError:
            header = {}
        if header != {"key": key}:
            self.other_inputs = True
            return {}
        known = {}
        for line in lines[1:]:
            try:
                record = json.loads(line)
                known[record["forward"]] = Scored(
                    loglikelihoods=tuple(math.nan if v is None else v for v in record["lls"]),
                    greedy=tuple(record["greedy"]),
                    gated=record["gated"],
                )
            except (ValueError, KeyError, TypeError):
                break
        return known


def _to_json(key: str, scored: Scored) -> dict[str, Any]:
    lls = [v if math.isfinite(v) else None for v in scored.loglikelihoods]
    return {"forward": key, "lls": lls, "greedy": scored.greedy, "gated": scored.gated}
