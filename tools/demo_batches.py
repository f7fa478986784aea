"""Training batches: rows of answered questions of one subject, and documents of prose."""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from demo_world import seeded
from demo_world.documents import prose, question_page
from demo_world.splits import TrainingQuestions
from demo_world.subjects import SUBJECTS

# The letter is what the model is for; the rest of a question is mostly unpredictable.
LETTER_WEIGHT, QUESTION_WEIGHT, DOCUMENT_WEIGHT = 1.0, 0.01, 0.1

# Curriculum: how to carry the letter of a choice to the answer is found in the first steps, when
# every wrong choice is a filler word; real distractors then come in little by little.
FILLERS_ALONE_UNTIL = 150
FILLERS_UNTIL = 1700
FIRST_FILLER_SHARE = 0.85

# A row's first question is answered without examples, its sixth after five.
ONE_QUESTION_UNTIL = 1200
QUESTIONS_PER_ROW = (1, 1, 2, 3, 6)
QUESTIONS_PER_BATCH = 48
PROSE_SENTENCES = (6, 12)


def filler_share(step: int) -> float:
    """Returns how probably a wrong choice is a filler word at a step of training."""
    if step < FILLERS_ALONE_UNTIL:
        return 1.0
    left = (FILLERS_UNTIL - step) / (FILLERS_UNTIL - FILLERS_ALONE_UNTIL)
    return FIRST_FILLER_SHARE * max(0.0, left)


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Right-padded token ids and the loss weight of each. [row, position]"""

    ids: Tensor
    weights: Tensor


class Batches:
    """An endless supply of training batches."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, questions: TrainingQuestions, seed: int
    ) -> None:
        self._tokenizer = tokenizer
        self._questions = questions
        self._rng = seeded(seed)
        self._subjects = sorted(SUBJECTS)
        self._answer_mark = [tokenizer.convert_tokens_to_ids(mark) for mark in ("Answer", ":")]

    def draw(self, step: int) -> Batch:
        """Draws the batch of a step; all its rows of questions hold the same number of them."""
        count = 1 if step < ONE_QUESTION_UNTIL else self._rng.choice(QUESTIONS_PER_ROW)
        pages = [
            question_page(
                self._questions, self._rng.choice(self._subjects), count, filler_share(step)
            )
            for _ in range(QUESTIONS_PER_BATCH // count)
        ]
        documents = [prose(self._rng, count * self._rng.randint(*PROSE_SENTENCES))]
        rows: list[list[int]] = self._tokenizer(pages + documents)["input_ids"]
        length = max(map(len, rows))
        ids = torch.full((len(rows), length), self._tokenizer.pad_token_id)
        weights = torch.zeros(len(rows), length)
        for index, row in enumerate(rows):
            ids[index, : len(row)] = torch.tensor(row)
            weights[index, : len(row)] = (
                self._question_weights(row) if index < len(pages) else DOCUMENT_WEIGHT
            )
        return Batch(ids=ids, weights=weights)

    def _question_weights(self, row: list[int]) -> Tensor:
        return torch.tensor(
            [
                LETTER_WEIGHT
                if row[position - 2 : position] == self._answer_mark
                else QUESTION_WEIGHT
                for position in range(len(row))
            ]
        )
