"""A random Llama over bytes, exported with a gate, and questions in the layout of `--data`."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

from headprune.analyzer.loading import load_model
from headprune.manifests import (
    CalibrationInfo,
    CalibrationSource,
    Gate,
    HeadStatistics,
    Manifest,
    ScoreSummary,
    Threshold,
)

LAYERS, HEADS, LENGTH = 2, 4, 512
SUBJECTS = ("anatomy", "astronomy", "virology")
GATE = Gate(
    score="thon_ln", granularity="token", inactive_when="below", mode="dynamic", threshold=0.9
)
STATIC = replace(GATE, mode="static", heads=((0, 1), (1, 2)), share=0.5)


def byte_tokenizer(*, bos: bool, letters: bool = True) -> PreTrainedTokenizerFast:
    """One token per byte, and one for a space and a letter; with or without a BOS in front."""
    space = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(" ")[0][0]
    merges = [(space, letter) for letter in "ABCD"] if letters else []
    tokens = ["<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet()), *map("".join, merges)]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 0)]
        )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")


def save_checkpoint(directory: Path, *, seed: int = 0, bos: bool = True) -> None:
    """Write a random model whose weights are large enough that its answers differ."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=262, hidden_size=32, intermediate_size=48, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=2, max_position_embeddings=LENGTH,
        bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.4)
    model.save_pretrained(directory)
    byte_tokenizer(bos=bos).save_pretrained(directory)


def make_manifest(checkpoint: Path) -> Manifest:
    """A manifest of the model with invented scores."""
    loaded = load_model(str(checkpoint), dtype="float32")
    table = tuple((1.0,) * HEADS for _ in range(LAYERS))
    heads = HeadStatistics(
        mean=table, std=table, minimum=table, q25=table, median=table, q75=table, maximum=table,
        inactive_share=(table,),
    )  # fmt: skip
    score = ScoreSummary(
        granularity="token",
        inactive_when="below",
        quantiles=(1.0,) * 101,
        thresholds=(Threshold(fraction=0.1, threshold=1.0),),
        heads=heads,
    )
    return Manifest(
        tool_version="0.1.0",
        model=loaded.info,
        tokenizer=loaded.tokenizer_info,
        calibration=CalibrationInfo(
            sources=(
                CalibrationSource(
                    name="test", kind="builtin", weight=1.0, documents=1, sequences=1
                ),
            ),
            sha256="0" * 64, sequences=1, tokens=1, length_range=(1, 1), seed=0,
            cut=0, skipped=0, duplicates=0,
        ),
        scores={"thon_ln": score},
    )  # fmt: skip


def make_question(number: int) -> dict[str, object]:
    """A question like MMLU's, with an arbitrary key."""
    rng = random.Random(number)  # noqa: S311 - questions, not secrets
    words = ["".join(rng.choices("abcdefghijklmnop", k=rng.randint(2, 7))) for _ in range(5)]
    return {
        "subject": SUBJECTS[number % len(SUBJECTS)],
        "question": f"Which is {words[0]}?",
        "choices": words[1:],
        "answer": rng.randrange(4),
    }


def write_jsonl(path: Path, rows: list[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
