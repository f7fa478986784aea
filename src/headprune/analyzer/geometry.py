"""Heads, KV heads and head_dim of every attention layer, read off one tiny forward pass."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from headprune.analyzer.attention import attention
from headprune.analyzer.interception import AttentionCall, intercepted
from headprune.errors import SERVED, HeadpruneError, first_line
from headprune.manifests.model import LayerHeads, describe_layers

SOFTMAX_ATTENTION = frozenset({"attention", "full_attention", "sliding_attention"})
INTERFACE = "transformers' attention interface"


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """Which layers have softmax attention, and their heads.

    Attributes:
        layers: Geometry of every layer with softmax attention, in order.
        left_out: Indices of the model's other layers, ascending.
    """

    layers: tuple[LayerHeads, ...]
    left_out: tuple[int, ...]


def probe_layers(model: PreTrainedModel, source: str) -> Geometry:
    """Geometry of every layer, from the tensors that attention is really called with.

    Args:
        model: Any model that dispatches through transformers' attention interface.
        source: What to call the model in messages.

    Raises:
        HeadpruneError: No layer goes through the interface, some softmax attention does not, or
            a layer calls it more than once.
    """
    name = full_name(model, source)
    return geometry_of(model, name, probe_calls(model, name))


def full_name(model: PreTrainedModel, source: str) -> str:
    """What to call the model in messages: where it is from, and its kind."""
    return f"{source} ({model.config.model_type})"


def geometry_of(
    model: PreTrainedModel, name: str, calls: Iterable[tuple[int, LayerHeads]]
) -> Geometry:
    """The geometry of a model whose layers called attention so.

    Args:
        model: The model.
        name: What to call it in messages.
        calls: Layer index and heads of each call.

    Raises:
        HeadpruneError: As `probe_layers`.
    """
    ordered = sorted(calls, key=lambda call: call[0])
    indices = [index for index, _ in ordered]
    count = int(model.config.get_text_config().num_hidden_layers)
    if not indices:
        raise HeadpruneError(
            f"{name} {why_not_seen(model)}",
            hint=SERVED,
        )
    if len(set(indices)) < len(indices) or not set(indices) <= set(range(count)):
        raise HeadpruneError(
            f"{name} calls attention as layers {', '.join(map(str, indices))} of {count}, expected "
            "each layer once (attention in two parts or shared by layers is not served)",
            hint=SERVED,
        )
    left_out = tuple(index for index in range(count) if index not in indices)
    check_left_out(model, name, left_out)
    return Geometry(layers=tuple(heads for _, heads in ordered), left_out=left_out)


def probe_calls(model: PreTrainedModel, name: str) -> list[tuple[int, LayerHeads]]:
    """Layer index and geometry of every attention call in one tiny forward pass."""
    calls: list[tuple[int, LayerHeads]] = []

    def handler(call: AttentionCall) -> Tensor:
        calls.append((call.layer, heads_of(call)))
        return attention(call).output

    ids = torch.zeros((1, 2), dtype=torch.long, device=model.device)
    try:
        with torch.inference_mode(), intercepted(model, handler):
            model.base_model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)
    except HeadpruneError as error:
        raise HeadpruneError(
            f"{name} cannot be profiled: {error.message}", hint=error.hint
        ) from error
    except Exception as error:
        # Whatever the model's own code raises when its attention is taken over.
        raise HeadpruneError(
            f"{name} does not run through {INTERFACE}: {first_line(error)}", hint=SERVED
        ) from error
    return calls


def why_not_seen(model: PreTrainedModel) -> str:
    """Why no layer called attention through the interface."""
    kinds = [type(module).__name__ for module in model.modules()]
    own = next((kind for kind in kinds if "Attention" in kind), None)
    if own is not None:
        return f"computes attention with its own {own}, not through {INTERFACE}"
    return "has no softmax attention in any layer"


def check_left_out(model: PreTrainedModel, name: str, left_out: tuple[int, ...]) -> None:
    """Raise unless the configuration says that these layers have no softmax attention.

    Raises:
        HeadpruneError: It says that they have, or says nothing.
    """
    if not left_out:
        return
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None)
    missed = [i for i in left_out if kinds is None or kinds[i] in SOFTMAX_ATTENTION]
    if missed:
        raise HeadpruneError(
            f"{name} does not call attention through {INTERFACE} in layers "
            f"{describe_layers(missed)}, and its configuration does not name them as layers "
            "without softmax attention",
            hint=SERVED,
        )


def heads_of(call: AttentionCall) -> LayerHeads:
    """The geometry of the layer that asks for attention."""
    return LayerHeads(
        query_heads=call.query.shape[1],
        kv_heads=call.key.shape[1],
        head_dim=call.query.shape[3],
    )
