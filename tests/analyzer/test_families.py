"""Every family against the float64 oracle, and against itself without headprune."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from headprune.analyzer.capture import capture_layer
from headprune.analyzer.geometry import probe_layers
from headprune.analyzer.interception import AttentionCall, intercepted
from headprune.analyzer.projection import ProjectionNorm, projection_weight
from headprune.manifests.model import LayerHeads
from tests.analyzer.families import FAMILIES, WINDOW, Family, build_model
from tests.analyzer.forwards import (
    SCORES,
    assert_close,
    assert_scores,
    computed,
    expected,
    output_projection,
    pad,
    run,
    sequences,
)

LONG = 513
EIGHT = (37, 1, WINDOW, 130, 2, WINDOW + 1, 64, 5)


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def family(name: str) -> Family:
    return FAMILIES[name]


@pytest.fixture(scope="module")
def model(name: str) -> PreTrainedModel:
    return build_model(name)


def test_the_geometry_is_the_configurations(model: PreTrainedModel, family: Family) -> None:
    query_heads, kv_heads, head_dim = family.heads
    heads = LayerHeads(query_heads=query_heads, kv_heads=kv_heads, head_dim=head_dim)
    geometry = probe_layers(model, "it")
    assert geometry.layers == (heads,) * len(family.windows)
    assert geometry.left_out == family.left_out


def test_each_layer_asks_for_what_the_configuration_says(
    model: PreTrainedModel, family: Family
) -> None:
    captures = run(model, sequences(3))
    calls = [capture.call for capture in captures]
    layers = [i for i in range(model.config.num_hidden_layers) if i not in family.left_out]
    assert [call.layer for call in calls] == layers
    assert [call.window for call in calls] == list(family.windows)
    assert [call.scale for call in calls] == pytest.approx([family.scale] * len(calls), rel=1e-12)
    assert {call.softcap for call in calls} == {family.softcap}
    assert {call.sinks is not None for call in calls} == {family.sinks}
    assert expected(captures[0], 0, family, None).keys() == SCORES.keys() - {"random"}
    for capture in captures:
        found = projection_weight(capture.call.module, family.heads[0] * family.heads[2])
        assert (found.double().numpy() == output_projection(capture, family)).all()


@pytest.mark.parametrize("length", [1, 2, LONG])
def test_a_batch_of_one(model: PreTrainedModel, family: Family, length: int) -> None:
    assert_scores(run(model, sequences(length)), family)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("lengths", [(1, LONG, 2), EIGHT], ids=["three", "eight"])
def test_padded_batches(
    model: PreTrainedModel, family: Family, lengths: tuple[int, ...], side: str
) -> None:
    assert_scores(run(model, sequences(*lengths), side), family)


def test_batch_size_side_and_pad_id_change_no_score(model: PreTrainedModel, family: Family) -> None:
    batch = sequences(*EIGHT)
    alone = [run(model, [tokens]) for tokens in batch]
    for pad_id, side in enumerate(family.sides):
        for index, together in enumerate(run(model, batch, side, pad_id)):
            for row, single in enumerate(alone):
                wanted = dict(computed(single[index], 0))
                for score, got in computed(together, row):
                    assert_close(got, wanted[score].astype(float), f"{score} {side} {row}")


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_attention_is_the_models_own(
    model: PreTrainedModel, name: str, implementation: str
) -> None:
    """Intercepted or not, the model says the same at every real token."""
    if implementation == "sdpa" and not model._supports_sdpa:
        pytest.skip("transformers gives this family no sdpa attention")
    before = model.config._attn_implementation
    model.set_attn_implementation(implementation)
    try:
        for side in ("left", "right"):
            inputs = pad(sequences(40, 1, 17), side, 5)
            real = inputs["attention_mask"].bool()
            with torch.inference_mode():
                plain = model(**inputs, use_cache=False).logits[real]
                for weights in (False, True):
                    got = intercepted_logits(model, inputs, weights=weights)[real]
                    torch.testing.assert_close(got, plain, rtol=1e-5, atol=2e-5)
                after = model(**inputs, use_cache=False).logits[real]
            torch.testing.assert_close(after, plain, rtol=0, atol=0)
    finally:
        model.set_attn_implementation(before)


def intercepted_logits(
    model: PreTrainedModel, inputs: dict[str, torch.Tensor], *, weights: bool
) -> torch.Tensor:
    """Logits with all attention computed by the capture."""
    projection = ProjectionNorm()
    numbers = tuple(range(inputs["input_ids"].shape[0]))

    def handler(call: AttentionCall) -> torch.Tensor:
        return capture_layer(call, weights=weights, projection=projection, sequences=numbers).output

    with intercepted(model, handler):
        logits: torch.Tensor = model(**inputs, use_cache=False).logits
    return logits


def test_biases_of_the_projection_are_no_part_of_a_heads_norm() -> None:
    """The families with a biased projection really have one that is not zero."""
    for name in ("gpt2", "gpt-neox", "gpt-oss", "llama-biased"):
        (capture, *_) = run(build_model(name), sequences(2))
        module = getattr(capture.call.module, FAMILIES[name].projection)
        assert isinstance(module, nn.Module)
        assert module.bias.abs().min() > 0
