"""Models that the tests build from a configuration; nothing is fetched from anywhere."""

from __future__ import annotations

import os
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"

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
