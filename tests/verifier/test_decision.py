"""The decision as a table: rows and terms in, status out."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from headprune.verifier.decision import combine, decide_task, mismatches
from headprune.verifier.model import FileHash, Fingerprint, Row, TaskResult, TaskSetup

from .rows import SETUP, SUBSET, TERMS, always_letter, broken, make_row, make_rows


def status(rows: list[Row], setup: TaskSetup = SETUP, **terms: object) -> str:
    return decide_task(rows, setup, replace(TERMS, **terms)).status  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("losses", "gains", "margin", "expected"),
    [
        (0, 0, 1.0, "PASS"),
        (10, 0, 1.0, "PASS"),  # exactly the margin
        (11, 0, 1.0, "FAIL"),
        (60, 50, 1.0, "PASS"),
        (61, 50, 1.0, "FAIL"),
        (0, 30, 0.0, "PASS"),
        (0, 0, 0.0, "PASS"),
        (1, 0, 0.0, "FAIL"),
        (7, 0, 0.7, "PASS"),
        (8, 0, 0.7, "FAIL"),
    ],
)
def test_complete_task_is_decided_by_the_observed_difference(
    losses: int, gains: int, margin: float, expected: str
) -> None:
    rows = make_rows(both=800 - losses, losses=losses, gains=gains, neither=200 - gains)
    result = decide_task(rows, SETUP, replace(TERMS, margin=margin))
    assert result.status == expected
    assert result.difference == pytest.approx((gains - losses) / 10)
    counts = result.counts
    assert (counts.baseline_only, counts.candidate_only) == (losses, gains)
    assert (counts.both_right, counts.both_wrong) == (800 - losses, 200 - gains)
    assert result.flips == pytest.approx((losses + gains) / 1000)


@pytest.mark.parametrize(
    ("losses", "gains", "expected"),
    [
        (0, 0, "PASS"),
        (3, 3, "PASS"),
        (10, 0, "INCONCLUSIVE"),  # a complete task would pass
        (30, 30, "INCONCLUSIVE"),
        (40, 5, "FAIL"),
    ],
)
def test_subset_is_decided_by_the_bounds(losses: int, gains: int, expected: str) -> None:
    rows = make_rows(both=800 - losses, losses=losses, gains=gains, neither=200 - gains)
    result = decide_task(rows, SUBSET, TERMS)
    assert result.status == expected
    low, high = result.interval.low, result.interval.high
    assert {"PASS": low > -1, "FAIL": high < -1, "INCONCLUSIVE": low <= -1 <= high}[expected]


def test_small_sample_without_flips_does_not_pass() -> None:
    assert status(make_rows(both=260), SUBSET) == "INCONCLUSIVE"
    assert status(make_rows(both=270), SUBSET) == "PASS"


@pytest.mark.parametrize("who", ["baseline", "candidate"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_scores_that_are_not_finite_are_invalid(who: str, value: float) -> None:
    rows = broken(make_rows(both=800, neither=200), who, value)
    result = decide_task(rows, SETUP, TERMS)
    assert result.status == "INVALID"
    assert f"the {who}'s scores are not finite in 1 of 1,000" in result.reasons[0]
    assert result.divergence is None


def test_two_models_at_chance_are_invalid() -> None:
    rows = make_rows(both=255, neither=745)
    result = decide_task(rows, SETUP, TERMS)
    assert result.status == "INVALID"
    assert "guessing (25%) can explain" in result.reasons[0]


def test_baseline_near_chance_is_invalid_by_the_margin() -> None:
    assert status(make_rows(both=299, neither=701)) == "INVALID"
    assert status(make_rows(both=300, neither=700)) == "PASS"
    assert status(make_rows(both=300, neither=700), margin=2.0) == "INVALID"


def test_chance_follows_the_number_of_choices() -> None:
    setup = replace(SETUP, letters=False)
    result = decide_task(make_rows(both=530, neither=470, choices=2), setup, TERMS)
    assert result.chance == 0.5
    assert result.status == "INVALID"
    assert status(make_rows(both=650, neither=350, choices=2), setup) == "PASS"


def test_baseline_of_one_letter_is_invalid() -> None:
    rows = [make_row(4 * n, baseline_right=True, candidate_right=True) for n in range(400)]
    assert status(rows) == "INVALID"
    assert status(rows, replace(SETUP, letters=False)) == "PASS"


def test_collapsed_candidate_fails_whatever_the_margin() -> None:
    rows = always_letter(make_rows(both=900, neither=100), "candidate", 2)
    result = decide_task(rows, SETUP, TERMS)
    assert result.status == "FAIL"
    assert result.reasons == ("demo: the candidate has collapsed: it answers C to 100.0%",)
    assert status(rows, SUBSET) == "FAIL"


def test_gate_that_never_fired_is_invalid() -> None:
    rows = [
        replace(row, candidate=replace(row.candidate, gated=0.0))
        for row in make_rows(both=900, neither=100)
    ]
    assert status(rows) == "INVALID"
    assert status(rows, own_baseline=False, same_graph=True) == "PASS"
    assert status(rows, dynamic_gate=False) == "PASS"
    fired_once = [replace(rows[0], candidate=replace(rows[0].candidate, gated=0.01)), *rows[1:]]
    assert status(fired_once) == "PASS"


def test_baseline_whose_opened_gate_fired_is_invalid() -> None:
    rows = make_rows(both=900, neither=100)
    rows[5] = replace(rows[5], baseline=replace(rows[5].baseline, gated=0.1))
    assert status(rows) == "INVALID"
    assert status(rows, own_baseline=False) == "PASS"


def test_share_gated_counts_the_cells_of_the_granularity() -> None:
    rows = make_rows(both=2)
    first = replace(rows[0], tokens=10, candidate=replace(rows[0].candidate, gated=0.5))
    second = replace(rows[1], tokens=30, candidate=replace(rows[1].candidate, gated=0.1))
    tokens = decide_task([first, second], SETUP, TERMS).gated
    sequences = decide_task([first, second], SETUP, replace(TERMS, token_cells=False)).gated
    assert (tokens, sequences) == pytest.approx((0.2, 0.3))


def test_subjects_are_sorted_and_sum_up() -> None:
    result = decide_task(make_rows(both=3, losses=1), SETUP, TERMS)
    assert [subject.name for subject in result.subjects] == ["subject 0", "subject 1"]
    assert [subject.candidate_accuracy for subject in result.subjects] == [1.0, 0.5]


def test_the_worst_task_decides() -> None:
    results: dict[str, TaskResult] = {
        "PASS": decide_task(make_rows(both=900, neither=100), SETUP, TERMS),
        "INCONCLUSIVE": decide_task(make_rows(both=100), SUBSET, TERMS),
        "FAIL": decide_task(make_rows(both=800, losses=100, neither=100), SETUP, TERMS),
        "INVALID": decide_task(make_rows(both=250, neither=750), SETUP, TERMS),
    }
    assert {name: result.status for name, result in results.items()} == {n: n for n in results}
    worst_last = ["PASS", "INCONCLUSIVE", "FAIL", "INVALID"]
    for index, name in enumerate(worst_last):
        together = [results[other] for other in worst_last[: index + 1]]
        for order in (together, together[::-1]):
            assert combine(order, ()) == (name, results[name].reasons)
    assert combine(results.values(), ["changed"]) == ("INVALID", ("changed",))


def test_fingerprints() -> None:
    same = FileHash(expected="a" * 64, actual="a" * 64)
    other = FileHash(expected="a" * 64, actual="b" * 64)
    good = Fingerprint(files={"model.onnx": same}, weights_sha256="c" * 64, tokenizer=same)
    assert mismatches(good, good, "directory") == ()
    changed = replace(good, files={"model.onnx": other})
    assert len(mismatches(changed, changed, "own graph, gate open")) == 1
    assert len(mismatches(good, changed, "directory")) == 1
    assert (
        "other weights" in mismatches(good, replace(good, weights_sha256="d" * 64), "directory")[0]
    )
    tokenizer = replace(good, tokenizer=FileHash(expected="b" * 64, actual="b" * 64))
    assert "another tokenizer" in mismatches(good, tokenizer, "directory")[0]
    assert "tokenizer" in mismatches(replace(good, tokenizer=other), good, "directory")[0]
