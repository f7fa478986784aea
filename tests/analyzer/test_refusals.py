"""What the attention interface cannot serve is refused by name, with the reason."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BloomConfig,
    DeepseekV2Config,
    DeepseekV3Config,
    DiffLlamaConfig,
    DogeConfig,
    FalconConfig,
    Gemma3TextConfig,
    Llama4TextConfig,
    LlamaConfig,
    MambaConfig,
    PretrainedConfig,
    Qwen3Config,
    RwkvConfig,
    Zamba2Config,
)

from headprune.analyzer.geometry import probe_layers
from headprune.analyzer.interception import attend
from headprune.errors import ExitCode, HeadpruneError

SMALL = {
    "vocab_size": 50, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6,
    "intermediate_size": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
LATENT = {
    "kv_lora_rank": 16, "q_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8,
    "v_head_dim": 8, "first_k_dense_replace": 2, "n_routed_experts": 4,
}  # fmt: skip
OTHER_RULE = "masks its attention by another rule than causal attention"

REFUSED: dict[str, tuple[PretrainedConfig, str]] = {
    "mamba": (
        MambaConfig(vocab_size=50, hidden_size=16, num_hidden_layers=2, state_size=4),
        "has no softmax attention in any layer",
    ),
    "rwkv": (
        RwkvConfig(vocab_size=50, hidden_size=16, num_hidden_layers=2),
        "computes attention with its own RwkvSelfAttention",
    ),
    "falcon": (
        FalconConfig(vocab_size=50, hidden_size=48, num_hidden_layers=2, num_attention_heads=6),
        "computes attention with its own FalconAttention",
    ),
    "bloom": (
        BloomConfig(vocab_size=50, hidden_size=48, n_layer=2, n_head=6),
        "computes attention with its own BloomAttention",
    ),
    "deepseek_v2": (
        DeepseekV2Config(**SMALL, **LATENT),
        "DeepseekV2Attention has values of width 8 and queries of width 16",
    ),
    "deepseek_v3": (
        DeepseekV3Config(**SMALL, **LATENT),
        "DeepseekV3Attention has values of width 8 and queries of width 16",
    ),
    "bert": (BertConfig(**SMALL), OTHER_RULE),
    "llama": (LlamaConfig(**SMALL, is_causal=False), OTHER_RULE),
    "gemma3_text": (
        Gemma3TextConfig(
            **SMALL, num_key_value_heads=2, head_dim=8, use_bidirectional_attention=True
        ),
        OTHER_RULE,
    ),
    "llama4_text": (
        Llama4TextConfig(
            **SMALL, num_key_value_heads=2, head_dim=8, attention_chunk_size=16,
            intermediate_size_mlp=64, num_local_experts=2,
        ),
        OTHER_RULE,
    ),
    "doge": (DogeConfig(**SMALL), "does not run through transformers' attention interface"),
    "diffllama": (DiffLlamaConfig(**SMALL), "calls attention as layers 0, 0, 1, 1 of 2"),
    "zamba2": (
        Zamba2Config(
            **SMALL, num_key_value_heads=6, mamba_d_state=4, mamba_ngroups=1, n_mamba_heads=8,
            layers_block_type=["mamba", "hybrid"], num_mem_blocks=1,
        ),
        "calls attention as layers -1 of 2",
    ),
}  # fmt: skip


def assert_refused(model: nn.Module, model_type: str, message: str) -> None:
    with pytest.raises(HeadpruneError) as caught:
        probe_layers(model, "some/model")  # type: ignore[arg-type]
    assert caught.value.exit_code == ExitCode.USAGE
    assert caught.value.message.startswith(f"some/model ({model_type}) ")
    assert message in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("model_type", REFUSED)
def test_models_that_are_not_served(model_type: str) -> None:
    config, message = REFUSED[model_type]
    assert_refused(AutoModelForCausalLM.from_config(config).eval(), model_type, message)


def skip_attention(hidden_states: torch.Tensor, **_: object) -> tuple[torch.Tensor, None]:
    """An attention layer that computes something else, without the interface."""
    return hidden_states, None


@pytest.mark.parametrize(
    "config", [LlamaConfig(**SMALL), Qwen3Config(**SMALL, num_key_value_heads=2)]
)
def test_softmax_attention_that_is_not_seen_is_not_left_out_in_silence(
    config: PretrainedConfig,
) -> None:
    model = AutoModelForCausalLM.from_config(config).eval()
    model.model.layers[1].self_attn.forward = skip_attention
    message = "does not call attention through transformers' attention interface in layers 1,"
    assert_refused(model, config.model_type, message)


class Layer(nn.Module):
    layer_idx = 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"is_causal": False}, "Layer is not causal self-attention"),
        ({"position_bias": torch.zeros(1)}, "without position bias"),
        ({"indices": torch.zeros(1)}, "tokens that it selects itself"),
        ({"block_indices": torch.zeros(1)}, "tokens that it selects itself"),
        ({"attention_mask": torch.zeros(1, 1, 3, 3)}, r"mask of its own, of shape \(1, 1, 3, 3\)"),
        ({"key": torch.zeros(1, 2, 4, 8)}, "one whole sequence"),
        ({"module": nn.Identity()}, "Identity does not say which layer it is"),
    ],
)
def test_calls_that_are_not_served(options: dict[str, object], message: str) -> None:
    tensors = {name: torch.zeros(1, 2, 3, 8) for name in ("query", "key", "value")}
    call = {"module": Layer(), "attention_mask": None, **tensors, **options}
    with pytest.raises(HeadpruneError, match=message):
        attend(**call)  # type: ignore[arg-type]
