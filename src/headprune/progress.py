"""Progress on stderr: one line that is rewritten on a terminal, a few lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TextIO

TERMINAL_SECONDS = 0.1
LOG_SECONDS = 30.0


def silent(_: str) -> None:
    """Show nothing: the default of stages that are called from Python."""


class Progress:
    """Call it with a line that says how far the work is.

    A line that starts with another word than the one before begins a new stage and is always shown.
    Within a stage a terminal shows the newest line, a log file one every half minute.

    Args:
        stream: Where to write; stderr by default.
        quiet: Show nothing.
    """

    def __init__(self, stream: TextIO | None = None, *, quiet: bool = False) -> None:
        self.quiet = quiet
        self.stream = sys.stderr if stream is None else stream
        self.terminal = self.stream.isatty()
        self._stage = ""
        self._shown = 0.0
        self._held = ""

    def __call__(self, line: str) -> None:
        """Show `line`, or leave it out if one of its stage was shown a moment ago."""
        if self.quiet:
            return
        stage = line.split(" ", 1)[0]
        now = time.monotonic()
        interval = TERMINAL_SECONDS if self.terminal else LOG_SECONDS
        self._held = ""
        if stage == self._stage and now - self._shown < interval:
            self._held = line
            return
        if self.terminal:
            start = "\r\x1b[K" if stage == self._stage else ("\n" if self._stage else "")
            self.stream.write(f"{start}{line}")
        else:
            self.stream.write(f"{line}\n")
        self.stream.flush()
        self._stage, self._shown = stage, now

    def close(self) -> None:
        """End the line that a terminal still holds open."""
        if self._held:
            self._shown = 0.0
            self(self._held)
        if self.terminal and self._stage:
            self.stream.write("\n")
            self.stream.flush()
        self._stage = ""
