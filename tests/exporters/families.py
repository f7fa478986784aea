"""Tiny random models of several families, with a tokenizer, saved as a user would have them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

VOCABULARY = 61
TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 36,
    "intermediate_size": 40,
    "num_attention_heads": 6,
    "initializer_range": 0.3,
    **TOKENS,
}


def llama() -> PreTrainedModel:
    """Grouped-query attention whose heads together are wider than the hidden state."""
    return LlamaForCausalLM(
        LlamaConfig(**SMALL, num_hidden_layers=3, num_key_value_heads=2, head_dim=8)
    )


def qwen2() -> PreTrainedModel:
    """Multi-query attention: one KV head, with biases."""
    return Qwen2ForCausalLM(Qwen2Config(**SMALL, num_hidden_layers=2, num_key_value_heads=1))


def mistral() -> PreTrainedModel:
    """A sliding window shorter than the prompts."""
    return MistralForCausalLM(
        MistralConfig(
            **SMALL, num_hidden_layers=2, num_key_value_heads=3, head_dim=8, sliding_window=6
        )
    )


def gpt2() -> PreTrainedModel:
    """Learned positions; its output projection is a Gemm on flattened rows."""
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY,
            n_embd=32,
            n_layer=3,
            n_head=4,
            n_positions=64,
            initializer_range=0.3,
            **TOKENS,
        )
    )


FAMILIES: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": llama,
    "qwen2": qwen2,
    "mistral": mistral,
    "gpt2": gpt2,
}


def save_family(family: str, directory: Path) -> None:
    torch.manual_seed(sorted(FAMILIES).index(family))
    FAMILIES[family]().save_pretrained(directory)
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2}
    words = ["The", "cat", "sat", "on", "the", "mat", ".", "a", "dog"]
    for word in [*words, *(f"w{i}" for i in range(VOCABULARY))]:
        if len(vocabulary) < VOCABULARY:
            vocabulary[word] = len(vocabulary)
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        pad_token="</s>",
    ).save_pretrained(directory)


def output_projections(model: PreTrainedModel) -> list[nn.Module]:
    """The module behind each layer's heads, found by hand per family."""
    if isinstance(model, GPT2LMHeadModel):
        return [block.attn.c_proj for block in model.transformer.h]
    return [layer.self_attn.o_proj for layer in model.model.layers]
