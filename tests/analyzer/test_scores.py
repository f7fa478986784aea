"""Every score against the float64 oracle, on models that differ in what they ask of attention."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from headprune.analyzer.attention import attend_blocked, attend_fused
from headprune.analyzer.capture import Capture, capture_layer
from headprune.analyzer.interception import AttentionCall, intercepted
from headprune.analyzer.projection import ProjectionNorm, projection_weight
from headprune.analyzer.scores import find_scores
from tests.analyzer import oracle
from tests.conftest import FAMILIES, VOCABULARY, build_model

SCORES = {score.id: score for score in find_scores(["all"])}
LENGTHS = (1, 2, 37, 64)


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    return build_model(request.param)


def sequences(lengths: tuple[int, ...]) -> list[list[int]]:
    draw = np.random.default_rng(7)
    ids = [draw.integers(1, VOCABULARY, length).tolist() for length in lengths]
    ids[-1][-1] = 0  # a real token may have the id that padding usually has
    return ids


def run(
    model: PreTrainedModel, batch: list[list[int]], *, side: str = "right", pad_id: int = 0
) -> list[Capture]:
    """The captures of all layers of one forward."""
    longest = max(map(len, batch))
    ids = torch.full((len(batch), longest), pad_id)
    mask = torch.zeros_like(ids)
    for row, tokens in enumerate(batch):
        place = slice(longest - len(tokens), None) if side == "left" else slice(0, len(tokens))
        ids[row, place] = torch.tensor(tokens)
        mask[row, place] = 1
    captures: list[Capture] = []
    projection = ProjectionNorm()

    def handler(call: AttentionCall) -> torch.Tensor:
        numbers = tuple(range(len(batch)))
        captures.append(capture_layer(call, weights=True, projection=projection, sequences=numbers))
        return captures[-1].output

    positions = (mask.cumsum(1) - 1).clamp(min=0)
    with torch.inference_mode(), intercepted(model, handler):
        model.base_model(
            input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False
        )
    return captures


def expected(capture: Capture, row: int) -> dict[str, np.ndarray]:
    """The oracle's scores for one sequence of a capture, padding cut off."""
    real = capture.mask[row].nonzero().flatten()
    call = capture.call
    query, key, value = (
        tensor[row, :, real].double().numpy() for tensor in (call.query, call.key, call.value)
    )
    rows = call.query.shape[1] * call.query.shape[3]
    weight = projection_weight(call.module, rows).double().numpy()
    return oracle.scores(oracle.quantities(query, key, value, weight, call.scale, call.window))


def assert_scores(captures: list[Capture]) -> None:
    for capture in captures:
        for row in range(capture.mask.shape[0]):
            wanted = expected(capture, row)
            for name, value in wanted.items():
                got = SCORES[name].function(capture)[row]
                if SCORES[name].granularity == "token":
                    got = got[capture.mask[row]]
                np.testing.assert_allclose(
                    got.numpy(), value, rtol=1e-5, atol=5e-6, err_msg=f"{name} {capture.layer}"
                )


def test_the_oracle_covers_every_score_but_the_control(model: PreTrainedModel) -> None:
    (capture, *_) = run(model, sequences((5,)))
    assert expected(capture, 0).keys() == SCORES.keys() - {"random"}


@pytest.mark.parametrize("length", [1, 2, 37, 513])
def test_batch_of_one(model: PreTrainedModel, length: int) -> None:
    assert_scores(run(model, sequences((length,))))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("pad_id", [0, 5])
def test_padded_batches(model: PreTrainedModel, side: str, pad_id: int) -> None:
    assert_scores(run(model, sequences(LENGTHS), side=side, pad_id=pad_id))


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_no_score(model: PreTrainedModel, side: str) -> None:
    batch = sequences(LENGTHS)
    together = run(model, batch, side=side, pad_id=9)
    for row, tokens in enumerate(batch):
        alone = run(model, [tokens])
        for padded, single in zip(together, alone, strict=True):
            for score in SCORES.values():
                if score.id == "random":
                    continue
                got = score.function(padded)[row]
                if score.granularity == "token":
                    got = got[padded.mask[row]]
                wanted = score.function(single)[0]
                # Layer-normalised entropies divide rounding errors by a mean that may be tiny.
                absolute = 2e-4 if score.id in {"aeqd_ln", "teqd_ln"} else 5e-6
                torch.testing.assert_close(got, wanted, rtol=2e-5, atol=absolute, msg=score.id)


def test_attention_is_the_models_own(model: PreTrainedModel) -> None:
    """Intercepted or not, the model says the same."""
    ids = torch.tensor(sequences((40,)))
    with torch.inference_mode():
        plain = model(input_ids=ids).logits
        for weights in (False, True):

            def handler(call: AttentionCall, weights: bool = weights) -> torch.Tensor:
                return capture_layer(
                    call, weights=weights, projection=ProjectionNorm(), sequences=(0,)
                ).output

            with intercepted(model, handler):
                got = model(input_ids=ids).logits
            torch.testing.assert_close(got, plain, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(model(input_ids=ids).logits, plain, rtol=0, atol=0)


def sink_heavy_call() -> AttentionCall:
    """Queries that look at the first token with weights from 1 - 1e-9 to 1/n."""
    torch.manual_seed(3)
    query, key, value = (torch.randn(1, 4, 200, 16) for _ in range(3))
    key[:, :, 0] = query.mean(dim=2) * torch.tensor([0.0, 5.0, 50.0, 500.0])[None, :, None]
    query = query + query.mean(dim=2, keepdim=True) * 10
    return AttentionCall(
        module=nn.Identity(), layer=0, query=query, key=key, value=value, mask=None,
        scale=0.25, window=None, softcap=None, sinks=None,
    )  # fmt: skip


def fused(call: AttentionCall) -> tuple[torch.Tensor, torch.Tensor]:
    return attend_fused(call.query, call.key, call.value, call.scale)[1]


def blocked(call: AttentionCall) -> tuple[torch.Tensor, torch.Tensor]:
    return attend_blocked(call, call.query, call.key, call.value)[1]


@pytest.mark.parametrize("path", [fused, blocked])
def test_statistics_of_heads_that_look_at_the_first_token_alone(
    path: Callable[[AttentionCall], tuple[torch.Tensor, torch.Tensor]],
) -> None:
    call = sink_heavy_call()
    first, entropy = path(call)
    query, key = (t[0].double().numpy() for t in (call.query, call.key))
    weights = oracle.attention_weights(query, key, call.scale)
    assert weights[:, 100:, 0].max() > 1 - 1e-6
    logs = np.log(weights, where=weights > 0, out=np.zeros_like(weights))
    np.testing.assert_allclose(first[0], weights[:, :, 0], rtol=1e-5, atol=5e-6)
    np.testing.assert_allclose(entropy[0], -(weights * logs).sum(-1), rtol=1e-5, atol=5e-6)
