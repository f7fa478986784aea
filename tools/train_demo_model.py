"""Builds the embedded demo: its questions, calibration text, tokenizer and model.

python tools/train_demo_model.py --output DIR
"""

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from demo_batches import Batch, Batches
from demo_evaluation import HeadHook, accuracy, head_hook, predictions, thon_ln
from demo_tokenizer import train_tokenizer
from demo_world import seeded
from demo_world.documents import calibration_documents
from demo_world.splits import TrainingQuestions, held_out_questions, write_questions
from demo_world.subjects import SUBJECTS

MAX_LENGTH = 1024
WARM_UP = 50
PEAK_LEARNING_RATE = 3e-3
WEIGHT_DECAY = 0.05
HEAD_DROPOUT = 0.1
SETTLING_STEPS, SETTLING_LEARNING_RATE = 400, 5e-4
# Heads are dropped whose output norm is under up to this share of their layer's mean.
WEAKEST = 0.85
# The letter is what the model is for.
TEXT_WEIGHT = 0.1
CALIBRATION_DOCUMENTS = 120
TOKENIZER_DOCUMENTS = 1500


def new_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Makes a grouped-query Llama with more heads than the questions need."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=16,
        max_position_embeddings=MAX_LENGTH,
        tie_word_embeddings=True,
        initializer_range=0.05,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


def loss(model: LlamaForCausalLM, batch: Batch) -> tuple[Tensor, Tensor]:
    """Cross-entropy of the answer letters, and of the text of documents."""
    states = model.model(batch.ids[:, :-1]).last_hidden_state
    letters, text = (
        functional.cross_entropy(model.lm_head(states[mask[:, 1:]]), batch.ids[mask])
        for mask in (batch.letters, batch.text)
    )
    return letters, text


def learning_rate_factor(step: int, steps: int) -> float:
    """Linear warm-up, then a cosine down to a fiftieth of the peak."""
    if step < WARM_UP:
        return (step + 1) / WARM_UP
    progress = (step - WARM_UP) / max(1, steps - WARM_UP)
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress))


def train(
    model: LlamaForCausalLM, batches: Batches, steps: int, after: Callable[[int, float], None]
) -> None:
    """Trains in place with heads dropped at random; calls `after` with each step and its loss."""
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=PEAK_LEARNING_RATE, weight_decay=WEIGHT_DECAY, betas=(0.9, 0.98)
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: learning_rate_factor(step, steps)
    )
    for step in range(1, steps + 1):
        rate = HEAD_DROPOUT * step / steps

        def drop_heads(_: int, heads: Tensor, rate: float = rate) -> Tensor:
            kept = torch.rand(heads.shape[:-1]) >= rate
            return heads * kept.unsqueeze(-1) / (1 - rate)

        value = update(model, optimizer, batches.draw(step / steps), drop_heads)
        schedule.step()
        after(step, value)


def settle(
    model: LlamaForCausalLM, batches: Batches, steps: int, after: Callable[[int, float], None]
) -> None:
    """Trains on at a small rate with the weakest heads dropped, so that they become idle.

    Large models come by idle heads in their long training; this one is too small to have many.
    """
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=SETTLING_LEARNING_RATE, weight_decay=WEIGHT_DECAY, betas=(0.9, 0.98)
    )
    for step in range(1, steps + 1):
        limit = WEAKEST * torch.rand(()).item()

        def drop_weakest(_: int, heads: Tensor, limit: float = limit) -> Tensor:
            return heads * (thon_ln(heads) >= limit).unsqueeze(-1)

        after(step, update(model, optimizer, batches.draw(1.0), drop_weakest))


def update(
    model: LlamaForCausalLM, optimizer: torch.optim.Optimizer, batch: Batch, hook: HeadHook
) -> float:
    """One step of the optimizer with `hook` on all heads; returns the loss of the letters."""
    with head_hook(model, hook):
        letters, text = loss(model, batch)
    torch.autograd.backward(letters + TEXT_WEIGHT * text)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return letters.item()


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, directory: Path) -> None:
    """Writes model and tokenizer."""
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    # transformers 5 writes its new name for the class, which older releases do not know.
    path = directory / "tokenizer_config.json"
    config = json.loads(path.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    path.write_text(json.dumps(config, indent=2) + "\n")


def main() -> None:
    """Builds everything under `--output`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=3200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    seeds = seeded(options.seed)
    started = time.monotonic()

    dev, test = held_out_questions(seeds.getrandbits(32))
    questions = TrainingQuestions(seeds.getrandbits(32), dev + test)
    write_questions(dev, options.output / "questions" / "demo" / "dev.jsonl")
    write_questions(test, options.output / "questions" / "demo" / "test.jsonl")
    documents = calibration_documents(seeds.getrandbits(32), questions, CALIBRATION_DOCUMENTS)
    (options.output / "calibration.jsonl").write_text(
        "".join(json.dumps({"text": document}) + "\n" for document in documents)
    )
    tokenizer = train_tokenizer(
        calibration_documents(seeds.getrandbits(32), questions, TOKENIZER_DOCUMENTS),
        MAX_LENGTH,
    )
    # Fresh training questions, so that no decision about training looks at the test split.
    probe = [questions.draw(subject) for subject in sorted(SUBJECTS) for _ in range(50)]
    model = new_model(tokenizer)

    def report(step: int, value: float) -> None:
        if step % 100:
            return
        model.train(mode=False)
        chosen = predictions(model, tokenizer, probe)
        by_subject = {
            subject: accuracy(chosen[start : start + 50], probe[start : start + 50])
            for start, subject in zip(range(0, len(probe), 50), sorted(SUBJECTS), strict=True)
        }
        model.train()
        seconds = time.monotonic() - started
        overall = accuracy(chosen, probe)
        print(
            f"step {step} seconds {seconds:.0f} loss {value:.3f} "
            f"accuracy {overall:.3f} {by_subject}",
            flush=True,
        )
        save(model, tokenizer, options.output / "demo-llama")

    model.train()
    train(model, Batches(tokenizer, questions, seeds.getrandbits(32)), options.steps, report)
    torch.manual_seed(seeds.getrandbits(32))
    questions = TrainingQuestions(seeds.getrandbits(32), dev + test)
    settle(model, Batches(tokenizer, questions, seeds.getrandbits(32)), SETTLING_STEPS, report)


if __name__ == "__main__":
    main()
