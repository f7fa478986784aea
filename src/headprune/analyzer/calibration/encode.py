"""A document's token ids: texts by the tokenizer's own BOS policy, chats by its chat template."""

from __future__ import annotations

import json
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING

from headprune.analyzer.bos import leading_bos
from headprune.analyzer.calibration.rows import Document
from headprune.errors import HeadpruneError, first_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Some templates write today's date. The same chats must give the same ids on any day.
CHAT_TIME = datetime(2024, 7, 26)
DIRECTIVES = ("%a", "%A", "%b", "%B", "%d", "%m", "%y", "%Y", "%H", "%I", "%M", "%S", "%p", "%j")


def encode(document: Document, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """All token ids of a document.

    Raises:
        HeadpruneError: It is a chat, and there is no chat template, or the template refuses it or
            puts two BOS tokens in front.
    """
    if document.chat:
        return _encode_chat(document, tokenizer)
    return list(tokenizer(document.content, verbose=False)["input_ids"])


@cache
def dated() -> str:
    """A line to put before a chat template: its clock stands at `CHAT_TIME`.

    transformers hands templates a function `strftime_now`; a macro of that name hides it.
    """
    replaced = "".join(
        f" | replace('{directive}', '{CHAT_TIME.strftime(directive)}')" for directive in DIRECTIVES
    )
    macro = f"{{% macro strftime_now(format) %}}{{{{ format{replaced} }}}}{{% endmacro %}}"
    # The newline after a block is not part of what a template renders.
    return f"{macro}\n"


def _encode_chat(document: Document, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    if not getattr(tokenizer, "chat_template", None):
        raise HeadpruneError(
            f'{document.where} has "messages", but the tokenizer has no chat template',
            hint='pass rows with "text", or a model whose tokenizer has a chat template',
        )
    try:
        encoding = tokenizer.apply_chat_template(
            json.loads(document.content),
            chat_template=dated() + tokenizer.get_chat_template(),
            tokenize=True,
            add_generation_prompt=False,
            return_dict=True,
            tokenizer_kwargs={"verbose": False},
        )
    except Exception as error:
        # A template is a program of the model's: it can raise anything.
        raise HeadpruneError(
            f"{document.where}: the chat template fails: {first_line(error)}",
            hint="mend the row's messages, such as the order of roles, or leave the row out",
        ) from error
    ids = list(encoding["input_ids"])  # type: ignore[index,call-overload]
    leading = leading_bos(ids, tokenizer.bos_token_id)
    if leading > 1:
        raise HeadpruneError(
            f"{document.where}: the chat template starts with {leading} BOS tokens, "
            "expected at most one",
            hint="remove one from the chat template, or from the start of the first message",
        )
    return ids
