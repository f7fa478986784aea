"""Forwards of tiny models, their captures, and the oracle's scores for them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from headprune.analyzer.capture import Capture, capture_layer
from headprune.analyzer.interception import AttentionCall, intercepted
from headprune.analyzer.projection import ProjectionNorm
from headprune.analyzer.scores import find_scores
from tests.analyzer import oracle
from tests.analyzer.families import Family
from tests.conftest import VOCABULARY

SCORES = {score.id: score for score in find_scores(["all"])}
RELATIVE, ABSOLUTE = 1e-5, 5e-6


def sequences(*lengths: int) -> list[list[int]]:
    """Random token ids; the last sequence ends in token 0, as padding usually looks."""
    draw = np.random.default_rng(7)
    ids: list[list[int]] = [draw.integers(1, VOCABULARY, length).tolist() for length in lengths]
    ids[-1][-1] = 0
    return ids


def pad(batch: list[list[int]], side: str = "right", pad_id: int = 0) -> dict[str, torch.Tensor]:
    """The model's inputs for a padded batch."""
    longest = max(map(len, batch))
    ids = torch.full((len(batch), longest), pad_id)
    mask = torch.zeros_like(ids)
    for row, tokens in enumerate(batch):
        place = slice(longest - len(tokens), None) if side == "left" else slice(0, len(tokens))
        ids[row, place] = torch.tensor(tokens)
        mask[row, place] = 1
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    return {"input_ids": ids, "attention_mask": mask, "position_ids": positions}


def run(
    model: PreTrainedModel, batch: list[list[int]], side: str = "right", pad_id: int = 0
) -> list[Capture]:
    """The captures of all layers of one forward."""
    captures: list[Capture] = []
    projection = ProjectionNorm()
    numbers = tuple(range(len(batch)))

    def handler(call: AttentionCall) -> torch.Tensor:
        captures.append(capture_layer(call, weights=True, projection=projection, sequences=numbers))
        return captures[-1].output

    with torch.inference_mode(), intercepted(model, handler):
        model.base_model(**pad(batch, side, pad_id), use_cache=False)
    return captures


def output_projection(capture: Capture, family: Family) -> NDArray[np.float64]:
    """W_O, `[head * d, hidden]`, by its name; the bias is no part of it."""
    module = getattr(capture.call.module, family.projection)
    weight: NDArray[np.float64] = module.weight.detach().double().numpy()
    return weight if isinstance(module, Conv1D) else weight.T


def expected(
    capture: Capture, row: int, family: Family, window: int | None
) -> dict[str, NDArray[np.float64]]:
    """The oracle's scores for one sequence of a capture, padding cut off.

    Of the capture it takes queries, keys and values alone; all else is from the configuration.
    """
    real = capture.mask[row].nonzero().flatten()
    call = capture.call
    query, key, value = (
        tensor[row, :, real].double().numpy() for tensor in (call.query, call.key, call.value)
    )
    sinks = call.module.sinks.detach().double().numpy() if family.sinks else None
    weights = oracle.attention_weights(query, key, family.scale, window, family.softcap, sinks)
    return oracle.scores(oracle.quantities(weights, value, output_projection(capture, family)))


def computed(capture: Capture, row: int) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Every score but the control for one sequence of a capture, padding cut off."""
    for name, score in SCORES.items():
        if name == "random":
            continue
        got = score.function(capture)[row]
        if score.granularity == "token":
            got = got[capture.mask[row]]
        yield name, got.numpy()


def assert_close(got: NDArray[np.float32], wanted: NDArray[np.float64], what: str) -> None:
    """The project's bound: 1e-5 relative or 5e-6 absolute."""
    error = np.abs(got - wanted) / np.maximum(ABSOLUTE, RELATIVE * np.abs(wanted))
    assert error.max() <= 1, f"{what}: {error.max():.3g} times the bound"


def assert_scores(captures: list[Capture], family: Family) -> None:
    """Every score of every sequence and layer is the oracle's."""
    for capture, window in zip(captures, family.windows, strict=True):
        for row in range(capture.mask.shape[0]):
            wanted = expected(capture, row, family, window)
            for name, got in computed(capture, row):
                assert_close(got, wanted[name], f"{name}, layer {capture.layer}, row {row}")
