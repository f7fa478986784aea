"""All scores in float64 NumPy, straight from the definitions, with the S × S matrix."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def attention_weights(
    query: Array,
    key: Array,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Array | None = None,
) -> Array:
    """A, `[head, position, position]`, from q `[head, position, d]` and k `[kv_head, …]`.

    With sinks, a learned score per head, A holds the weights on real tokens alone.
    """
    heads, length, _ = query.shape
    keys = key.repeat(heads // key.shape[0], axis=0)
    scores = scale * query @ keys.transpose(0, 2, 1)
    if softcap is not None:
        scores = softcap * np.tanh(scores / softcap)
    i, j = np.mgrid[:length, :length]
    seen = (j <= i) if window is None else (j <= i) & (i - j < window)
    scores = np.where(seen, scores, -np.inf)
    highest = scores.max(-1, keepdims=True)
    rest = np.zeros((heads, 1, 1))
    if sinks is not None:
        highest = np.maximum(highest, sinks[:, None, None])
        rest = np.exp(sinks[:, None, None] - highest)
    exponentials = np.exp(scores - highest)
    return exponentials / (exponentials.sum(-1, keepdims=True) + rest)


def quantities(weights: Array, value: Array, projection: Array) -> dict[str, Array]:
    """The per-token quantities, `[position, head]`; `projection` is `[head * d, hidden]`."""
    heads = weights.shape[0]
    values = value.repeat(heads // value.shape[0], axis=0)
    outputs = weights @ values
    slices = projection.reshape(heads, value.shape[-1], -1)
    logs = np.log(weights, where=weights > 0, out=np.zeros_like(weights))
    return {
        "first_weight": weights[:, :, 0].T,
        "entropy": -(weights * logs).sum(-1).T,
        "value_norm": np.sqrt((values**2).sum(-1)).T,
        "output_norm": np.sqrt((outputs**2).sum(-1)).T,
        "projected_norm": np.sqrt(((outputs @ slices) ** 2).sum(-1)).T,
    }


def over_mean(scores: Array) -> Array:
    """Layer normalisation; 0 / 0 is 0."""
    mean = scores.mean(-1, keepdims=True)
    return np.divide(scores, mean, where=mean > 0, out=np.zeros_like(scores))


def scores(per_token: dict[str, Array]) -> dict[str, Array]:
    """Every score but the control: `[head]`, or `[position, head]` for token scores."""
    first, entropy = per_token["first_weight"], per_token["entropy"]
    value, output = per_token["value_norm"], per_token["output_norm"]
    projected = per_token["projected_norm"]
    raw = {
        "awft": first.mean(0), "twft": first, "aeqd": entropy.mean(0), "teqd": entropy,
        "avvn": value.mean(0), "ftvvn": value[0], "tvvn": value,
        "ahon": output.mean(0), "lthon": output[-1], "thon": output,
        "fhon": projected.mean(0), "tfhon": projected,
    }  # fmt: skip
    normalised = {f"{name}_ln": over_mean(value) for name, value in raw.items()}
    return {**raw, **normalised, "lthon_hn": output[-1] / output.mean(0)}
