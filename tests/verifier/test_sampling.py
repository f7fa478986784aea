"""Which questions are asked."""

from __future__ import annotations

from collections import Counter

import pytest

from headprune.verifier.sampling import draw

SIZES = {"anatomy": 30, "astronomy": 100, "empty": 0, "virology": 10}


def test_all_questions_by_default_and_when_more_are_asked_for() -> None:
    everything = {
        "anatomy": list(range(30)),
        "astronomy": list(range(100)),
        "virology": list(range(10)),
    }
    assert draw(SIZES, None, 0) == everything
    assert draw(SIZES, 140, 0) == everything
    assert draw(SIZES, 9999, 0) == everything


@pytest.mark.parametrize("samples", [1, 2, 40, 139])
def test_draw_is_seeded_sorted_and_of_the_size_asked_for(samples: int) -> None:
    first = draw(SIZES, samples, 1)
    assert first == draw(SIZES, samples, 1)
    assert sum(map(len, first.values())) == samples
    for part, indices in first.items():
        assert indices == sorted(set(indices))
        assert 0 <= indices[0] <= indices[-1] < SIZES[part]


def test_draw_is_neither_the_first_rows_nor_always_the_same() -> None:
    drawn = draw(SIZES, 40, 1)
    assert drawn != draw(SIZES, 40, 2)
    assert all(indices != list(range(len(indices))) for indices in drawn.values())


def test_every_question_is_as_likely_as_any_other() -> None:
    seen = Counter(
        part for seed in range(400) for part, i in draw(SIZES, 14, seed).items() for _ in i
    )
    assert seen["anatomy"] / 5600 == pytest.approx(30 / 140, abs=0.02)
    assert seen["virology"] / 5600 == pytest.approx(10 / 140, abs=0.02)
