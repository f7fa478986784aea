"""A four-choice question and the prompt that lm-evaluation-harness renders for MMLU."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from random import Random

ANSWER_LETTERS = "ABCD"


@dataclass(frozen=True, kw_only=True)
class Question:
    """One row of a question file."""

    subject: str
    question: str
    choices: tuple[str, ...]
    answer: int

    def __post_init__(self) -> None:
        count = len(ANSWER_LETTERS)
        if len(self.choices) != count or len(set(self.choices)) != count:
            raise ValueError(f"{count} distinct choices are needed, got {self.choices}")
        if self.answer not in range(count):
            raise ValueError(f"answer must be one of 0 to {count - 1}, got {self.answer}")

    @property
    def identity(self) -> tuple[str, frozenset[str]]:
        """What makes two questions the same, in whatever order the choices stand."""
        return self.question, frozenset(self.choices)

    def to_row(self) -> dict[str, object]:
        """Returns the JSON row of a question file."""
        return asdict(self) | {"choices": list(self.choices)}


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A question whose choices have no order yet."""

    question: str
    right: str
    wrong: tuple[str, ...]

    def pose(self, subject: str, answer: int, rng: Random) -> Question:
        """Puts the right choice at place `answer` and the wrong ones around it at random."""
        choices = rng.sample(self.wrong, 3)
        choices.insert(answer, self.right)
        return Question(
            subject=subject, question=self.question, choices=tuple(choices), answer=answer
        )


def preamble(subject: str) -> str:
    """Returns the line that MMLU puts before the first question of a prompt."""
    name = subject.replace("_", " ")
    return f"The following are multiple choice questions (with answers) about {name}.\n\n"


def render(question: Question) -> str:
    """Returns the question with its choices, up to and including `Answer:`."""
    lines = [question.question]
    lines += [
        f"{letter}. {choice}"
        for letter, choice in zip(ANSWER_LETTERS, question.choices, strict=True)
    ]
    return "\n".join([*lines, "Answer:"])


def continuation(question: Question) -> str:
    """Returns the text that answers the question."""
    return f" {ANSWER_LETTERS[question.answer]}"


def prompt(question: Question, shots: Sequence[Question] = ()) -> str:
    """Returns the complete MMLU prompt of a question after answered examples."""
    examples = "".join(f"{render(shot)}{continuation(shot)}\n\n" for shot in shots)
    return preamble(question.subject) + examples + render(question)
