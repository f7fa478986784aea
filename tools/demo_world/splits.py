"""The dev, test and training splits: disjoint, balanced and reproducible."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from demo_world import lexicon, seeded
from demo_world.questions import Question
from demo_world.subjects import SUBJECTS, draw

DEV_ROWS = 5


def held_out_questions(seed: int) -> tuple[list[Question], list[Question]]:
    """Draws the dev and the test split, sorted by subject, with balanced answer letters."""
    rng = seeded(seed)
    dev: list[Question] = []
    test: list[Question] = []
    seen: set[tuple[str, frozenset[str]]] = set()
    for subject, (generator, test_rows) in sorted(SUBJECTS.items()):
        for split, rows in ((dev, DEV_ROWS), (test, test_rows)) if test_rows else ():
            answers = [row % 4 for row in range(rows)]
            rng.shuffle(answers)
            while answers:
                question = generator(rng).pose(subject, answers[-1], rng)
                if question.identity not in seen:
                    seen.add(question.identity)
                    split.append(question)
                    answers.pop()
    return dev, test


class TrainingQuestions:
    """An endless supply of questions that are neither in the dev nor in the test split."""

    def __init__(self, seed: int, held_out: Iterable[Question]) -> None:
        self._rng = seeded(seed)
        self._held_out = {question.identity for question in held_out}

    def draw(self, subject: str, hardness: float = 1.0) -> Question:
        """Draws a training question of the subject.

        Args:
            subject: Its subject.
            hardness: Probability that a wrong choice is one of the subject's own. The others are
                things that no question asks for.
        """
        while True:
            question = draw(subject, self._rng)
            if question.identity not in self._held_out:
                return self._eased(question, hardness)

    def _eased(self, question: Question, hardness: float) -> Question:
        easy = self._rng.sample(lexicon.HOUSEHOLD, len(question.choices))
        choices = tuple(
            choice if place == question.answer or self._rng.random() < hardness else easy[place]
            for place, choice in enumerate(question.choices)
        )
        return replace(question, choices=choices)


def write_questions(questions: Sequence[Question], path: Path) -> None:
    """Writes one JSON row per question."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(question.to_row()) + "\n" for question in questions))


def read_questions(path: Path) -> list[Question]:
    """Reads a file that `write_questions` wrote."""
    rows = map(json.loads, path.read_text().splitlines())
    return [Question(**row | {"choices": tuple(row["choices"])}) for row in rows]
