"""Heads, KV heads and head_dim of every attention layer, read off one tiny forward pass."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from headprune.analyzer.attention import attention
from headprune.analyzer.interception import AttentionCall, intercepted
from headprune.errors import HeadpruneError
from headprune.manifests.model import LayerHeads


def probe_layers(model: PreTrainedModel, source: str) -> tuple[LayerHeads, ...]:
    """Geometry of every layer, from the tensors that attention is really called with.

    Args:
        model: Any model that dispatches through transformers' attention interface.
        source: What to call the model in messages.

    Raises:
        HeadpruneError: Some layers do not go through the interface.
    """
    layers: dict[int, LayerHeads] = {}

    def handler(call: AttentionCall) -> Tensor:
        layers[call.layer] = heads_of(call)
        return attention(call).output

    with torch.inference_mode(), intercepted(model, handler):
        model.base_model(input_ids=torch.zeros((1, 2), dtype=torch.long, device=model.device))
    expected = model.config.get_text_config().num_hidden_layers
    if sorted(layers) != list(range(expected)):
        raise HeadpruneError(
            f"{source} ({model.config.model_type}) has {expected} layers, but only {len(layers)} "
            "call attention through transformers' attention interface",
            hint="headprune serves models whose every layer is softmax attention behind it",
        )
    return tuple(layers[index] for index in range(expected))


def heads_of(call: AttentionCall) -> LayerHeads:
    """The geometry of the layer that asks for attention."""
    return LayerHeads(
        query_heads=call.query.shape[1],
        kv_heads=call.key.shape[1],
        head_dim=call.query.shape[3],
    )
