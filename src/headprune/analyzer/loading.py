"""Load a decoder-only language model and its tokenizer, and write down which ones they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from headprune.analyzer.geometry import Geometry, probe_layers
from headprune.analyzer.identity import describe_tokenizer, hash_config
from headprune.analyzer.sources import CHECK_FILES, ModelFiles, find_model_files
from headprune.analyzer.weights import hash_weights
from headprune.errors import HeadpruneError, first_line
from headprune.manifests.model import ModelInfo, TokenizerInfo

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CAUSAL_SUFFIXES = ("ForCausalLM", "LMHeadModel")
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    """All of a model but its weights.

    Attributes:
        name: What the user called it: a directory or a hub id.
        files: Where it was found.
        config: Its configuration.
        config_sha256: Identity of the configuration.
        tokenizer: Its tokenizer.
        tokenizer_info: Identity of the tokenizer and its BOS policy.
        trust_remote_code: Whether model code that it brings may run.
    """

    name: str
    files: ModelFiles
    config: Any
    config_sha256: str
    tokenizer: PreTrainedTokenizerBase
    tokenizer_info: TokenizerInfo
    trust_remote_code: bool

    @property
    def max_positions(self) -> int | None:
        """The longest sequence the model was made for, if it says so."""
        length = getattr(self.config.get_text_config(), "max_position_embeddings", None)
        return None if length is None else int(length)


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model ready to run, with its identity.

    Attributes:
        model: In evaluation mode.
        info: Identity and attention geometry.
        source: Where it was read from, and its tokenizer.
        unused: Names of tensors on disk that the model has no place for.
    """

    model: PreTrainedModel
    info: ModelInfo
    source: ModelSource
    unused: tuple[str, ...] = ()

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Its tokenizer."""
        return self.source.tokenizer

    @property
    def tokenizer_info(self) -> TokenizerInfo:
        """Identity of the tokenizer."""
        return self.source.tokenizer_info

    @property
    def files(self) -> ModelFiles:
        """Where the model was read from."""
        return self.source.files


def open_source(
    name: str, *, revision: str | None = None, trust_remote_code: bool = False
) -> ModelSource:
    """Find a model directory or hub id, and read its configuration and tokenizer.

    Args:
        name: Directory, or hub id such as `meta-llama/Llama-3.2-1B`.
        revision: Commit, tag or branch on the hub.
        trust_remote_code: Run model code that the checkpoint brings along.

    Raises:
        HeadpruneError: No such model, no safetensors, not a decoder-only language model, or a
            tokenizer that adds two BOS tokens.
    """
    files = find_model_files(name, revision=revision)
    config = load_config(files.directory, name, trust_remote_code=trust_remote_code)
    tokenizer = load_tokenizer(files.directory, name, trust_remote_code=trust_remote_code)
    return ModelSource(
        name=name,
        files=files,
        config=config,
        config_sha256=hash_config(files.directory),
        tokenizer=tokenizer,
        tokenizer_info=describe_tokenizer(tokenizer, name),
        trust_remote_code=trust_remote_code,
    )


def load_model(
    name: str,
    *,
    revision: str | None = None,
    dtype: str = "auto",
    trust_remote_code: bool = False,
) -> LoadedModel:
    """Load a model directory or hub id; safetensors only.

    Args:
        name: Directory, or hub id such as `meta-llama/Llama-3.2-1B`.
        revision: Commit, tag or branch on the hub.
        dtype: `float32`, `float16`, `bfloat16`, or `auto` for the checkpoint's own.
        trust_remote_code: Run model code that the checkpoint brings along.

    Raises:
        HeadpruneError: As `open_source`; or the weights are incomplete.
    """
    source = open_source(name, revision=revision, trust_remote_code=trust_remote_code)
    return load_whole(source, dtype)


def load_whole(source: ModelSource, dtype: str, *, device_map: str | None = None) -> LoadedModel:
    """Load all weights of a model.

    Args:
        source: The model.
        dtype: As for `load_model`.
        device_map: `auto` spreads the layers over all GPUs; None loads to the CPU.

    Raises:
        HeadpruneError: The weights are incomplete.
    """
    model, unused = load_weights(source, dtype, device_map)
    info = describe_model(
        source,
        weights_sha256=hash_weights(source.files.weights),
        dtype=model.dtype,
        geometry=probe_layers(model, source.name),
    )
    return LoadedModel(model=model, info=info, source=source, unused=unused)


def describe_model(
    source: ModelSource, *, weights_sha256: str, dtype: torch.dtype, geometry: Geometry
) -> ModelInfo:
    """What the manifest records of a model."""
    return ModelInfo(
        name=source.files.name,
        revision=source.files.revision,
        weights_sha256=weights_sha256,
        config_sha256=source.config_sha256,
        model_type=str(source.config.model_type),
        dtype=str(dtype).removeprefix("torch."),
        layers=geometry.layers,
        left_out_layers=geometry.left_out,
    )


def load_config(directory: Path, source: str, *, trust_remote_code: bool) -> Any:
    """The model's configuration, refused unless it is that of a decoder-only language model."""
    try:
        config = AutoConfig.from_pretrained(
            directory, local_files_only=True, trust_remote_code=trust_remote_code
        )
    except Exception as error:
        # Configurations are checked by their own classes, which raise what they like.
        raise HeadpruneError(
            f"cannot read the configuration of {source}: {first_line(error)}",
            hint="check its config.json, or download the model again",
        ) from error
    architectures = tuple(getattr(config, "architectures", None) or ())
    causal = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING or trust_remote_code
    if architectures:
        causal = causal and any(name.endswith(CAUSAL_SUFFIXES) for name in architectures)
    if not causal or getattr(config, "is_encoder_decoder", False):
        what = architectures[0] if architectures else config.model_type
        raise HeadpruneError(
            f"{source} is a {what}, expected a decoder-only language model (…ForCausalLM)",
            hint="headprune gates causal self-attention; pass a text-generation model",
        )
    return config


def describe_unused(source: str, names: Sequence[str]) -> str:
    """A warning in one line: often the configuration has fewer layers than the weights."""
    count = f"{len(names)} tensors" if len(names) > 1 else "1 tensor"
    return f"warning: the configuration of {source} has no place for {count}, such as {names[0]}"


def load_weights(
    source: ModelSource, dtype: str, device_map: str | None
) -> tuple[PreTrainedModel, tuple[str, ...]]:
    """The model with all of its weights, in evaluation mode, and the tensors it has no place for.

    Raises:
        HeadpruneError: Weights are missing, misshapen, or cannot be read.
    """
    model: PreTrainedModel
    report: dict[str, Any]
    try:
        model, report = AutoModelForCausalLM.from_pretrained(  # type: ignore[misc]
            source.files.directory,
            config=source.config,
            dtype=DTYPES.get(dtype, "auto"),
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=source.trust_remote_code,
            output_loading_info=True,
            device_map=device_map,
        )
    except Exception as error:
        # transformers and safetensors raise a dozen types here, each about these files.
        raise HeadpruneError(
            f"cannot load the weights of {source.name}: {first_line(error)}",
            hint=CHECK_FILES,
        ) from error
    missing = sorted(report["missing_keys"]) + sorted(str(m) for m in report["mismatched_keys"])
    if missing:
        raise HeadpruneError(
            f"the weights of {source.name} are incomplete: {len(missing)} tensors are missing or "
            f"have another shape, such as {missing[0]}",
            hint=CHECK_FILES,
        )
    model.train(mode=False)
    return model, tuple(sorted(report["unexpected_keys"]))


def load_tokenizer(
    directory: Path, source: str, *, trust_remote_code: bool
) -> PreTrainedTokenizerBase:
    """The tokenizer beside the weights."""
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            directory, local_files_only=True, trust_remote_code=trust_remote_code
        )
    except Exception as error:
        # The same as for weights: many types, all about the files in this directory.
        raise HeadpruneError(
            f"cannot load the tokenizer of {source}: {first_line(error)}",
            hint="the directory must hold tokenizer.json or the tokenizer's own files",
        ) from error
    return tokenizer
