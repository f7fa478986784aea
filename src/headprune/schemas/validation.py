"""Validate a document against one of the packaged JSON Schemas."""

from __future__ import annotations

import json
import math
import textwrap
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from headprune.errors import HeadpruneError, first_line

LONGEST_MESSAGE = 200


@cache
def validator(name: str) -> Draft202012Validator:
    """The validator of `schemas/<name>.schema.json`, itself checked on first use."""
    schema = json.loads((files("headprune.schemas") / f"{name}.schema.json").read_text("utf-8"))
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def make_one(command: str, path: Path, *, default: str) -> str:
    """The hint how to make a file; one that is there is not to be written over."""
    return f"make one: {command} {default if path.exists() else path}"


def read_document(path: Path, schema: str, *, what: str, hint: str) -> Any:
    """Read a JSON file and validate it.

    Args:
        path: The file.
        schema: Schema name without `.schema.json`.
        what: What the file is, in messages: `manifest`.
        hint: How to make one.

    Raises:
        HeadpruneError: The file is missing, not JSON, or does not follow the schema.
    """
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError as error:
        raise HeadpruneError(f"no {what} at {path}", hint=hint) from error
    except (OSError, UnicodeDecodeError) as error:
        raise HeadpruneError(
            f"cannot read the {what} {path}: {first_line(error)}", hint=hint
        ) from error
    document = parse_json(text, where=str(path), hint=hint)
    validate(document, schema, where=str(path), hint=hint)
    return document


def parse_json(text: str, *, where: str, hint: str) -> Any:
    """Parse strict JSON: `NaN` and `Infinity`, which Python's parser lets through, are refused.

    Args:
        text: The document.
        where: What to call it in messages, usually its path.
        hint: What the user can do about it.

    Raises:
        HeadpruneError: The text is not JSON.
    """

    def refuse(constant: str) -> float:
        raise ValueError(f"the constant {constant} is not JSON")

    def finite(number: str) -> float:
        value = float(number)
        if not math.isfinite(value):
            raise ValueError(f"the number {number} is too large")
        return value

    try:
        return json.loads(text, parse_constant=refuse, parse_float=finite)
    except ValueError as error:
        raise HeadpruneError(f"{where} is not JSON: {error}", hint=hint) from error


def validate(document: Any, schema: str, *, where: str, hint: str) -> None:
    """Raise for the most telling violation of `schema`.

    Args:
        document: Parsed JSON.
        schema: Schema name without `.schema.json`, such as `manifest-v1`.
        where: What to call the document in messages, usually its path.
        hint: What the user can do about it.

    Raises:
        HeadpruneError: The document does not follow the schema.
    """
    error = best_match(validator(schema).iter_errors(document))
    if error is not None:
        place = error.json_path.removeprefix("$").removeprefix(".") or "the document"
        message = textwrap.shorten(error.message, LONGEST_MESSAGE, placeholder=" …")
        raise HeadpruneError(f"{where} does not follow {schema}: {place}: {message}", hint=hint)
