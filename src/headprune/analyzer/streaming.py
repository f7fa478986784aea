"""Profile a model bigger than memory: each layer's weights are read once, for all sequences.

The model's own forward runs for every layer and batch, with all layers but one passing on what they
are given; that one gets the hidden states the layer before has left, and ends the forward. So the
model itself prepares masks, positions and rotary embeddings, and no family needs code here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from headprune.analyzer.batches import Batch
from headprune.analyzer.geometry import heads_of
from headprune.analyzer.interception import AttentionCall, intercepted
from headprune.analyzer.layer_weights import LayerWeights
from headprune.analyzer.profiling import Meter, Work, collecting
from headprune.analyzer.projection import ProjectionNorm
from headprune.analyzer.score_table import LayerScores
from headprune.files import staged_file, write_text_whole
from headprune.manifests.model import LayerHeads


class _Ended(Exception):  # noqa: N818  no error: the way out of a forward
    """Carries hidden states out of a forward that has done its part."""

    def __init__(self, hidden: Tensor) -> None:
        super().__init__()
        self.hidden = hidden


class HiddenStates:
    """The input of each batch's next layer, on disk.

    Args:
        directory: Where they lie.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def next_layer(self, batch: Batch) -> int | None:
        """The layer a batch's hidden states are the input of; None before the embeddings."""
        path = self._path(batch)
        if not path.is_file():
            return None
        with safe_open(path, "pt") as content:
            return int(content.metadata()["layer"])

    def read(self, batch: Batch, device: torch.device) -> Tensor:
        """`[sequence, position, hidden]`."""
        with safe_open(self._path(batch), "pt") as content:
            # A copy: the mapped file is about to be replaced.
            hidden: Tensor = content.get_tensor("hidden")
            return hidden.clone().to(device)

    def write(self, batch: Batch, layer: int, hidden: Tensor) -> None:
        """Keep the input of `layer`."""
        with staged_file(self._path(batch)) as staging:
            save_file(
                {"hidden": hidden.contiguous().cpu()}, staging, metadata={"layer": str(layer)}
            )

    def _path(self, batch: Batch) -> Path:
        return self.directory / f"hidden-{batch.number:06d}.safetensors"


def stream(weights: LayerWeights, work: Work, directory: Path) -> dict[int, LayerHeads]:
    """Profile layer by layer; what an earlier run has done is not done again.

    Args:
        weights: The model.
        work: What to profile.
        directory: Keeps hidden states and geometry for a run that goes on later.

    Returns:
        The geometry of every layer with softmax attention.
    """
    hidden = HiddenStates(directory)
    embed(weights, work.batches, hidden)
    geometry = read_geometry(directory)
    meter = Meter(len(weights.layers) * work.size, work.tell, unit="layer tokens")
    for layer in range(len(weights.layers)):
        todo = [batch for batch in work.batches if hidden.next_layer(batch) == layer]
        meter.skip(work.size - sum(batch.size for batch in todo))
        if not todo:
            continue
        weights.load_layer(layer)
        projection = ProjectionNorm()
        for batch in todo:
            found: list[LayerScores] = []
            inner = collecting(found, batch, work.scores, projection, seed=work.seed)

            def handler(
                call: AttentionCall, inner: Callable[[AttentionCall], Tensor] = inner
            ) -> Tensor:
                geometry[call.layer] = heads_of(call)
                return inner(call)

            with torch.inference_mode(), intercepted(weights.model, handler):
                states = run_layer(weights, layer, batch, hidden.read(batch, weights.device))
            unit = f"{layer}/{batch.number}"
            if found and unit not in work.done:
                write_geometry(directory, geometry)
                work.record(unit, found)
            hidden.write(batch, layer + 1, states)
            meter.advance(batch.size)
        weights.drop_layer(layer)
    return geometry


def embed(weights: LayerWeights, batches: Sequence[Batch], hidden: HiddenStates) -> None:
    """Write the input of the first layer for every batch that has none yet.

    What else lies outside the layers stays in memory: positions and final norm are small.
    """
    weights.load_outside()
    todo = [batch for batch in batches if hidden.next_layer(batch) is None]
    for batch in todo:
        ids, mask = batch.tensors(weights.device)
        with (
            torch.inference_mode(),
            intercepted(weights.model, _no_attention),
            _layers(weights.layers, active=0, run=_end_with_input),
        ):
            hidden.write(batch, 0, forward(weights.model, input_ids=ids, attention_mask=mask))
    weights.drop_embeddings()


def run_layer(weights: LayerWeights, layer: int, batch: Batch, states: Tensor) -> Tensor:
    """One layer's output for one batch, `[sequence, position, hidden]`."""
    original = weights.layers[layer].forward

    def run(*args: Any, **options: Any) -> Tensor:
        options.pop("hidden_states", None)
        output = original(states, *args[1:], **options)
        raise _Ended(output[0] if isinstance(output, tuple) else output)

    _, mask = batch.tensors(weights.device)
    # The others return the states unchanged: whatever the model then makes of them, the active
    # layer is given its own, and nothing else of its arguments depends on them.
    with _layers(weights.layers, active=layer, run=run, others=lambda *_, **__: states):
        return forward(weights.model, inputs_embeds=states, attention_mask=mask)


def forward(model: Any, **inputs: Any) -> Tensor:
    """Run the model until a layer ends it, and return what that layer carried out."""
    try:
        model.base_model(**inputs, use_cache=False)
    except _Ended as ended:
        return ended.hidden
    raise RuntimeError("the model ran past its layers")


@contextmanager
def _layers(
    layers: nn.ModuleList,
    *,
    active: int,
    run: Callable[..., Tensor],
    others: Callable[..., Tensor] | None = None,
) -> Iterator[None]:
    """Replace the forwards of all layers inside the block."""
    try:
        for index, layer in enumerate(layers):
            if index == active:
                layer.forward = run
            elif others is not None:
                layer.forward = others
        yield
    finally:
        for layer in layers:
            layer.__dict__.pop("forward", None)


def _end_with_input(*args: Any, **options: Any) -> Tensor:
    raise _Ended(args[0] if args else options["hidden_states"])


def _no_attention(_: AttentionCall) -> Tensor:
    raise RuntimeError("attention was called before the first layer")


def read_geometry(directory: Path) -> dict[int, LayerHeads]:
    """The layers that an earlier run has met."""
    path = directory / "geometry.json"
    if not path.is_file():
        return {}
    rows = json.loads(path.read_text("utf-8")).items()
    return {int(layer): LayerHeads(**heads) for layer, heads in rows}


def write_geometry(directory: Path, geometry: dict[int, LayerHeads]) -> None:
    """Note the layers met so far."""
    text = json.dumps({layer: asdict(heads) for layer, heads in geometry.items()})
    write_text_whole(directory / "geometry.json", text)
