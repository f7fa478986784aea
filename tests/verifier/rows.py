"""Synthetic rows with a wished-for 2 x 2 table."""

from __future__ import annotations

import math
from dataclasses import replace

from headprune.verifier.decision import Terms
from headprune.verifier.model import Row, TaskSetup, make_answer

TERMS = Terms(margin=1.0, dynamic_gate=True, token_cells=True, own_baseline=True, same_graph=False)
SETUP = TaskSetup(
    name="demo", letters=True, complete=True, available=1000, shots=0, shots_from="none",
    truncated=0, data_sha256="0" * 64,
)  # fmt: skip
SUBSET = replace(SETUP, complete=False)


def make_row(
    doc: int, *, baseline_right: bool, candidate_right: bool, choices: int = 4, gated: float = 0.1
) -> Row:
    gold = doc % choices
    wrong = (gold + 1 + doc // choices % (choices - 1)) % choices

    def lls(choice: int) -> list[float]:
        return [-1.0 if index == choice else -2.0 - index / 8 for index in range(choices)]

    return Row(
        task="demo",
        subject=f"subject {doc % 2}",
        doc=doc,
        gold=gold,
        tokens=10 + doc,
        baseline=make_answer(lls(gold if baseline_right else wrong), 0.0),
        candidate=make_answer(lls(gold if candidate_right else wrong), gated),
    )


def make_rows(
    *, both: int, losses: int = 0, gains: int = 0, neither: int = 0, choices: int = 4
) -> list[Row]:
    kinds = [(True, True)] * both + [(True, False)] * losses + [(False, True)] * gains
    kinds += [(False, False)] * neither
    return [
        make_row(doc, baseline_right=before, candidate_right=after, choices=choices)
        for doc, (before, after) in enumerate(kinds)
    ]


def always_letter(rows: list[Row], who: str, letter: int) -> list[Row]:
    """Rows in which one model gives the same choice to every question."""
    answer = make_answer([0.0 if index == letter else -3.0 for index in range(4)], 0.1)
    return [replace(row, **{who: replace(answer, gated=getattr(row, who).gated)}) for row in rows]


def broken(rows: list[Row], who: str, value: float = math.nan) -> list[Row]:
    """Rows of which the first has a score that is not finite."""
    first = replace(rows[0], **{who: make_answer([value, -1.0, -1.0, -1.0], 0.1)})
    return [first, *rows[1:]]
