"""Measure what the export itself costs: ONNX Runtime against PyTorch, before any gate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from headprune.errors import ExitCode, HeadpruneError, first_line
from headprune.exporters import names
from headprune.manifests.model import LayerHeads

LARGEST_RELATIVE_ERROR = 1e-3
TOKENS, CHUNK = 24, 9
# Rows of the trial batch: padding before and after the real tokens.
PADDING = ((0, 0), (5, 0), (0, 7))


def check_export(graph: Path, model: PreTrainedModel, layers: Sequence[LayerHeads]) -> float:
    """Largest absolute logit difference at the real tokens of a padded batch, whole and in chunks.

    Args:
        graph: The ungated ONNX file.
        model: What it was exported from.
        layers: Attention geometry, for an empty cache.

    Raises:
        HeadpruneError: They differ by more than `LARGEST_RELATIVE_ERROR` of the largest logit.
    """
    ids, mask = trial_batch(model.config.get_text_config().vocab_size)
    expected = torch_logits(model, ids, mask)
    session = open_session(graph)
    real = mask.astype(bool)
    scale = float(np.abs(expected[real]).max())
    error = 0.0
    for cuts in ((TOKENS,), (CHUNK, TOKENS)):
        actual = onnx_logits(session, ids, mask, cuts, layers)
        difference = float(np.abs(actual[real] - expected[real]).max())
        error = max(error, difference)
        if not difference <= LARGEST_RELATIVE_ERROR * scale:  # NaN is a difference too.
            raise HeadpruneError(
                f"the exported graph differs from PyTorch by {difference:.3g} in its logits, whose "
                f"largest is {scale:.3g}; expected at most {LARGEST_RELATIVE_ERROR:g} of that",
                hint="export the model with another tool and pass --from-onnx model.onnx",
                exit_code=ExitCode.INVALID,
            )
    return error


def trial_batch(vocabulary: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Token ids spread over the vocabulary, and their mask: `[row, token]` both."""
    shape = (len(PADDING), TOKENS)
    ids = (np.arange(np.prod(shape), dtype=np.int64).reshape(shape) * 7919 + 11) % vocabulary
    mask = np.ones(shape, np.int64)
    for row, (before, after) in zip(mask, PADDING, strict=True):
        row[:before] = 0
        row[TOKENS - after :] = 0
    return ids, mask


def torch_logits(
    model: PreTrainedModel, ids: NDArray[np.int64], mask: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Logits of the batch in one piece and without a cache, `[row, token, vocabulary]`."""
    with torch.inference_mode():
        output = model(
            input_ids=torch.from_numpy(ids),
            attention_mask=torch.from_numpy(mask),
            position_ids=torch.from_numpy(positions(mask)),
            use_cache=False,
        )
    logits: NDArray[np.float32] = output.logits.float().numpy()
    return logits


def onnx_logits(
    session: ort.InferenceSession,
    ids: NDArray[np.int64],
    mask: NDArray[np.int64],
    cuts: Sequence[int],
    layers: Sequence[LayerHeads],
) -> NDArray[np.float32]:
    """Logits of the batch run in chunks that end at `cuts`, `[row, token, vocabulary]`."""
    cache = [
        np.zeros((len(ids), layer.kv_heads, 0, layer.head_dim), np.float32)
        for layer in layers
        for _ in ("key", "value")
    ]
    where = positions(mask)
    chunks = []
    start = 0
    for end in cuts:
        feeds = {
            names.INPUT_IDS: ids[:, start:end],
            names.ATTENTION_MASK: mask[:, :end],
            names.POSITION_IDS: where[:, start:end],
            **dict(zip(names.past_names(len(layers)), cache, strict=True)),
        }
        logits, *cache = session.run(names.model_outputs(len(layers)), feeds)
        chunks.append(logits)
        start = end
    return np.concatenate(chunks, axis=1)


def positions(mask: NDArray[np.int64]) -> NDArray[np.int64]:
    """Position of each token among the real ones of its row; 0 before the first."""
    where: NDArray[np.int64] = np.maximum(mask.cumsum(axis=1) - 1, 0)
    return where


def open_session(graph: Path) -> ort.InferenceSession:
    """An ONNX Runtime session on the CPU that writes no warnings to the terminal."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    try:
        return ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        # ONNX Runtime's exceptions share no base class of their own.
        raise HeadpruneError(
            f"ONNX Runtime cannot load the exported graph: {first_line(error)}",
            exit_code=ExitCode.INVALID,
            hint="install the versions of torch, onnx and onnxruntime in constraints.txt",
        ) from error
