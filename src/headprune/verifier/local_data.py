"""Questions from local JSONL files, checked row by row, and written for a task's subjects."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyarrow import parquet

from headprune.errors import HeadpruneError
from headprune.schemas.validation import parse_json

Row = dict[str, Any]
Check = Callable[[Any], bool]


def is_text(value: Any) -> bool:
    """A string."""
    return isinstance(value, str)


def one_of(*allowed: object) -> Check:
    """A check for one of a few values; `True` does not pass for 1."""
    return lambda value: value in allowed and not isinstance(value, bool)


def are_texts(count: int) -> Check:
    """A check for a list of `count` strings."""
    return lambda value: (
        isinstance(value, list) and len(value) == count and all(map(is_text, value))
    )


def is_blank_sentence(value: Any) -> bool:
    """A string with a blank, `_`, to fill in."""
    return is_text(value) and "_" in value


def read_rows(path: Path, fields: Mapping[str, Check]) -> list[Row]:
    """The rows of a JSONL file, with the named fields only.

    Raises:
        HeadpruneError: The file is missing, has no rows, or a row is not what the task needs.
    """
    try:
        lines = path.read_text("utf-8").split("\n")
    except FileNotFoundError as error:
        raise HeadpruneError(f"no file {path}", hint=LAYOUT) from error
    except (OSError, UnicodeDecodeError) as error:
        raise HeadpruneError(f"cannot read {path}: {error}", hint=LAYOUT) from error
    rows = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        row = parse_json(line, where=where, hint=LAYOUT)
        if not isinstance(row, dict):
            raise HeadpruneError(f"{where}: expected a JSON object", hint=LAYOUT)
        for name, check in fields.items():
            if name not in row:
                raise HeadpruneError(f"{where}: no field '{name}'", hint=LAYOUT)
            if not check(row[name]):
                raise HeadpruneError(
                    f"{where}: the task cannot use {name} = {_short(row[name])}",
                    hint="mend that row, or remove it",
                )
        rows.append({name: row[name] for name in fields})
    if not rows:
        raise HeadpruneError(f"{path} has no rows", hint=LAYOUT)
    return rows


def group_by(rows: Iterable[Row], field: str) -> dict[str, list[Row]]:
    """Rows by the value of a field, values sorted, rows in their order, without the field."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        rest = {name: value for name, value in row.items() if name != field}
        groups.setdefault(row[field], []).append(rest)
    return dict(sorted(groups.items()))


def write_rows(rows: Sequence[Row], path: Path) -> None:
    """Write rows as Parquet.

    The data set library's JSON reader would turn a column of texts like 2020-01-01 into dates.
    """
    parquet.write_table(pa.Table.from_pylist(list(rows)), path)


LAYOUT = (
    "DIR of --data holds mmlu/{dev,test}.jsonl, piqa/validation.jsonl, winogrande/validation.jsonl "
    "or demo/{dev,test}.jsonl"
)
_SHOWN = 60


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
