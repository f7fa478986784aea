"""Every score against the float64 oracle, on models that differ in what they ask of attention."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from headprune.analyzer import causal_attention
from headprune.analyzer.attention import attend_blocked
from headprune.analyzer.causal_attention import attend_causal
from headprune.analyzer.interception import AttentionCall
from tests.analyzer import oracle


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
    return attend_causal(call.query, call.key, call.value, call.scale)[1]


def blocked(call: AttentionCall) -> tuple[torch.Tensor, torch.Tensor]:
    return attend_blocked(call, call.query, call.key, call.value)[1]


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_groups_taken_one_by_one_are_the_whole(
    groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long sequences go a few groups at a time, through memory that each group uses again."""
    draw = torch.Generator().manual_seed(5)
    query = torch.randn(1, 4, 150, 16, generator=draw)
    key, value = (torch.randn(1, groups, 150, 16, generator=draw) for _ in range(2))
    whole, whole_statistics = attend_causal(query, key, value, 0.25)
    monkeypatch.setattr(causal_attention, "WEIGHT_BYTES", 1)
    parts, part_statistics = attend_causal(query, key, value, 0.25)
    for got, wanted in zip((parts, *part_statistics), (whole, *whole_statistics), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=5e-6)


def test_statistics_where_the_first_weight_underflows() -> None:
    """Nothing is left of lse in the log of a weight that float32 holds as 0, and little before."""
    call = sink_heavy_call()
    away = call.query.mean(dim=2) * torch.tensor([1.0, 10.0, 30.0, 100.0])[None, :, None]
    call.key[:, :, 0] = -away
    first, entropy = fused(call)
    query, key = (t[0].double().numpy() for t in (call.query, call.key))
    weights = oracle.attention_weights(query, key, call.scale)
    assert (weights[:, 100:, 0] < 1e-45).any()
    assert ((weights[:, 100:, 0] > 1e-45) & (weights[:, 100:, 0] < 1e-20)).any()
    logs = np.log(weights, where=weights > 0, out=np.zeros_like(weights))
    np.testing.assert_allclose(first[0], weights[:, :, 0], rtol=1e-5, atol=5e-6)
    np.testing.assert_allclose(entropy[0], -(weights * logs).sum(-1), rtol=1e-5, atol=5e-6)


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
