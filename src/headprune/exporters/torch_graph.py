"""Export a transformers model to one ONNX graph for prefill, chunks and decode."""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from headprune.errors import HeadpruneError
from headprune.exporters import names
from headprune.exporters.clean_graph import clean_graph
from headprune.manifests.model import LayerHeads

OPSET = 23
TOTAL_AXIS = "total_sequence_length"
# Distinct and at least 2: torch.export takes equal sizes for one axis, and 1 for a constant.
EXAMPLE_BATCH, EXAMPLE_SEQUENCE, EXAMPLE_PAST = 2, 3, 5


class FlatCache(nn.Module):
    """A causal language model whose key-value cache is a flat list of tensors."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.wrapped = model
        self.cache_argument = cache_argument(model)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        position_ids: Tensor,
        past: Sequence[Tensor],
    ) -> tuple[Tensor, ...]:
        """Run the model.

        Args:
            input_ids: `[batch, sequence]`.
            attention_mask: `[batch, past + sequence]`, 0 at padding.
            position_ids: `[batch, sequence]`.
            past: Keys and values by turns, each `[batch, kv_head, past, head_dim]`.

        Returns:
            Logits `[batch, sequence, vocabulary]`, then keys and values including the new ones.
        """
        cache = DynamicCache()
        for layer in range(len(past) // 2):
            cache.update(past[2 * layer], past[2 * layer + 1], layer)
        output = self.wrapped(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            use_cache=True,
            **{self.cache_argument: cache},
        )
        present = [tensor for keys, values, *_ in cache for tensor in (keys, values)]
        return (output.logits, *present)


def cache_argument(model: PreTrainedModel) -> str:
    """Name of the forward argument that takes the cache: it changed within transformers 5.

    Raises:
        HeadpruneError: The model takes no cache or no position ids.
    """
    parameters = inspect.signature(model.forward).parameters
    for name in ("cache", "past_key_values"):
        if name in parameters and "position_ids" in parameters:
            return name
    raise HeadpruneError(
        f"{type(model).__name__}.forward takes no key-value cache or no position_ids",
        hint="headprune exports transformers' own causal language models",
    )


def export_graph(model: PreTrainedModel, layers: Sequence[LayerHeads]) -> ir.Model:
    """The ungated graph: dynamic batch, sequence and past, logits for every position.

    Args:
        model: In evaluation mode; its weights' dtype becomes the graph's.
        layers: Attention geometry, for the shapes of the cache.

    Raises:
        HeadpruneError: torch.onnx cannot export the model.
    """
    # The default for mixtures of experts has no ONNX operator; dense models take no notice.
    model.set_experts_implementation("batched_mm")
    wrapper = FlatCache(model).eval()
    cache_axes = {0: names.BATCH, 2: names.PAST}
    axes: dict[str, Any] = {
        "input_ids": {0: names.BATCH, 1: names.SEQUENCE},
        "attention_mask": {0: names.BATCH, 1: TOTAL_AXIS},
        "position_ids": {0: names.BATCH, 1: names.SEQUENCE},
        "past": [cache_axes] * (2 * len(layers)),
    }
    with quiet_export():
        try:
            program = torch.onnx.export(
                wrapper,
                example_inputs(model, layers),
                input_names=names.model_inputs(len(layers)),
                output_names=names.model_outputs(len(layers)),
                opset_version=OPSET,
                dynamic_shapes=axes,
                dynamo=True,
                verbose=False,
            )
        except torch.onnx.OnnxExporterError as error:
            reason = next(
                iter(str(error.__cause__ or error).strip().splitlines()), "no reason given"
            )
            raise HeadpruneError(
                f"torch.onnx cannot export {type(model).__name__}: {reason}",
                hint="export it with another tool and pass --from-onnx model.onnx",
            ) from error
    if program is None:
        raise HeadpruneError(
            f"torch.onnx gave no graph for {type(model).__name__}",
            hint="export it with another tool and pass --from-onnx model.onnx",
        )
    clean_graph(program.model, prefix="wrapped.")
    return program.model


def example_inputs(
    model: PreTrainedModel, layers: Sequence[LayerHeads]
) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    """Inputs of the right types and shapes; torch.export looks at nothing else."""
    total = EXAMPLE_PAST + EXAMPLE_SEQUENCE
    ids = torch.zeros((EXAMPLE_BATCH, EXAMPLE_SEQUENCE), dtype=torch.long)
    mask = torch.ones((EXAMPLE_BATCH, total), dtype=torch.long)
    positions = torch.arange(EXAMPLE_PAST, total).repeat(EXAMPLE_BATCH, 1)
    past = [
        torch.zeros(
            (EXAMPLE_BATCH, layer.kv_heads, EXAMPLE_PAST, layer.head_dim), dtype=model.dtype
        )
        for layer in layers
        for _ in ("key", "value")
    ]
    return ids, mask, positions, past


@contextlib.contextmanager
def quiet_export() -> Iterator[None]:
    """Keep torch.onnx's chatter, none of which a user can act on, off the terminal."""
    registration = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = registration.level
    registration.setLevel(logging.ERROR)  # It reports that torchvision is absent.
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            # torch.export copies its own deprecated pytree class.
            warnings.filterwarnings("ignore", r".*LeafSpec.*is deprecated", FutureWarning)
            # Several inputs share an axis on purpose, and the names are the same.
            warnings.filterwarnings("ignore", r"# The axis name: .* will not be used", UserWarning)
            yield
    finally:
        registration.setLevel(level)
