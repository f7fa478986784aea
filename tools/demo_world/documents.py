"""Documents of the demo world: templated prose, and pages of answered questions."""

from collections.abc import Callable
from random import Random

from demo_world import lexicon, seeded
from demo_world.lexicon import with_article
from demo_world.questions import continuation, preamble, render
from demo_world.splits import TrainingQuestions
from demo_world.subjects import SUBJECTS

Sentence = Callable[[Random], str]
CARRIED = ("flower", "fruit", "garment", "instrument", "tool", "vegetable")


def capitalised(text: str) -> str:
    """Raises the first letter alone, so that names further on keep theirs."""
    return text[0].upper() + text[1:]


def about_kinds(rng: Random) -> str:
    """Says what kind of thing a word names."""
    kind = rng.choice(sorted(lexicon.KINDS))
    one, two = rng.sample(lexicon.KINDS[kind], 2)
    return rng.choice(
        (
            f"{with_article(one)} is {with_article(kind)}, and so is {with_article(two)}.",
            f"the {one} and the {two} are both called {with_article(kind)}.",
            f"if you ask for {with_article(kind)}, you may be given {with_article(one)}.",
        )
    )


def about_opposites(rng: Random) -> str:
    """Sets an adjective against its opposite."""
    one, two = rng.sample(rng.choice(lexicon.OPPOSITES), 2)
    return rng.choice(
        (
            f"the opposite of {one} is {two}.",
            f"what is not {one} may be {two}.",
            f"nothing is {one} and {two} at the same time.",
        )
    )


def about_homes(rng: Random) -> str:
    """Says where an animal lives."""
    home = rng.choice(sorted(lexicon.HOMES))
    animal, other = rng.sample(lexicon.HOMES[home], 2)
    return rng.choice(
        (
            f"the {animal} lives in the {home}.",
            f"in the {home} you can meet the {animal} and the {other}.",
            f"the home of the {animal} is the {home}, where the {other} lives too.",
        )
    )


def about_countries(rng: Random) -> str:
    """Names the flag or the capital of a country."""
    country, (colour, capital) = rng.choice(sorted(lexicon.COUNTRIES.items()))
    return rng.choice(
        (
            f"the flag of {country} is {colour} and the capital is {capital}.",
            f"{capital} is the capital of {country}.",
            f"when you come to {country}, you will see a {colour} flag.",
        )
    )


def about_order(rng: Random) -> str:
    """Puts two days, months or letters in order."""
    name, items = rng.choice((("day", lexicon.DAYS), ("month", lexicon.MONTHS)))
    start = rng.randrange(len(items))
    item, following = items[start], items[(start + 1) % len(items)]
    letter = rng.randrange(len(lexicon.LETTERS) - 1)
    first, second = lexicon.LETTERS[letter], lexicon.LETTERS[letter + 1]
    return rng.choice(
        (
            f"the {name} just after {item} is {following}.",
            f"{item} comes just before {following}.",
            f"the letter {first} comes before the letter {second} in the alphabet.",
        )
    )


def about_numbers(rng: Random) -> str:
    """Compares two or three numbers."""
    small, middle, large = sorted(rng.sample(range(1, lexicon.LARGEST_NUMBER + 1), 3))
    return rng.choice(
        (
            f"the number {large} is larger than {small}.",
            f"of {middle}, {large} and {small} the largest number is {large}.",
            f"from small to large they are {small}, {middle} and {large}.",
        )
    )


def about_houses(rng: Random) -> str:
    """Tells which things stand in a room."""
    one, two = rng.sample(lexicon.HOUSEHOLD, 2)
    room = rng.choice(lexicon.ROOMS)
    return rng.choice(
        (
            f"there is {with_article(one)} in the {room}, next to {with_article(two)}.",
            f"in the {room} you can find {with_article(one)}.",
        )
    )


def about_people(rng: Random) -> str:
    """Tells who is where, or who has what."""
    one, two = rng.sample(lexicon.NAMES, 2)
    room, other_room = rng.sample(lexicon.ROOMS, 2)
    thing = rng.choice(lexicon.KINDS[rng.choice(CARRIED)])
    colour, day = rng.choice(lexicon.COLOURS), rng.choice(lexicon.DAYS)
    return rng.choice(
        (
            f"on {day} {one} is in the {room}. {two} is in the {other_room}.",
            f"{one} has {with_article(colour)} {thing}, and {two} looks for it in the {room}.",
            f"{one} gives the {thing} to {two}. Now {two} has the {thing}.",
            f"{one} leaves the {room} and goes to the {other_room}, where {two} is.",
        )
    )


SENTENCES: tuple[Sentence, ...] = (
    about_kinds,
    about_opposites,
    about_homes,
    about_countries,
    about_order,
    about_numbers,
    about_houses,
    about_people,
)


def prose(rng: Random, sentences: int) -> str:
    """Writes paragraphs of three to six sentences, each about one or two topics."""
    paragraphs: list[str] = []
    while sentences > 0:
        topics = rng.sample(SENTENCES, 2)
        length = min(sentences, rng.randint(3, 6))
        sentences -= length
        paragraphs.append(" ".join(capitalised(rng.choice(topics)(rng)) for _ in range(length)))
    return "\n\n".join(paragraphs)


def question_page(
    questions: TrainingQuestions, subject: str, count: int, hardness: float = 1.0
) -> str:
    """Writes a prompt of `count` answered questions of one subject."""
    drawn = [questions.draw(subject, hardness) for _ in range(count)]
    return preamble(subject) + "\n\n".join(render(q) + continuation(q) for q in drawn)


def calibration_documents(seed: int, questions: TrainingQuestions, count: int) -> list[str]:
    """Writes `count` documents; every third is a page of questions, the others are prose."""
    rng = seeded(seed)
    subjects = sorted(SUBJECTS)
    return [
        question_page(questions, subjects[index // 3 % len(subjects)], rng.randint(5, 7))
        if index % 3 == 2
        else prose(rng, rng.randint(20, 40))
        for index in range(count)
    ]
