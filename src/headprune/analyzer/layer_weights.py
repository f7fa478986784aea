"""A model whose weights are read from disk a layer at a time."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    convert_and_load_state_dict_in_model,
    rename_source_key,
)
from transformers.modeling_utils import LoadStateDictConfig

from headprune.analyzer.loading import DTYPES, ModelSource
from headprune.analyzer.sources import CHECK_FILES
from headprune.analyzer.weights import combine, hash_tensor, opened, tensor_names
from headprune.errors import HeadpruneError, first_line
from headprune.files import write_text_whole

OUTSIDE = -1
UNUSED = -2
OLD_BUFFERS = (r"rotary_emb\.inv_freq$", r"(^|\.)position_ids$")  # transformers ignores them too


class LayerWeights:
    """The model without weights, and how to bring in those of one layer.

    Every tensor is hashed when it is read, so that the identity of the weights costs no second pass
    over the files; the hashes are kept in `notes` for a run that goes on later.

    Args:
        source: The model.
        dtype: `float32`, `float16`, `bfloat16`, or `auto` for the checkpoint's own.
        device: Where layers run.
        notes: File for the hashes.

    Attributes:
        model: Its parameters are on the meta device, but for those brought in.
        layers: The decoder layers.
        unused: Names of tensors on disk that the model has no place for.

    Raises:
        HeadpruneError: The model does not keep its decoder layers in one list.
    """

    def __init__(self, source: ModelSource, dtype: str, device: torch.device, notes: Path) -> None:
        self.source = source
        self.device = device
        self.notes = notes
        self.digests: dict[str, str] = read_digests(notes)
        self.model = empty_model(source, dtype)
        for module in self.model.modules():
            for name, buffer in module.named_buffers(recurse=False):
                setattr(module, name, buffer.to(device))
        self.prefix, self.layers = find_layers(self.model, source.name)
        mapping = get_model_conversion_mapping(self.model)
        self._config = LoadStateDictConfig(
            dtype=self.model.dtype,
            dtype_plan=self.model._get_dtype_plan(self.model.dtype),
            device_map={"": device},
            weight_mapping=mapping,  # type: ignore[arg-type]
        )
        self._where, self.unused = self._place_tensors(mapping)

    def load_layer(self, layer: int) -> None:
        """Bring in one decoder layer.

        Raises:
            HeadpruneError: Some of its weights are missing, or cannot be read.
        """
        self._load(layer)
        self._check(self.layers[layer], f"layer {layer}")

    def load_outside(self) -> None:
        """Bring in what comes before and after the layers: embeddings and final norm."""
        self._load(OUTSIDE)
        self._check(self.model.get_input_embeddings(), "the embeddings")

    def drop_layer(self, layer: int) -> None:
        """Forget one layer's weights."""
        self.layers[layer].to("meta")

    def drop_embeddings(self) -> None:
        """Forget the token embeddings, the largest weight outside the layers."""
        self.model.get_input_embeddings().to("meta")

    def identity(self) -> str:
        """The hash of all weights; reads the tensors that no layer needed."""
        for where in sorted(self._where):
            self._read(where, keep=False)
        return combine(self.digests)

    def _place_tensors(
        self, mapping: list[Any]
    ) -> tuple[dict[int, list[tuple[Path, str]]], tuple[str, ...]]:
        """Which tensors of which file each layer needs, and those that nothing needs."""
        renamings = [entry for entry in mapping if isinstance(entry, WeightRenaming)]
        converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]
        known = self.model.state_dict()
        ignored = (*(self.model._keys_to_ignore_on_load_unexpected or ()), *OLD_BUFFERS)
        unused: list[str] = []
        base = {f"{self.model.base_model_prefix}.{name}" for name in self._base_names()}
        where: dict[int, list[tuple[Path, str]]] = defaultdict(list)
        for path in self.source.files.weights:
            for name in tensor_names(path):
                target, _ = rename_source_key(
                    name, renamings, converters, self.model.base_model_prefix, known
                )
                place = OUTSIDE if target in base else UNUSED
                if target.startswith(self.prefix):
                    place = int(target.removeprefix(self.prefix).split(".", 1)[0])
                where[place].append((path, name))
                if target not in known and not any(re.search(key, target) for key in ignored):
                    unused.append(name)
        return where, tuple(sorted(unused))

    def _base_names(self) -> Iterable[str]:
        return self.model.base_model.state_dict().keys()

    def _load(self, where: int) -> None:
        try:
            tensors = self._read(where, keep=True)
            report, _ = convert_and_load_state_dict_in_model(self.model, tensors, self._config)
        except Exception as error:
            # transformers and safetensors raise a dozen types here, each about these files.
            raise HeadpruneError(
                f"cannot load the weights of {self.source.name}: {first_line(error)}",
                hint=CHECK_FILES,
            ) from error
        wrong = sorted(map(str, report.mismatched_keys)) + sorted(report.conversion_errors)
        if wrong:
            raise HeadpruneError(
                f"the weights of {self.source.name} do not fit its configuration: {wrong[0]}",
                hint=CHECK_FILES,
            )

    def _read(self, where: int, *, keep: bool) -> dict[str, torch.Tensor]:
        """Tensors as they are on disk, hashed on the way; each file is opened for this alone."""
        wanted: dict[Path, list[str]] = defaultdict(list)
        for path, name in self._where.get(where, []):
            if keep or name not in self.digests:
                wanted[path].append(name)
        tensors: dict[str, torch.Tensor] = {}
        for path, names in wanted.items():
            with opened(path) as content:
                for name in names:
                    tensor = content.get_tensor(name)
                    if name not in self.digests:
                        self.digests[name] = hash_tensor(tensor)
                    if keep:
                        tensors[name] = tensor
        write_text_whole(self.notes, json.dumps(self.digests))
        return tensors

    def _check(self, module: nn.Module, what: str) -> None:
        missing = [name for name, tensor in module.state_dict().items() if tensor.is_meta]
        if missing:
            raise HeadpruneError(
                f"the weights of {self.source.name} are incomplete: {what} has no {missing[0]}",
                hint=CHECK_FILES,
            )


def read_digests(notes: Path) -> dict[str, str]:
    """The hashes that an earlier run has noted."""
    if not notes.is_file():
        return {}
    digests: dict[str, str] = json.loads(notes.read_text("utf-8"))
    return digests


def empty_model(source: ModelSource, dtype: str) -> PreTrainedModel:
    """The model with its parameters on the meta device and its buffers computed."""
    chosen = DTYPES.get(dtype, getattr(source.config, "dtype", None) or torch.float32)
    try:
        with init_empty_weights(include_buffers=False):
            model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                source.config,
                dtype=chosen,
                trust_remote_code=source.trust_remote_code,
            )
    except Exception as error:
        # Configurations fail in as many ways as there are models.
        raise HeadpruneError(
            f"cannot build {source.name} from its configuration: {first_line(error)}",
            hint="check its config.json, or download the model again",
        ) from error
    model.train(mode=False)
    return model


def find_layers(model: PreTrainedModel, name: str) -> tuple[str, nn.ModuleList]:
    """The list of decoder layers, and the start of the names of their weights.

    Raises:
        HeadpruneError: There is no list of as many modules as the model has layers.
    """
    count = model.config.get_text_config().num_hidden_layers
    for path, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return f"{path}.", module
    raise HeadpruneError(
        f"{name} ({model.config.model_type}) does not keep its {count} layers in one list, so it "
        "cannot be streamed",
        hint="leave out --stream, and pass --memory if the weights fit",
    )
