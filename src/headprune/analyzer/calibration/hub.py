"""Calibration text from the hub, streamed: only the rows that are asked for are fetched."""

from __future__ import annotations

import re
from pathlib import Path

from headprune.analyzer.calibration.rows import Document, parse_row
from headprune.errors import HeadpruneError, first_line

PREFIX = "hub:"
ADDRESS = re.compile(
    r"(?P<id>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(:(?P<config>[\w.-]*))?(:(?P<split>[\w.-]+))?"
)
FINEWEB_EDU = "HuggingFaceFW/fineweb-edu:sample-10BT"
HINT = "pass --calibration FILE, or --calibration builtin for the demo's text"


def check_address(address: str) -> None:
    """Refuse what is not ORG/NAME[:CONFIG[:SPLIT]].

    Raises:
        HeadpruneError: It is not.
    """
    if not ADDRESS.fullmatch(address):
        raise HeadpruneError(
            f"the calibration source {PREFIX}{address} is not hub:ORG/NAME[:CONFIG[:SPLIT]]",
            hint="such as --calibration hub:HuggingFaceFW/fineweb-edu:sample-10BT",
        )


def stream_documents(address: str, count: int) -> list[Document]:
    """The first `count` documents of a dataset.

    Args:
        address: ORG/NAME[:CONFIG[:SPLIT]]; the split is `train` unless given.
        count: How many rows to fetch.

    Raises:
        HeadpruneError: The hub cannot be reached, has no such dataset, or `datasets` is missing.
    """
    match = ADDRESS.fullmatch(address)
    if match is None:
        raise ValueError(address)
    if Path(match["id"]).exists():
        # datasets would read that folder, and the manifest would name the hub.
        raise HeadpruneError(
            f"{PREFIX}{address} is on the hub, but there is also a folder {match['id']} here",
            hint=f"pass its files: --calibration {match['id']}/FILE, or run in another folder",
        )
    try:
        from datasets import load_dataset  # noqa: PLC0415  only this source needs it
    except ImportError as error:
        raise HeadpruneError(
            f"the calibration text {address} needs the package datasets", hint=HINT
        ) from error
    try:
        stream = load_dataset(
            match["id"],
            name=match["config"] or None,
            split=match["split"] or "train",
            streaming=True,
        )
        rows = list(stream.take(count))
    except Exception as error:
        # datasets, huggingface_hub and their HTTP client raise a dozen types here.
        raise HeadpruneError(
            f"cannot read the calibration text {address} from the hub: {first_line(error)}",
            hint=HINT,
        ) from error
    return [
        parse_row(row, where=f"{address}, row {number}", hint=HINT)
        for number, row in enumerate(rows, start=1)
    ]
