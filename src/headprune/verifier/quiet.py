"""Keep the chatter of lm-evaluation-harness and its data set library off the terminal."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

CHATTERING = ("lm_eval", "datasets", "huggingface_hub", "transformers")


@contextmanager
def quiet() -> Iterator[None]:
    """Drop what is written to stdout and stderr, and log errors only, while the block runs."""
    loggers = [logging.getLogger(name) for name in CHATTERING]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with (
            Path(os.devnull).open("w") as nowhere,
            redirect_stdout(nowhere),
            redirect_stderr(nowhere),
        ):
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def aloud(tell: Callable[[str], None]) -> Callable[[str], None]:
    """`tell`, writing to where stdout and stderr lead now, even when called inside `quiet`."""
    out, err = sys.stdout, sys.stderr

    def told(message: str) -> None:
        with redirect_stdout(out), redirect_stderr(err):
            tell(message)

    return told
