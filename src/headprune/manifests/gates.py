"""Choose a gate from a manifest: a score, a threshold, and the heads that are always off."""

from __future__ import annotations

import difflib
import math
import re
from pathlib import Path

import numpy as np

from headprune.errors import HeadpruneError
from headprune.manifests.model import (
    DEFAULT_FRACTION,
    DEFAULT_SCORE,
    DecodeRule,
    Gate,
    GateMode,
    Manifest,
    ScoreSummary,
)
from headprune.manifests.raw import inactive_shares

DEFAULT_SHARE = 0.9
LARGEST_FLOAT32 = float(np.finfo(np.float32).max)
NEW_TOKENS_ONLY = ("lthon", "lthon_ln")
HEAD_RANGE = re.compile(r"^(\d+)(?:-(\d+))?(?:\.(\d+)(?:-(\d+))?)?$")

Heads = tuple[tuple[int, int], ...]


def choose_gate(
    manifest: Manifest,
    folder: Path,
    *,
    mode: GateMode = "dynamic",
    score: str = DEFAULT_SCORE,
    fraction: float | None = None,
    threshold: float | None = None,
    share: float | None = None,
    decode: DecodeRule | None = None,
    heads: Heads = (),
) -> Gate:
    """The gate that these options ask for.

    Args:
        manifest: The analyzer's manifest.
        folder: Its directory, where the raw scores lie.
        mode: `dynamic` or `static`.
        score: Score id.
        fraction: Share of cells to gate; 10 % if neither it nor `threshold` is given.
        threshold: Threshold itself.
        share: Static gates: a head is off if it is inactive in at least this share of the cells.
        decode: Decode rule of a dynamic sequence gate.
        heads: Heads always off. A static gate takes these in place of the ones by `share`.

    Raises:
        HeadpruneError: The options contradict each other or the manifest.
    """
    summary = find_score(manifest, score)
    if fraction is not None and threshold is not None:
        raise HeadpruneError(
            "got both a fraction and a threshold, expected one", hint="drop --fraction"
        )
    if threshold is None:
        fraction = DEFAULT_FRACTION if fraction is None else fraction
        threshold = threshold_for(summary, fraction)
    elif not abs(threshold) <= LARGEST_FLOAT32:  # NaN is not either
        raise HeadpruneError(
            f"the threshold is {threshold}, expected a finite number",
            hint="pass --threshold X, or --fraction P to take it from the manifest",
        )
    threshold = exact_float32(threshold)
    if mode == "static" and not heads:
        share = DEFAULT_SHARE if share is None else share
        heads = always_inactive(manifest, folder, score, threshold, share)
    check_heads(manifest, heads)
    return Gate(
        score=score,
        granularity=summary.granularity,
        inactive_when=summary.inactive_when,
        mode=mode,
        threshold=threshold,
        fraction=fraction,
        decode=decode_rule(summary, score, mode, decode),
        share=share if mode == "static" else None,
        heads=tuple(sorted(heads)),
    )


def find_score(manifest: Manifest, score: str) -> ScoreSummary:
    """The manifest's summary of a score."""
    if score not in manifest.scores:
        close = difflib.get_close_matches(score, manifest.scores, n=1)
        guess = f" Did you mean {close[0]}?" if close else ""
        raise HeadpruneError(
            f"the manifest holds no score {score!r}.{guess}",
            hint=f"it holds {', '.join(manifest.scores)}",
        )
    return manifest.scores[score]


def threshold_for(summary: ScoreSummary, fraction: float) -> float:
    """The threshold for a fraction: the manifest's own, or between two of its 101 quantiles."""
    if not 0 <= fraction <= 1:
        raise HeadpruneError(
            f"the fraction is {fraction}, expected a number from 0 to 1",
            hint="for ten percent pass --fraction 0.10",
        )
    for entry in summary.thresholds:
        if math.isclose(entry.fraction, fraction, abs_tol=1e-9):
            return entry.threshold
    percent = 100 * (1 - fraction if summary.inactive_when == "above" else fraction)
    low = min(int(percent), 99)
    below, above = summary.quantiles[low], summary.quantiles[low + 1]
    return exact_float32(below + (above - below) * (percent - low))


def exact_float32(value: float) -> float:
    """`value` rounded to float32, which is what every gate compares in.

    A threshold is kept as this very number, not as its shortest decimal: a score equal to its
    threshold must not end up beyond it when someone compares in float64.
    """
    return float(np.float32(value))


def always_inactive(
    manifest: Manifest, folder: Path, score: str, threshold: float, share: float
) -> Heads:
    """The heads that are inactive in at least `share` of the calibration cells."""
    if not 0 < share <= 1:
        raise HeadpruneError(
            f"the share is {share}, expected a number above 0 and at most 1",
            hint="for heads inactive in nine of ten sequences pass --share 0.9",
        )
    shares = inactive_shares(manifest, folder, score, threshold)
    return tuple(
        (layer, head)
        for layer, row in enumerate(shares)
        for head, inactive in enumerate(row)
        if inactive >= share
    )


def decode_rule(
    summary: ScoreSummary, score: str, mode: GateMode, decode: DecodeRule | None
) -> DecodeRule | None:
    """The decode rule: `running` for averages, `new` for the last token's scores."""
    if mode == "static" or summary.granularity == "token":
        if decode is not None:
            raise HeadpruneError(
                f"a decode rule ({decode}) needs a dynamic gate of sequence granularity; "
                f"{score} with a {mode} gate has none",
                hint="drop --decode",
            )
        return None
    return decode or ("new" if score in NEW_TOKENS_ONLY else "running")


def check_heads(manifest: Manifest, heads: Heads) -> None:
    """Raise if a head does not exist in the model."""
    layers = manifest.model.layers
    for layer, head in heads:
        if layer >= len(layers) or head >= layers[layer].query_heads:
            raise HeadpruneError(
                f"there is no head {layer}.{head} in {manifest.model.name}",
                hint=f"layers are 0 to {len(layers) - 1}, heads 0 to {layers[0].query_heads - 1}",
            )


def parse_heads(text: str, manifest: Manifest) -> Heads:
    """Read a list of heads such as `3,5.0,7-9.2-4`: layers, or layer.head, with ranges.

    Raises:
        HeadpruneError: The text is no such list, or names a head that does not exist.
    """
    found: set[tuple[int, int]] = set()
    for part in text.split(","):
        match = HEAD_RANGE.match(part.strip())
        if match is None:
            raise HeadpruneError(
                f"cannot read the heads {part.strip()!r}",
                hint="expected LAYER or LAYER.HEAD with ranges, such as 3,5.0,7-9.2-4",
            )
        first, last, head, last_head = match.groups()
        for layer in range(int(first), int(last or first) + 1):
            if head is None:
                found.update((layer, index) for index in range(head_count(manifest, layer)))
            else:
                heads = range(int(head), int(last_head or head) + 1)
                found.update((layer, index) for index in heads)
    check_heads(manifest, tuple(sorted(found)))
    return tuple(sorted(found))


def head_count(manifest: Manifest, layer: int) -> int:
    """Query heads of a layer; 1 for a layer that does not exist, so that the check names it."""
    layers = manifest.model.layers
    return layers[layer].query_heads if layer < len(layers) else 1
