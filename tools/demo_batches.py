"""Training batches: rows of answered questions of one subject, and documents."""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from demo_world import seeded
from demo_world.documents import prose, question_page
from demo_world.splits import TrainingQuestions
from demo_world.subjects import SUBJECTS

# What is learned when, by the share of training that is done. To find the right choice and to name
# its letter are learned one after the other; together they are not. So the first questions are of
# one subject, and beside the right choice stand only things that no question asks for. Then these
# give way to the subject's own wrong choices, and last the other subjects come.
FIRST_SUBJECT = "categories"
EASY_UNTIL, FIRST_HARD_FROM = 0.04, 0.25
ALL_FROM, ALL_HARD_FROM = 0.22, 0.5
LEAST_HARDNESS = 0.15
QUESTIONS_PER_BATCH = 48
DOCUMENTS, SENTENCES = 2, 4
# A row's first question is answered without examples, its sixth after five.
LATE_FROM = 0.6
LATE_QUESTIONS_PER_ROW = (1, 1, 2, 6)


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Right-padded token ids, and which of them are predicted. [row, position]"""

    ids: Tensor
    letters: Tensor
    text: Tensor


class Batches:
    """An endless supply of training batches."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, questions: TrainingQuestions, seed: int
    ) -> None:
        self._tokenizer = tokenizer
        self._questions = questions
        self._rng = seeded(seed)
        self._subjects = sorted(SUBJECTS)
        self._letters = {tokenizer.convert_tokens_to_ids(f"Ġ{letter}") for letter in "ABCD"}
        self._answer_mark = [tokenizer.convert_tokens_to_ids(mark) for mark in ("Answer", ":")]

    def draw(self, progress: float) -> Batch:
        """Draws one batch; all its rows of questions hold the same number of them.

        Args:
            progress: The share of training that is done.
        """
        count = self._rng.choice(LATE_QUESTIONS_PER_ROW) if progress > LATE_FROM else 1
        pages = [self._page(progress, count) for _ in range(QUESTIONS_PER_BATCH // count)]
        documents = [prose(self._rng, SENTENCES * count) for _ in range(DOCUMENTS)]
        rows: list[list[int]] = self._tokenizer(pages + documents)["input_ids"]
        length = max(map(len, rows))
        ids = torch.full((len(rows), length), self._tokenizer.pad_token_id)
        letters = torch.zeros(len(rows), length, dtype=torch.bool)
        text = torch.zeros(len(rows), length, dtype=torch.bool)
        for index, row in enumerate(rows):
            ids[index, : len(row)] = torch.tensor(row)
            if index < len(pages):
                letters[index, : len(row)] = torch.tensor(self._are_letters(row))
            else:
                text[index, 1 : len(row)] = True
        return Batch(ids=ids, letters=letters, text=text)

    def _page(self, progress: float, count: int) -> str:
        subject = self._rng.choice(self._subjects) if progress > ALL_FROM else FIRST_SUBJECT
        if subject == FIRST_SUBJECT:
            hardness = ramp(progress, EASY_UNTIL, FIRST_HARD_FROM)
        else:
            hardness = ramp(progress, ALL_FROM, ALL_HARD_FROM)
        return question_page(self._questions, subject, count, hardness)

    def _are_letters(self, row: list[int]) -> list[bool]:
        return [
            token in self._letters and row[position - 2 : position] == self._answer_mark
            for position, token in enumerate(row)
        ]


def ramp(progress: float, start: float, end: float) -> float:
    """Probability that a wrong choice is one of the subject's own, rising from `start` to `end`."""
    if progress < start:
        return 0.0
    return min(1.0, LEAST_HARDNESS + (1 - LEAST_HARDNESS) * (progress - start) / (end - start))
