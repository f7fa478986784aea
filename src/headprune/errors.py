"""The one error type that a user can cause, and the exit codes of every command."""

from __future__ import annotations

from enum import IntEnum

# Hints that several stages give.
ANALYZE_AGAIN = "make the manifest again: headprune analyze --model DIR -o manifest.json"
EXPORT = "headprune export --manifest manifest.json -o"
EXPORT_AGAIN = f"export the model again: {EXPORT} DIR"
REPORT_BUG = "this is a bug in headprune: please report it with the command and its output"
SERVED = "headprune serves models with softmax attention behind that interface"
UNGATED = "pass a graph of headprune export --gate none, or the model: --model DIR"
WRITABLE = "pass a path that you may write to, on a disk with room"


class ExitCode(IntEnum):
    """What each exit code of a headprune command means."""

    OK = 0
    FAIL = 1
    USAGE = 2
    INCONCLUSIVE = 3
    INVALID = 4
    INTERNAL = 5
    INTERRUPTED = 130


class HeadpruneError(Exception):
    """Something the user can mend: what was wrong, and the next command to type.

    Args:
        message: One line: what, what was got, what was expected.
        hint: The command or change that mends it.
        exit_code: The process's exit code; `USAGE` unless the result itself is not valid.
    """

    def __init__(self, message: str, *, hint: str, exit_code: ExitCode = ExitCode.USAGE) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.exit_code = exit_code


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, or its type if it has none."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
