"""What `--calibration SOURCE[=WEIGHT]` names, and how the sequences are shared out by weight."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from headprune.analyzer.calibration import hub
from headprune.analyzer.calibration.readers import file_kind
from headprune.errors import HeadpruneError
from headprune.manifests.model import SourceKind

BUILTIN = "builtin"
HINT = "pass --calibration FILE, builtin, or hub:ORG/NAME, each with =WEIGHT where they differ"


@dataclass(frozen=True, kw_only=True)
class Source:
    """One source of calibration text.

    Attributes:
        kind: How it is read.
        name: What the manifest calls it; never a path.
        address: Path of the file; for the hub ORG/NAME[:CONFIG[:SPLIT]].
        weight: Its share of the sequences, relative to the other sources' weights.
    """

    kind: SourceKind
    name: str
    address: str
    weight: float = 1.0


FINEWEB_EDU = Source(kind="hub", name=hub.FINEWEB_EDU, address=hub.FINEWEB_EDU)


def parse_source(given: str) -> Source:
    """Read SOURCE[=WEIGHT].

    Raises:
        HeadpruneError: The weight is not positive and finite, or the source has no name.
    """
    address, weight = _split_weight(given)
    if not address:
        raise HeadpruneError(f"the calibration source {given!r} names no text", hint=HINT)
    if address == BUILTIN:
        return Source(kind="builtin", name=BUILTIN, address=BUILTIN, weight=weight)
    if address.startswith(hub.PREFIX):
        address = address.removeprefix(hub.PREFIX)
        hub.check_address(address)
        return Source(kind="hub", name=address, address=address, weight=weight)
    path = _path(address)
    # A name that is not UTF-8 could not be written into the manifest.
    name = os.fsencode(path.name).decode("utf-8", "replace")
    return Source(kind=file_kind(path), name=name, address=str(path), weight=weight)


def share_out(sequences: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Whole numbers that add up to `sequences`, in proportion to `weights`.

    The method of the largest remainder; equal remainders go to the earlier source.
    """
    # Decimal as typed: as floats, the equal remainders of 0.1, 0.4 and 0.7 would not tie.
    exact = [Fraction(repr(float(weight))) for weight in weights]
    quotas = [sequences * weight / sum(exact) for weight in exact]
    shares = [math.floor(quota) for quota in quotas]
    by_remainder = sorted(range(len(shares)), key=lambda index: shares[index] - quotas[index])
    for index in by_remainder[: sequences - sum(shares)]:
        shares[index] += 1
    return tuple(shares)


def _split_weight(given: str) -> tuple[str, float]:
    """Source and weight: the number after the last `=`, unless a file has the whole name."""
    address, sign, number = given.rpartition("=")
    if not sign or _exists(given):
        return given, 1.0
    try:
        weight = float(number)
    except ValueError:
        return given, 1.0
    if not (math.isfinite(weight) and weight > 0):
        raise HeadpruneError(
            f"the weight of {address or given!r} is {number}, expected a positive number",
            hint=f"pass --calibration {address or 'FILE'}=1",
        )
    return address, weight


def _exists(name: str) -> bool:
    try:
        return _path(name).exists()
    except (OSError, HeadpruneError):
        return False


def _path(name: str) -> Path:
    try:
        return Path(name).expanduser()
    except RuntimeError as error:
        raise HeadpruneError(f"no calibration file at {name}: no such user", hint=HINT) from error
