"""Answers questions of the demo world from their text, without the code that wrote them."""

from __future__ import annotations

import re
from collections.abc import Callable

from demo_world import lexicon
from demo_world.questions import Question

KIND_OF = {member: kind for kind, members in lexicon.KINDS.items() for member in members}
HOME_OF = {animal: home for home, animals in lexicon.HOMES.items() for animal in animals}
OPPOSITE_OF = {one: two for pair in lexicon.OPPOSITES for one, two in (pair, pair[::-1])}
CYCLES = {"day": lexicon.DAYS, "month": lexicon.MONTHS, "letter": tuple(lexicon.LETTERS)}


def neighbour(kind: str, word: str, item: str) -> str:
    items = CYCLES[kind]
    return items[(items.index(item) + {"after": 1, "before": -1}[word]) % len(items)]


def who_or_where(passage: str, choices: tuple[str, ...]) -> str:
    room_of = dict(re.findall(r"(\w+) is in the (\w+)\.", passage))
    (asked,) = re.findall(r"(?:Where is|Who is in the) (\w+)\?", passage)
    name_of = {room: name for name, room in room_of.items()}
    found = room_of.get(asked) or name_of[asked]
    assert found in choices
    return found


RULES: list[tuple[str, Callable[..., str]]] = [
    (r"Which word comes first in the alphabet\?", min),
    (r"Which word comes last in the alphabet\?", max),
    (r"Which number is the largest\?", lambda choices: max(choices, key=int)),
    (r"Which number is the smallest\?", lambda choices: min(choices, key=int)),
    (r"Where does the (\w+) live\?", lambda _, animal: HOME_OF[animal]),
    (
        r"Which animal lives in the (\w+)\?",
        lambda choices, home: only(choices, lambda choice: HOME_OF[choice] == home),
    ),
    (r"What kind of thing is an? (\w+)\?", lambda _, member: KIND_OF[member]),
    (
        r"Which of these is an? (\w+)\?",
        lambda choices, kind: only(choices, lambda choice: KIND_OF[choice] == kind),
    ),
    (r"What colour is the flag of (\w+)\?", lambda _, land: lexicon.COUNTRIES[land][0]),
    (r"What is the capital of (\w+)\?", lambda _, land: lexicon.COUNTRIES[land][1]),
    (
        r"Which (\w+) comes just (after|before) (\w+)\?",
        lambda _, kind, word, item: neighbour(kind, word, item),
    ),
    (r"What is the opposite of (\w+)\?", lambda _, word: OPPOSITE_OF[word]),
    (r"(.* (?:Where|Who) is .*\?)", lambda choices, passage: who_or_where(passage, choices)),
]


def only(choices: tuple[str, ...], fits: Callable[[str], bool]) -> str:
    (right,) = [choice for choice in choices if fits(choice)]
    return right


def solve(question: Question) -> int:
    """The index of the right choice."""
    for pattern, rule in RULES:
        if match := re.fullmatch(pattern, question.question):
            return question.choices.index(rule(question.choices, *match.groups()))
    raise AssertionError(f"no rule for {question.question!r}")
