"""From rows to a status: a pure function, so that a stored report can be decided again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from headprune.verifier import statistics
from headprune.verifier.model import (
    WORST_FIRST,
    BaselineKind,
    Counts,
    Fingerprint,
    Interval,
    Row,
    Status,
    SubjectResult,
    TaskResult,
    TaskSetup,
    Verdict,
)

CHANCE_P = 0.001
MARGINS_ABOVE_CHANCE = 5
ONE_LETTER = 0.95
INTERVAL_CONFIDENCE = 0.90


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What a task is judged by, besides its rows.

    Attributes:
        margin: Points of accuracy that the candidate may lose.
        dynamic_gate: Whether the candidate decides in every forward which heads to gate.
        token_cells: Whether it decides so for every token, not for every sequence.
        own_baseline: Whether the baseline is the candidate's own graph with its gate open.
        same_graph: Whether the baseline is the candidate itself, gate and all.
    """

    margin: float
    dynamic_gate: bool
    token_cells: bool
    own_baseline: bool
    same_graph: bool


def terms_of(verdict: Verdict) -> Terms:
    """What the tasks of a verdict are judged by."""
    gate = verdict.gate
    own = verdict.baseline_kind == "own graph, gate open"
    return Terms(
        margin=verdict.margin,
        dynamic_gate=gate is not None and gate.mode == "dynamic",
        token_cells=gate is not None and gate.granularity == "token",
        own_baseline=own,
        same_graph=not own and verdict.baseline.files == verdict.candidate.files,
    )


def decide_task(rows: Sequence[Row], setup: TaskSetup, terms: Terms) -> TaskResult:
    """Compute one task's statistics and its verdict. `rows` must not be empty."""
    n = len(rows)
    right = [(row.baseline.choice == row.gold, row.candidate.choice == row.gold) for row in rows]
    table = Counter(right)
    losses, gains = table[True, False], table[False, True]
    low, high = statistics.tango_interval(losses, gains, n, INTERVAL_CONFIDENCE)
    interval = Interval(confidence=INTERVAL_CONFIDENCE, low=100 * low, high=100 * high)
    chance = sum((Fraction(1, len(row.baseline.loglikelihoods)) for row in rows), Fraction()) / n
    before, after = (sum(column) / n for column in zip(*right, strict=True))
    status, reasons = _invalid(rows, setup, terms, chance)
    if not reasons:
        status, reasons = _judge(rows, setup, terms, gains - losses, interval)
    return TaskResult(
        setup=setup,
        status=status,
        reasons=tuple(f"{setup.name}: {reason}" for reason in reasons),
        questions=n,
        chance=float(chance),
        counts=Counts(
            both_right=table[True, True],
            baseline_only=losses,
            candidate_only=gains,
            both_wrong=table[False, False],
        ),
        baseline_accuracy=before,
        candidate_accuracy=after,
        difference=100 * (gains - losses) / n,
        interval=interval,
        mcnemar_p=statistics.mcnemar_p(losses, gains),
        flips=(losses + gains) / n,
        changed=sum(row.baseline.choice != row.candidate.choice for row in rows) / n,
        divergence=_divergence(rows),
        gated=_gated(rows, token_cells=terms.token_cells),
        subjects=_subjects(rows),
    )


def combine(
    tasks: Iterable[TaskResult], mismatches: Sequence[str]
) -> tuple[Status, tuple[str, ...]]:
    """The verdict over all tasks: the worst decides; files that do not match come before all."""
    results = list(tasks)
    if mismatches:
        return "INVALID", tuple(mismatches)
    status = min((result.status for result in results), key=WORST_FIRST.index)
    return status, tuple(
        reason for result in results if result.status == status for reason in result.reasons
    )


def mismatches(
    candidate: Fingerprint, baseline: Fingerprint, kind: BaselineKind
) -> tuple[str, ...]:
    """Sentences on fingerprints that do not match, each a reason not to trust any figure."""
    reasons = []
    named = [("candidate", candidate)]
    if kind == "directory":
        named.append(("baseline", baseline))
    for name, print_ in named:
        reasons += [
            f"the {name}'s {file} is not the file that its manifest.json describes"
            for file, sha in print_.files.items()
            if sha.actual != sha.expected
        ]
        if print_.tokenizer.actual != print_.tokenizer.expected:
            reasons.append(f"the {name}'s tokenizer is not the one its manifest.json describes")
    if candidate.weights_sha256 != baseline.weights_sha256:
        reasons.append("the baseline was exported from other weights than the candidate")
    if candidate.tokenizer.expected != baseline.tokenizer.expected:
        reasons.append("the baseline has another tokenizer than the candidate")
    return tuple(reasons)


def _invalid(
    rows: Sequence[Row], setup: TaskSetup, terms: Terms, chance: Fraction
) -> tuple[Status, list[str]]:
    """Reasons why the figures of a task mean nothing."""
    n, reasons = len(rows), []
    for name, answers in (
        ("baseline", [row.baseline for row in rows]),
        ("candidate", [row.candidate for row in rows]),
    ):
        broken = sum(answer.choice is None for answer in answers)
        if broken:
            reasons.append(f"the {name}'s scores are not finite in {broken:,} of {n:,} questions")
    if reasons:
        return "INVALID", reasons
    right = sum(row.baseline.choice == row.gold for row in rows)
    above = 100 * (Fraction(right, n) - chance)
    margins = f"{MARGINS_ABOVE_CHANCE} margins of {terms.margin:.2f}"
    if statistics.above_chance_p(right, n, float(chance)) >= CHANCE_P:
        found = f"the baseline is right on {right:,} of {n:,} questions"
        reasons.append(
            f"{found}, which guessing ({float(chance):.0%}) can explain: two models at chance pass "
            "any margin"
        )
    elif above < MARGINS_ABOVE_CHANCE * Fraction(str(terms.margin)):
        reasons.append(
            f"the baseline is {float(above):.2f} points above chance, less than {margins}"
        )
    letter, share = _commonest([row.baseline.choice for row in rows])
    if setup.letters and share > ONE_LETTER:
        reasons.append(f"the baseline answers {letter} to {share:.1%} of the questions")
    if terms.dynamic_gate and not terms.same_graph and not any(row.candidate.gated for row in rows):
        reasons.append("the candidate's gate never fired: both models are the same")
    if terms.own_baseline and any(row.baseline.gated for row in rows):
        reasons.append("the baseline's gate fired although its thresholds were opened")
    return "INVALID", reasons


def _judge(
    rows: Sequence[Row], setup: TaskSetup, terms: Terms, net: int, interval: Interval
) -> tuple[Status, list[str]]:
    """Status of a task whose figures can be trusted. `net` is gains minus losses."""
    n, margin = len(rows), terms.margin
    letter, share = _commonest([row.candidate.choice for row in rows])
    if setup.letters and share > ONE_LETTER:
        return "FAIL", [f"the candidate has collapsed: it answers {letter} to {share:.1%}"]
    points, allowed = f"{100 * net / n:+.2f} points", f"the margin of {margin:.2f}"
    if setup.complete:
        within = Fraction(100 * net, n) >= -Fraction(str(margin))
        place = "within" if within else "beyond"
        return ("PASS" if within else "FAIL"), [
            f"{points} on all {n:,} questions, {place} {allowed}"
        ]
    found = f"{points} on {n:,} questions, not all of the task"
    low, high = f"{interval.low:+.2f}", f"{interval.high:+.2f}"
    if interval.low > -margin:
        return "PASS", [f"{found}: the one-sided 95 % bound {low} is within {allowed}"]
    if interval.high < -margin:
        return "FAIL", [f"{found}: the one-sided 95 % bound {high} is beyond {allowed}"]
    between = f"{allowed} lies between the bounds {low} and {high}"
    return "INCONCLUSIVE", [f"{found}: {between}; more questions would decide"]


def _commonest(choices: Sequence[int | None]) -> tuple[str, float]:
    """The most frequent choice as a letter, and its share."""
    choice, count = Counter(choices).most_common(1)[0]
    return chr(ord("A") + (choice or 0)), count / len(choices)


def _divergence(rows: Sequence[Row]) -> float | None:
    total = 0.0
    for row in rows:
        pair = [
            [v for v in answer.loglikelihoods if v is not None]
            for answer in (row.baseline, row.candidate)
        ]
        if row.baseline.choice is None or row.candidate.choice is None:
            return None
        total += statistics.choice_divergence(*pair)
    return total / len(rows)


def _gated(rows: Sequence[Row], *, token_cells: bool) -> float | None:
    """Share of (token, layer, head) or (sequence, layer, head) cells gated."""
    total = weight = 0.0
    for row in rows:
        if row.candidate.gated is None:
            return None
        cells = row.tokens if token_cells else 1
        total += row.candidate.gated * cells
        weight += cells
    return total / weight


def _subjects(rows: Sequence[Row]) -> tuple[SubjectResult, ...]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.subject, []).append(row)
    return tuple(
        SubjectResult(
            name=name,
            questions=len(group),
            baseline_accuracy=sum(r.baseline.choice == r.gold for r in group) / len(group),
            candidate_accuracy=sum(r.candidate.choice == r.gold for r in group) / len(group),
        )
        for name, group in sorted(groups.items())
    )
