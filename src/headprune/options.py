"""Types of command-line options."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from headprune.manifests.model import Shard

FILE = click.Path(path_type=Path)
SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]i?B)", re.IGNORECASE)
UNITS = {
    f"{letter}{binary}b": (1024 if binary else 1000) ** power
    for power, letter in enumerate("kmgt", start=1)
    for binary in ("", "i")
}


class TwoNumbers(click.ParamType[Any]):
    """Two whole numbers with a sign between them; what they mean is the subclass's to say."""

    separator: str
    example: str

    def read(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        """Both numbers."""
        try:
            one, other = (int(part) for part in str(value).split(self.separator))
        except ValueError:
            self.fail(f"{value!r} is not {self.name}, such as {self.example}", param, ctx)
        return one, other


class Range(TwoNumbers):
    """MIN:MAX, two whole numbers."""

    name = "MIN:MAX"
    separator = ":"
    example = "10:3000"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        """Read `10:3000` as (10, 3000)."""
        if isinstance(value, tuple):
            return value
        low, high = self.read(value, param, ctx)
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


class ShardOf(TwoNumbers):
    """I/N, the I-th of N shards."""

    name = "I/N"
    separator = "/"
    example = "2/3"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Shard:
        """Read `2/3` as the shard of index 1."""
        if isinstance(value, Shard):
            return value
        number, count = self.read(value, param, ctx)
        if count == 1 or not 1 <= number <= count:
            self.fail(f"{value!r}: expected 1/N to N/N, with N at least 2", param, ctx)
        return Shard(index=number - 1, count=count)


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
