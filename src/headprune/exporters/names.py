"""Names of the graph's inputs and outputs: optimum's for the model, our own for the gate."""

from __future__ import annotations

INPUT_IDS = "input_ids"
ATTENTION_MASK = "attention_mask"
POSITION_IDS = "position_ids"
LOGITS = "logits"

BATCH = "batch_size"
SEQUENCE = "sequence_length"
PAST = "past_sequence_length"
TOTAL = "past_sequence_length + sequence_length"

DOMAIN = "ai.headprune"
FUNCTION = "HeadGate"
THRESHOLD = "headprune.threshold"
PAST_SUM = "headprune.past.sum"
PAST_COUNT = "headprune.past.count"
PRESENT_SUM = "headprune.present.sum"
PRESENT_COUNT = "headprune.present.count"
ACTIVE = "headprune.active"


def past_names(layers: int) -> list[str]:
    """Inputs of the key-value cache, in order."""
    return [f"past_key_values.{i}.{kind}" for i in range(layers) for kind in ("key", "value")]


def present_names(layers: int) -> list[str]:
    """Outputs of the key-value cache, in order."""
    return [f"present.{i}.{kind}" for i in range(layers) for kind in ("key", "value")]


def model_inputs(layers: int) -> list[str]:
    """All inputs of an ungated graph."""
    return [INPUT_IDS, ATTENTION_MASK, POSITION_IDS, *past_names(layers)]


def model_outputs(layers: int) -> list[str]:
    """All outputs of an ungated graph."""
    return [LOGITS, *present_names(layers)]
