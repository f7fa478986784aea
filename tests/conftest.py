"""Models that the tests build from a configuration; nothing is fetched from anywhere."""

from __future__ import annotations

import json
import os
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
)

VOCABULARY = 300

FAMILIES: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=48, intermediate_size=64, num_hidden_layers=3,
        num_attention_heads=8, num_key_value_heads=2, head_dim=8, max_position_embeddings=1024,
    ),
    "llama-mqa": LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=48, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=6, num_key_value_heads=1, head_dim=8, max_position_embeddings=1024,
    ),
    "qwen2": Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=48, intermediate_size=64, num_hidden_layers=3,
        num_attention_heads=6, num_key_value_heads=3, max_position_embeddings=1024,
    ),
    "gpt2": GPT2Config(
        vocab_size=VOCABULARY, n_embd=48, n_inner=64, n_layer=3, n_head=6, n_positions=1024,
    ),
    "mistral": MistralConfig(
        vocab_size=VOCABULARY, hidden_size=48, intermediate_size=64, num_hidden_layers=3,
        num_attention_heads=6, num_key_value_heads=2, head_dim=8, sliding_window=11,
        max_position_embeddings=1024,
    ),
}  # fmt: skip


def build_model(family: str, seed: int = 0) -> PreTrainedModel:
    """A random model with weights large enough that its heads differ."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(FAMILIES[family], attn_implementation="sdpa").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.15)
            elif "bias" in name:
                parameter.normal_(0, 0.1)
    return model


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """The embedded model's directory."""
    from headprune.demo.assets import model_directory

    return model_directory()


def save_model(
    family: str, directory: Path, *, bos: bool = True, model: PreTrainedModel | None = None
) -> Path:
    """A random model's directory, with a byte-level tokenizer of its vocabulary."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate(["<pad>", "<s>", "</s>", *letters])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 1)]
        )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    ).save_pretrained(directory)
    (build_model(family) if model is None else model).save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def llama_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random grouped-query Llama on disk."""
    return save_model("llama", tmp_path_factory.mktemp("llama"))


TEXTS = [
    f"Fact {number}: " + "the quick brown fox jumps over the lazy dog. " * (1 + number % 5)
    for number in range(12)
]


@pytest.fixture(scope="session")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small calibration file."""
    path = tmp_path_factory.mktemp("text") / "text.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return path


@pytest.fixture(scope="session")
def llama_manifest(
    llama_directory: Path, text_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The manifest of the random Llama, raw scores beside it."""
    from headprune.analyzer.run import AnalyzeRequest, analyze

    path = tmp_path_factory.mktemp("manifest") / "manifest.json"
    analyze(
        AnalyzeRequest(
            model=str(llama_directory),
            output=path,
            calibration=(str(text_file),),
            lengths=(10, 200),
        )
    )
    return path


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what headprune remembers away from the user's own cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
