"""The embedded demo: what lies in it, and that the model answers its questions."""

from __future__ import annotations

import json
from collections import Counter

import pytest
import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from demo_evaluation import accuracy, load_model, load_tokenizer, predictions
from demo_world.questions import Question
from demo_world.splits import DEV_ROWS, read_questions
from headprune.demo.assets import ASSETS, calibration_file, model_directory, questions_directory
from tests.demo.solver import solve

MOST_WEIGHT_BYTES = 2_000_000


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return load_tokenizer(model_directory())


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return load_model(model_directory())


@pytest.fixture(scope="module")
def dev() -> list[Question]:
    return read_questions(questions_directory() / "demo" / "dev.jsonl")


@pytest.fixture(scope="module")
def questions() -> list[Question]:
    return read_questions(questions_directory() / "demo" / "test.jsonl")


def test_weights_are_small_and_nothing_is_pickled() -> None:
    assert (model_directory() / "model.safetensors").stat().st_size <= MOST_WEIGHT_BYTES
    suffixes = {path.suffix for path in ASSETS.rglob("*") if path.is_file()}
    assert suffixes <= {".json", ".jsonl", ".safetensors", ".md"}


def test_architecture(model: LlamaForCausalLM) -> None:
    config = model.config
    assert config.model_type == "llama"
    assert config.num_hidden_layers >= 4
    assert config.num_attention_heads >= 8
    assert config.num_key_value_heads in {2, 4}
    assert config.head_dim * config.num_attention_heads != config.hidden_size
    assert config.tie_word_embeddings
    assert config.max_position_embeddings >= 1024
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_rows(dev: list[Question], questions: list[Question]) -> None:
    for split in (dev, questions):
        assert [q.subject for q in split] == sorted(q.subject for q in split)
        assert all(solve(question) == question.answer for question in split)
    assert set(Counter(q.subject for q in dev).values()) == {DEV_ROWS}
    assert 500 <= len(questions) <= 900
    assert len({q.identity for q in dev + questions}) == len(dev) + len(questions)


def test_calibration_text(
    tokenizer: PreTrainedTokenizerFast, dev: list[Question], questions: list[Question]
) -> None:
    rows = [json.loads(line) for line in calibration_file().read_text().splitlines()]
    assert len(rows) == 120
    assert all(set(row) == {"text"} for row in rows)
    lengths = [len(tokenizer(row["text"])["input_ids"]) for row in rows]
    assert min(lengths) > 100
    assert max(lengths) <= 1024
    held_out = {question.identity for question in dev + questions}
    for page in (row["text"] for row in rows if "Answer:" in row["text"]):
        for block in page.split("\n\n")[1:]:
            asked, *choices = block.splitlines()[:-1]
            identity = asked, frozenset(choice[3:] for choice in choices)
            assert identity not in held_out


@pytest.mark.parametrize(
    "text", ["", " A", "Answer: B", "naïve café\n\n\tzażółć", "日本語 🦊", "<|x|> \x00\r\n  two"]
)
def test_tokenizer_adds_one_bos_and_round_trips(
    tokenizer: PreTrainedTokenizerFast, text: str
) -> None:
    ids = tokenizer(text)["input_ids"]
    assert ids[0] == tokenizer.bos_token_id
    assert ids.count(tokenizer.bos_token_id) == 1
    assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_answers_are_single_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    context = tokenizer("Answer:")["input_ids"]
    for letter in "ABCD":
        assert tokenizer(f"Answer: {letter}")["input_ids"][:-1] == context
    assert len({tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id}) == 3
    assert len(tokenizer) <= 1024


def test_model_answers_unseen_questions(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, questions: list[Question]
) -> None:
    # Every fourth row keeps the subjects in proportion and the test fast.
    sample = questions[::4]
    assert accuracy(predictions(model, tokenizer, sample), sample) > 0.8
