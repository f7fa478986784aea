"""Tiny random models of every family that differs in what it asks of the attention interface."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GPTNeoXConfig,
    GptOssConfig,
    GraniteConfig,
    Lfm2Config,
    LlamaConfig,
    MixtralConfig,
    Olmo2Config,
    Phi3Config,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    Qwen3NextConfig,
    SmolLM3Config,
)

from tests import conftest
from tests.conftest import VOCABULARY

WINDOW = 11
SMALL = {
    "vocab_size": VOCABULARY, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 3,
    "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 1024,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
EXPERTS = {"num_experts_per_tok": 2}
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]


@dataclass(frozen=True, kw_only=True)
class Family:
    """A configuration, and what it says of the attention layers, read off it by hand.

    Attributes:
        config: Builds the model.
        heads: Query heads, KV heads and head_dim of every attention layer.
        windows: Width of the sliding window of each attention layer.
        scale: Factor on the products of queries and keys.
        softcap: Cap of the attention scores.
        sinks: Whether a learned score takes part in the softmax.
        projection: Path of the output projection from the attention module.
        left_out: Layers without softmax attention.
        sides: Sides on which padding leaves the model's own hidden states as they are.
    """

    config: PretrainedConfig
    heads: tuple[int, int, int] = (6, 2, 8)
    windows: tuple[int | None, ...] = (None, None, None)
    scale: float = 8**-0.5
    softcap: float | None = None
    sinks: bool = False
    projection: str = "o_proj"
    left_out: tuple[int, ...] = ()
    sides: tuple[str, ...] = ("left", "right")


# fmt: off
FAMILIES: dict[str, Family] = {
    "llama": Family(config=conftest.FAMILIES["llama"], heads=(8, 2, 8)),
    "llama-mqa": Family(
        config=conftest.FAMILIES["llama-mqa"], heads=(6, 1, 8), windows=(None, None)
    ),
    "llama-biased": Family(config=LlamaConfig(**SMALL, attention_bias=True)),
    "mistral": Family(config=conftest.FAMILIES["mistral"], windows=(WINDOW,) * 3),
    "qwen2": Family(config=conftest.FAMILIES["qwen2"], heads=(6, 3, 8)),
    "qwen2-window": Family(
        config=Qwen2Config(
            **SMALL, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=2
        ),
        windows=(None, None, WINDOW),
    ),
    "qwen2-moe": Family(
        config=Qwen2MoeConfig(
            **SMALL,
            **EXPERTS,
            use_sliding_window=True,
            sliding_window=WINDOW,
            layer_types=MIXED,
            num_experts=4,
            moe_intermediate_size=24,
            shared_expert_intermediate_size=32,
            decoder_sparse_step=2,
        ),
        windows=(WINDOW, None, WINDOW),
    ),
    "qwen3": Family(config=Qwen3Config(**SMALL, head_dim=12), heads=(6, 2, 12), scale=12**-0.5),
    "qwen3-moe": Family(
        config=Qwen3MoeConfig(
            **SMALL,
            **EXPERTS,
            head_dim=12,
            num_experts=4,
            moe_intermediate_size=24,
            mlp_only_layers=[0],
        ),
        heads=(6, 2, 12),
        scale=12**-0.5,
    ),
    "olmo2": Family(config=Olmo2Config(**SMALL)),
    "gemma2": Family(
        config=Gemma2Config(
            **SMALL,
            head_dim=12,
            sliding_window=WINDOW,
            query_pre_attn_scalar=20,
            attn_logit_softcapping=3.0,
        ),
        heads=(6, 2, 12),
        windows=(WINDOW, None, WINDOW),
        scale=20**-0.5,
        softcap=3.0,
    ),
    "gemma3": Family(
        config=Gemma3TextConfig(
            **SMALL,
            head_dim=12,
            sliding_window=WINDOW,
            query_pre_attn_scalar=30,
            layer_types=MIXED,
        ),
        heads=(6, 2, 12),
        windows=(WINDOW, None, WINDOW),
        scale=30**-0.5,
    ),
    "phi3": Family(config=Phi3Config(**SMALL, sliding_window=WINDOW), windows=(WINDOW,) * 3),
    "gpt2": Family(config=conftest.FAMILIES["gpt2"], heads=(6, 6, 8), projection="c_proj"),
    "gpt-neox": Family(
        config=GPTNeoXConfig(
            vocab_size=VOCABULARY,
            hidden_size=48,
            intermediate_size=64,
            num_hidden_layers=3,
            num_attention_heads=6,
            rotary_pct=0.5,
            max_position_embeddings=1024,
        ),
        heads=(6, 6, 8),
        projection="dense",
    ),
    "gpt-oss": Family(
        config=GptOssConfig(
            **SMALL,
            **EXPERTS,
            head_dim=12,
            num_local_experts=4,
            sliding_window=WINDOW,
            layer_types=MIXED,
        ),
        heads=(6, 2, 12),
        windows=(WINDOW, None, WINDOW),
        scale=12**-0.5,
        sinks=True,
    ),
    "mixtral": Family(config=MixtralConfig(**SMALL, **EXPERTS, num_local_experts=4)),
    "smollm3": Family(config=SmolLM3Config(**SMALL, no_rope_layers=[1, 0, 1])),
    "granite": Family(
        config=GraniteConfig(
            **SMALL,
            attention_multiplier=0.11,
            residual_multiplier=0.7,
            embedding_multiplier=2.0,
            logits_scaling=3.0,
        ),
        scale=0.11,
    ),
    "qwen3-next": Family(
        config=Qwen3NextConfig(
            **SMALL,
            **EXPERTS,
            head_dim=8,
            num_experts=4,
            moe_intermediate_size=24,
            shared_expert_intermediate_size=24,
            linear_num_value_heads=4,
            linear_num_key_heads=2,
            linear_key_head_dim=8,
            linear_value_head_dim=8,
            layer_types=["linear_attention", "full_attention", "linear_attention"],
        ),
        windows=(None,),
        left_out=(0, 2),
        # Its linear attention cuts the padded sequence into chunks, and rounds by chunk.
        sides=("right",),
    ),
    "lfm2": Family(
        config=Lfm2Config(
            **{**SMALL, "num_hidden_layers": 4},
            layer_types=["conv", "full_attention", "conv", "full_attention"],
        ),
        windows=(None, None),
        projection="out_proj",
        left_out=(0, 2),
    ),
}
# fmt: on


def build_model(family: str) -> PreTrainedModel:
    """A random model with weights large enough that its heads differ."""
    torch.manual_seed(0)
    config = FAMILIES[family].config
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.15)
            elif "sinks" in name:
                parameter.normal_(0, 2)
            else:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model
