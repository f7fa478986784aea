"""Measures the embedded demo model: its accuracy, its idle heads and what gating them costs.

python tools/check_demo_model.py --assets DIR
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from demo_evaluation import (
    accuracy,
    gate_below,
    head_hook,
    load_model,
    load_tokenizer,
    pooled_scores,
    predictions,
    silence_layers,
)
from demo_world.questions import ANSWER_LETTERS, Question
from demo_world.splits import read_questions

FRACTIONS = (0.05, 0.10, 0.15, 0.20, 0.25, 0.30, 0.40)


def quantile(scores: Tensor, fraction: float) -> float:
    """Returns the quantile with linear interpolation; torch.quantile bounds its input's size."""
    ordered = scores.flatten().sort().values
    place = fraction * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return torch.lerp(ordered[low], ordered[high], place - low).item()


def by_subject(chosen: Sequence[int], questions: Sequence[Question]) -> dict[str, float]:
    """Returns the accuracy on each subject."""
    right: dict[str, list[bool]] = {}
    for choice, question in zip(chosen, questions, strict=True):
        right.setdefault(question.subject, []).append(choice == question.answer)
    return {subject: sum(hits) / len(hits) for subject, hits in right.items()}


def main() -> None:
    """Prints every figure that the demo's SOURCE.md reports."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--assets", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = load_model(options.assets / "demo-llama")
    tokenizer = load_tokenizer(options.assets / "demo-llama")
    dev = read_questions(options.assets / "questions" / "demo" / "dev.jsonl")
    test = read_questions(options.assets / "questions" / "demo" / "test.jsonl")
    lines = (options.assets / "calibration.jsonl").read_text().splitlines()
    documents = [json.loads(line)["text"] for line in lines]

    scores = pooled_scores(model, tokenizer, documents)
    print(f"{len(documents)} documents, {len(scores)} tokens, {len(test)} test questions")
    ungated: dict[int, float] = {}
    for shots, examples in ((0, ()), (5, dev)):
        chosen = predictions(model, tokenizer, test, examples)
        ungated[shots] = accuracy(chosen, test)
        letters = {letter: chosen.count(i) for i, letter in enumerate(ANSWER_LETTERS)}
        print(f"{shots}-shot accuracy {ungated[shots]:.4f}, letters {letters}")
        for subject, share in by_subject(chosen, test).items():
            print(f"    {subject:16} {share:.3f}")

    for fraction in FRACTIONS:
        threshold = quantile(scores, fraction)
        inactive = (scores < threshold).float().mean(dim=(0, 2)).tolist()
        drops = []
        for shots, examples in ((0, ()), (5, dev)):
            with head_hook(model, gate_below(threshold)):
                gated = accuracy(predictions(model, tokenizer, test, examples), test)
            drops.append(f"{shots}-shot {100 * (ungated[shots] - gated):+.2f}")
        print(
            f"gate {fraction:.2f} threshold {threshold:.4f} drop in points: {', '.join(drops)}; "
            f"inactive by layer: {', '.join(f'{share:.3f}' for share in inactive)}"
        )

    last = model.config.num_hidden_layers
    for layers in (range(3), range(last - 3, last)):
        with head_hook(model, silence_layers(layers)):
            left = accuracy(predictions(model, tokenizer, test), test)
        print(f"layers {list(layers)} silenced: drop {100 * (ungated[0] - left):+.2f} points")


if __name__ == "__main__":
    main()
