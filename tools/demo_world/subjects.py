"""One generator of questions per subject."""

from collections.abc import Callable, Sequence
from random import Random

from demo_world import lexicon
from demo_world.questions import Draft, Question

Generator = Callable[[Random], Draft]


def others(rng: Random, items: Sequence[str], *excluded: str) -> tuple[str, ...]:
    """Draws three of `items`, none of them excluded."""
    return tuple(rng.sample([item for item in items if item not in excluded], 3))


def alphabet_order(rng: Random) -> Draft:
    """Which of four words comes first or last in the alphabet; first letters differ."""
    by_letter: dict[str, list[str]] = {}
    for members in lexicon.KINDS.values():
        for word in members:
            by_letter.setdefault(word[0], []).append(word)
    words = [rng.choice(by_letter[letter]) for letter in sorted(rng.sample(sorted(by_letter), 4))]
    place, right = rng.choice((("first", 0), ("last", -1)))
    return Draft(
        question=f"Which word comes {place} in the alphabet?",
        right=words.pop(right),
        wrong=tuple(words),
    )


def animal_homes(rng: Random) -> Draft:
    """Where an animal of the world lives, or which animal lives somewhere."""
    home = rng.choice(sorted(lexicon.HOMES))
    animal = rng.choice(lexicon.HOMES[home])
    if rng.random() < 0.5:
        return Draft(
            question=f"Where does the {animal} live?",
            right=home,
            wrong=others(rng, sorted(lexicon.HOMES), home),
        )
    elsewhere = [a for h, animals in lexicon.HOMES.items() if h != home for a in animals]
    return Draft(
        question=f"Which animal lives in the {home}?", right=animal, wrong=others(rng, elsewhere)
    )


def categories(rng: Random) -> Draft:
    """Which of four things belongs to a category, or which category a thing belongs to."""
    kind = rng.choice(sorted(lexicon.KINDS))
    member = rng.choice(lexicon.KINDS[kind])
    if rng.random() < 0.5:
        return Draft(
            question=f"What kind of thing is {lexicon.with_article(member)}?",
            right=kind,
            wrong=others(rng, sorted(lexicon.KINDS), kind),
        )
    foreign = [m for k, members in lexicon.KINDS.items() if k != kind for m in members]
    return Draft(
        question=f"Which of these is {lexicon.with_article(kind)}?",
        right=member,
        wrong=others(rng, foreign),
    )


def geography(rng: Random) -> Draft:
    """The colour of a country's flag, or its capital."""
    country = rng.choice(sorted(lexicon.COUNTRIES))
    colour, capital = lexicon.COUNTRIES[country]
    if rng.random() < 0.5:
        return Draft(
            question=f"What colour is the flag of {country}?",
            right=colour,
            wrong=others(rng, lexicon.COLOURS, colour),
        )
    capitals = [town for _, town in lexicon.COUNTRIES.values()]
    return Draft(
        question=f"What is the capital of {country}?",
        right=capital,
        wrong=others(rng, capitals, capital),
    )


def next_item(rng: Random) -> Draft:
    """What stands just after or before an item of a well-known order."""
    name, items = rng.choice(
        (("day", lexicon.DAYS), ("month", lexicon.MONTHS), ("letter", tuple(lexicon.LETTERS)))
    )
    word, step = rng.choice((("after", 1), ("before", -1)))
    # Letters have an end, days and months go round.
    start = rng.randrange(1, len(items) - 1) if name == "letter" else rng.randrange(len(items))
    item, right = items[start], items[(start + step) % len(items)]
    return Draft(
        question=f"Which {name} comes just {word} {item}?",
        right=right,
        wrong=others(rng, items, item, right),
    )


def number_size(rng: Random) -> Draft:
    """The largest or smallest of four numbers."""
    numbers = sorted(rng.sample(range(1, lexicon.LARGEST_NUMBER + 1), 4))
    word, right = rng.choice((("largest", -1), ("smallest", 0)))
    return Draft(
        question=f"Which number is the {word}?",
        right=str(numbers.pop(right)),
        wrong=tuple(map(str, numbers)),
    )


def opposites(rng: Random) -> Draft:
    """The opposite of an adjective."""
    word, right = rng.sample(rng.choice(lexicon.OPPOSITES), 2)
    adjectives = [adjective for pair in lexicon.OPPOSITES for adjective in pair]
    return Draft(
        question=f"What is the opposite of {word}?",
        right=right,
        wrong=others(rng, adjectives, word, right),
    )


def short_passages(rng: Random) -> Draft:
    """A fact read out of the three or four sentences that stand in the question."""
    count = rng.choice((3, 4))
    names = rng.sample(lexicon.NAMES, 4)
    rooms = rng.sample(lexicon.ROOMS, 4)
    asked = rng.randrange(count)
    passage = " ".join(f"{names[i]} is in the {rooms[i]}." for i in range(count))
    if rng.random() < 0.5:
        question, choices = f"{passage} Where is {names[asked]}?", rooms
    else:
        question, choices = f"{passage} Who is in the {rooms[asked]}?", names
    right = choices.pop(asked)
    return Draft(question=question, right=right, wrong=tuple(choices))


# Subject -> (its generator, how many rows the test split has of it). Short passages are trained on
# and never asked: a model of this size stays at chance on them.
SUBJECTS: dict[str, tuple[Generator, int]] = {
    "alphabet_order": (alphabet_order, 80),
    "animal_homes": (animal_homes, 90),
    "categories": (categories, 110),
    "geography": (geography, 70),
    "next_item": (next_item, 90),
    "number_size": (number_size, 80),
    "opposites": (opposites, 100),
    "short_passages": (short_passages, 0),
}


def draw(subject: str, rng: Random) -> Question:
    """Draws one question of a subject, the right choice at a random place."""
    return SUBJECTS[subject][0](rng).pose(subject, rng.randrange(4), rng)
