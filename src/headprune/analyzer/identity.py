"""What identifies a configuration and a tokenizer: hashes of what they say and do."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

from headprune.analyzer.bos import leading_bos
from headprune.analyzer.sources import CHECK_FILES
from headprune.errors import HeadpruneError, first_line
from headprune.manifests.model import TokenizerInfo

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Where a model was last saved from, and by what, changes nothing in what it computes.
NO_MATTER = ("_name_or_path", "transformers_version")


def hash_config(directory: Path) -> str:
    """SHA-256 over a model's config.json, whatever the order of its keys.

    The file, not what transformers makes of it: its versions fill in different defaults.

    Raises:
        HeadpruneError: The file cannot be read.
    """
    path = directory / "config.json"
    try:
        settings = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise HeadpruneError(
            f"cannot read {path}: {first_line(error)}", hint=CHECK_FILES
        ) from error
    content = {name: value for name, value in settings.items() if name not in NO_MATTER}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def describe_tokenizer(tokenizer: PreTrainedTokenizerBase, source: str) -> TokenizerInfo:
    """Hash a tokenizer by what it does, and find out whether it puts a BOS token in front.

    Raises:
        HeadpruneError: It adds two BOS tokens, which changes every score.
    """
    probe = "The cat sat on the mat."
    ids = tokenizer(probe)["input_ids"]
    leading = leading_bos(ids, tokenizer.bos_token_id)
    if leading > 1:
        raise HeadpruneError(
            f"the tokenizer of {source} adds {leading} BOS tokens, expected at most one",
            hint="remove one from the post-processor in tokenizer.json or unset add_bos_token",
        )
    backend = getattr(tokenizer, "backend_tokenizer", None)
    settings = json.loads(backend.to_str()) if backend is not None else {}
    # Encoding with padding or truncation leaves these behind in the backend.
    behaviour = {k: v for k, v in settings.items() if k not in ("padding", "truncation")}
    content = {
        "backend": behaviour,
        "vocabulary": sorted(tokenizer.get_vocab().items()),
        "special": {name: str(value) for name, value in tokenizer.special_tokens_map.items()},
    }
    text = json.dumps(content, sort_keys=True)
    return TokenizerInfo(
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        bos="added" if leading else "none",
    )
