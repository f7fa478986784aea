"""Say in a few lines of text what a manifest holds."""

from __future__ import annotations

from headprune.manifests.model import (
    DEFAULT_SCORE,
    CalibrationInfo,
    Gate,
    Manifest,
    ModelInfo,
    describe_layers,
)


def describe(manifest: Manifest) -> str:
    """Model, calibration, the thresholds of every score, and the gate."""
    model = manifest.model
    heads = sorted({layer.query_heads for layer in model.layers})
    kv_heads = sorted({layer.kv_heads for layer in model.layers})
    lines = [
        (
            f"model        {model.name} ({model.model_type}, {model.dtype}): "
            f"{len(model.layers)} layers, {_join(heads)} heads, {_join(kv_heads)} KV heads"
        ),
        *describe_calibration(manifest.calibration, bos=manifest.tokenizer.bos),
        *shard_line(manifest),
        "",
        *threshold_table(manifest),
    ]
    if model.left_out_layers:
        lines.insert(1, f"left out     {describe_left_out(model)}")
    if manifest.gate is not None:
        lines += ["", describe_gate(manifest.gate, model.head_count)]
    return "\n".join(lines)


def shard_line(manifest: Manifest) -> list[str]:
    """Which share of the calibration set the manifest covers, if not all of it."""
    if manifest.shard is None:
        return []
    return [f"part         shard {manifest.shard.index + 1} of {manifest.shard.count}"]


def describe_calibration(calibration: CalibrationInfo, *, bos: str) -> list[str]:
    """What was profiled, a line per source, and what was left out."""
    shortest, longest = calibration.length_range
    weighted = len(calibration.sources) > 1
    sources = [
        f"{source.name}: {source.sequences} of {source.documents} documents"
        + (f", weight {source.weight:g}" if weighted else "")
        for source in calibration.sources
    ]
    taken = (
        f"{calibration.sequences} sequences, {calibration.tokens:,} tokens, "
        f"lengths {shortest} to {longest}, seed {calibration.seed}, BOS {bos}"
    )
    left = (
        f"{calibration.cut} cut to the length drawn; documents left out: "
        f"{calibration.skipped} too short, {calibration.duplicates} duplicates"
    )
    return [f"calibration  {taken}", *(f"             {line}" for line in (*sources, left))]


def describe_left_out(model: ModelInfo) -> str:
    """Which layers of a hybrid model have no scores, by the model's own indices."""
    return f"layers {describe_layers(model.left_out_layers)}: no softmax attention"


def threshold_table(manifest: Manifest) -> list[str]:
    """One line per score: the thresholds at its fractions; the default score comes first."""
    order = sorted(manifest.scores, key=lambda name: name != DEFAULT_SCORE)
    first = manifest.scores[order[0]].thresholds
    rows = ["score      inactive  " + "".join(f"{t.fraction:>10.0%}" for t in first)]
    for name in order:
        score = manifest.scores[name]
        cells = "".join(f"{t.threshold:>10.4g}" for t in score.thresholds)
        rows.append(f"{name:<11}{score.inactive_when:<10}{cells}")
    return rows


def describe_gate(gate: Gate | None, heads: int) -> str:
    """One line that says what a gate does."""
    if gate is None:
        return "gate         none"
    if gate.mode == "static":
        return f"gate         static: {len(gate.heads)} of {heads} heads always off ({gate.score})"
    side = "over" if gate.inactive_when == "above" else "under"
    share = "" if gate.fraction is None else f", {gate.fraction:.0%} of calibration cells"
    off = f"; {len(gate.heads)} of {heads} heads always off" if gate.heads else ""
    return f"gate         dynamic: {gate.score} {side} {gate.threshold:.6g}{share}{off}"


def _join(numbers: list[int]) -> str:
    return "/".join(str(number) for number in numbers)
