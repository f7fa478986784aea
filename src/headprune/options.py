"""Types of command-line options."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]i?B)", re.IGNORECASE)
UNITS = {
    f"{letter}{binary}b": (1024 if binary else 1000) ** power
    for power, letter in enumerate("kmgt", start=1)
    for binary in ("", "i")
}


class Range(click.ParamType[tuple[int, int]]):
    """MIN:MAX, two whole numbers."""

    name = "MIN:MAX"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        """Read `10:3000` as (10, 3000)."""
        if isinstance(value, tuple):
            return value
        try:
            low, high = (int(part) for part in str(value).split(":"))
        except ValueError:
            self.fail(f"{value!r} is not MIN:MAX, such as 10:3000", param, ctx)
        if not 1 <= low <= high:
            self.fail(f"{value!r}: expected 1 or more, and MIN not over MAX", param, ctx)
        return low, high


class OutputFile(click.ParamType[Path]):
    """A path to write a file to."""

    name = "FILE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """A path with `~` expanded."""
        if not str(value).strip():
            self.fail("expected a file's path, got an empty one", param, ctx)
        return Path(value).expanduser()


class ShardOf(click.ParamType[tuple[int, int]]):
    """I/N, the I-th of N shards."""

    name = "I/N"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        """Read `2/3` as (1, 3): index from 0, count."""
        if isinstance(value, tuple):
            return value
        try:
            number, count = (int(part) for part in str(value).split("/"))
        except ValueError:
            self.fail(f"{value!r} is not I/N, such as 2/3", param, ctx)
        if count == 1 or not 1 <= number <= count:
            self.fail(f"{value!r}: expected 1/N to N/N, with N at least 2", param, ctx)
        return number - 1, count


class Size(click.ParamType[int]):
    """An amount of memory, such as 6GB."""

    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read `6GB` as bytes; GB are 10⁹, GiB are 2³⁰."""
        if isinstance(value, int):
            return value
        match = SIZE.fullmatch(str(value).strip())
        if match is None:
            self.fail(f"{value!r} is not a size such as 6GB or 512MiB", param, ctx)
        number, unit = match.groups()
        return int(float(number) * UNITS[unit.lower()])


class Names(click.ParamType[tuple[str, ...]]):
    """A comma-separated list of names."""

    name = "NAME,…"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """Read `a,b` as ("a", "b")."""
        if isinstance(value, tuple):
            return value
        names = tuple(part.strip() for part in str(value).split(",") if part.strip())
        if not names:
            self.fail("expected at least one name", param, ctx)
        return names
