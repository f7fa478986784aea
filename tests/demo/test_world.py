"""The question world: right answers, disjoint splits, the MMLU template."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from demo_world import lexicon, seeded
from demo_world.documents import calibration_documents
from demo_world.questions import Question, continuation, prompt
from demo_world.splits import (
    DEV_ROWS,
    TrainingQuestions,
    held_out_questions,
    read_questions,
    write_questions,
)
from demo_world.subjects import SUBJECTS, draw
from tests.demo.solver import solve

SEED = 7


@pytest.mark.parametrize("subject", sorted(SUBJECTS))
def test_answers_are_right(subject: str) -> None:
    rng = seeded(SEED)
    for _ in range(300):
        question = draw(subject, rng)
        assert question.subject == subject
        assert len(set(question.choices)) == 4
        assert solve(question) == question.answer, question


def test_same_seed_same_questions() -> None:
    assert held_out_questions(SEED) == held_out_questions(SEED)
    assert held_out_questions(SEED) != held_out_questions(SEED + 1)
    one, two = (TrainingQuestions(SEED, []) for _ in range(2))
    assert [one.draw("opposites") for _ in range(50)] == [two.draw("opposites") for _ in range(50)]


def test_splits_are_balanced_and_disjoint() -> None:
    dev, test = held_out_questions(SEED)
    assert len({question.identity for question in dev + test}) == len(dev) + len(test)
    asked = {subject: rows for subject, (_, rows) in SUBJECTS.items() if rows}
    assert len(asked) >= 6
    assert Counter(question.subject for question in dev) == dict.fromkeys(asked, DEV_ROWS)
    assert Counter(question.subject for question in test) == asked
    letters = Counter(question.answer for question in test)
    assert max(letters.values()) - min(letters.values()) <= len(SUBJECTS)


# next_item has few enough questions that most of what is held out would soon be drawn.
@pytest.mark.parametrize("hardness", [1.0, 0.5])
def test_training_rejects_what_is_held_out(hardness: float) -> None:
    dev, test = held_out_questions(SEED)
    held_out = {question.identity for question in dev + test}
    questions = TrainingQuestions(SEED, dev + test)
    unfiltered = TrainingQuestions(SEED, [])
    assert any(unfiltered.draw("next_item").identity in held_out for _ in range(3000))
    for subject in ("next_item", "animal_homes"):
        for _ in range(3000):
            assert questions.draw(subject, hardness).identity not in held_out


def test_the_easiest_wrong_choices_are_household_things() -> None:
    questions = TrainingQuestions(SEED, [])
    for subject in SUBJECTS:
        question = questions.draw(subject, hardness=0.0)
        wrong = {c for i, c in enumerate(question.choices) if i != question.answer}
        assert len(wrong) == 3
        assert wrong <= set(lexicon.HOUSEHOLD)


def test_prompt_follows_the_mmlu_template() -> None:
    shot = Question(
        subject="number_size", question="Which is 1?", choices=("1", "2", "3", "4"), answer=0
    )
    asked = Question(
        subject="number_size", question="Which is 8?", choices=("5", "6", "7", "8"), answer=3
    )
    assert prompt(asked, [shot]) == (
        "The following are multiple choice questions (with answers) about number size.\n\n"
        "Which is 1?\nA. 1\nB. 2\nC. 3\nD. 4\nAnswer: A\n\n"
        "Which is 8?\nA. 5\nB. 6\nC. 7\nD. 8\nAnswer:"
    )
    assert continuation(asked) == " D"


@pytest.mark.parametrize(("choices", "answer"), [("AABC", 0), ("ABC", 0), ("ABCD", 4)])
def test_question_refuses(choices: str, answer: int) -> None:
    with pytest.raises(ValueError, match=r"distinct choices|answer must be"):
        Question(subject="s", question="q", choices=tuple(choices), answer=answer)


def test_questions_survive_their_file(tmp_path: Path) -> None:
    dev, _ = held_out_questions(SEED)
    write_questions(dev, tmp_path / "questions" / "dev.jsonl")
    assert read_questions(tmp_path / "questions" / "dev.jsonl") == dev


def test_calibration_documents_are_varied_and_reproducible() -> None:
    documents = calibration_documents(SEED, TrainingQuestions(SEED, []), 24)
    assert documents == calibration_documents(SEED, TrainingQuestions(SEED, []), 24)
    assert len(set(documents)) == 24
    pages = [document for document in documents if "Answer:" in document]
    assert len({page.splitlines()[0] for page in pages}) == len(SUBJECTS)
