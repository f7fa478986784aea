"""A document: a text or a chat, and how a row of a file or of a hub dataset becomes one."""

from __future__ import annotations

import json
from dataclasses import dataclass

from headprune.errors import HeadpruneError

FIELDS = ("text", "messages")


@dataclass(frozen=True, kw_only=True)
class Document:
    """One document to draw from.

    Attributes:
        content: The text; of a chat, its messages as JSON.
        where: File and line, for messages.
        chat: Whether `content` goes through the tokenizer's chat template.
    """

    content: str
    where: str
    chat: bool = False


def parse_row(row: object, *, where: str, hint: str) -> Document:
    """The document of a row, which has a string `text` or a list `messages`.

    Args:
        row: What was read.
        where: File and line, for messages.
        hint: What is expected of such a file.

    Raises:
        HeadpruneError: The row has neither field, both, or one of another type.
    """
    fields = row if isinstance(row, dict) else {}
    text, messages = (fields.get(name) for name in FIELDS)
    if text is not None and messages is not None:
        raise HeadpruneError(
            f'{where} has both "text" and "messages", expected one of them',
            hint='keep "messages" to profile on chats, through the chat template, or "text" to '
            "profile on plain text; remove the other",
        )
    if messages is not None:
        return Document(content=_chat(messages, where=where, hint=hint), where=where, chat=True)
    if isinstance(text, str):
        _check_characters(text, where=where, hint=hint)
        return Document(content=text, where=where)
    nulls = [name for name in FIELDS if name in fields and fields[name] is None]
    if nulls:
        raise HeadpruneError(f'{where}: "{nulls[0]}" is null', hint=hint)
    raise HeadpruneError(f'{where} has no string field "text", and no list "messages"', hint=hint)


def _chat(messages: object, *, where: str, hint: str) -> str:
    """The messages as JSON: equal chats are equal strings, whichever file they are from."""
    if not isinstance(messages, list) or not messages:
        raise HeadpruneError(f'{where}: "messages" is not a list of messages', hint=hint)
    chat = []
    for number, message in enumerate(messages, start=1):
        fields = message if isinstance(message, dict) else {}
        for name in ("role", "content"):
            if not isinstance(fields.get(name), str):
                raise HeadpruneError(f'{where}: message {number} has no string "{name}"', hint=hint)
        # A Parquet column has every field in every message, null where a JSONL file has none.
        others = {k: v for k, v in fields.items() if v is not None and k not in {"role", "content"}}
        chat.append({"role": fields["role"], "content": fields["content"], **others})
    try:
        content = json.dumps(chat, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise HeadpruneError(
            f'{where}: "messages" holds a value that JSON cannot hold', hint=hint
        ) from error
    _check_characters(content, where=where, hint=hint)
    return content


def _check_characters(text: str, *, where: str, hint: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise HeadpruneError(f"{where} has half a surrogate", hint=hint) from error
