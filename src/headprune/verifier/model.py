"""The verdict in memory: what was measured, on which files, and what follows from it.

The JSON Schema `schemas/verdict-v1.schema.json` is the truth about the file.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from headprune import __version__
from headprune.errors import ExitCode
from headprune.manifests import Gate

SCHEMA_VERSION = "1.0"

Status = Literal["PASS", "FAIL", "INCONCLUSIVE", "INVALID"]
BaselineKind = Literal["own graph, gate open", "directory"]
ShotsFrom = Literal["dev", "train", "validation", "none"]

EXIT_CODES: dict[Status, ExitCode] = {
    "PASS": ExitCode.OK,
    "FAIL": ExitCode.FAIL,
    "INCONCLUSIVE": ExitCode.INCONCLUSIVE,
    "INVALID": ExitCode.INVALID,
}
WORST_FIRST: tuple[Status, ...] = ("INVALID", "FAIL", "INCONCLUSIVE", "PASS")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One model's answer to one question.

    Attributes:
        loglikelihoods: Log-likelihood of each choice in nats; None where it is not finite.
        choice: Index of the largest, the first of equals; None if one is not finite.
        gated: Share of (layer, head) cells that the gate switched off while the question was
            read; None if the graph does not tell.
    """

    loglikelihoods: tuple[float | None, ...]
    choice: int | None
    gated: float | None


def make_answer(loglikelihoods: Sequence[float], gated: float | None) -> Answer:
    """The answer that follows from the log-likelihoods of the choices."""
    finite = all(map(math.isfinite, loglikelihoods))
    return Answer(
        loglikelihoods=tuple(v if math.isfinite(v) else None for v in loglikelihoods),
        choice=loglikelihoods.index(max(loglikelihoods)) if finite else None,
        gated=gated,
    )


@dataclass(frozen=True, kw_only=True)
class Row:
    """One question, answered by both models.

    Attributes:
        task: Task name, such as `mmlu`.
        subject: Subject inside the task; the task's name where it has none.
        doc: Index of the question in its subject.
        gold: Index of the right choice.
        tokens: Tokens of all prompts of the question.
        baseline: What the ungated model answered.
        candidate: What the gated model answered.
    """

    task: str
    subject: str
    doc: int
    gold: int
    tokens: int
    baseline: Answer
    candidate: Answer


@dataclass(frozen=True, kw_only=True)
class TaskSetup:
    """What was asked in one task.

    Attributes:
        name: Task name.
        letters: Whether the choices are the same letters in every question.
        complete: Whether every question of the task was asked.
        available: Questions that the data holds, before sampling.
        shots: Solved examples in front of every question.
        shots_from: Split that the examples come from.
        truncated: Prompts that were cut because the model cannot read so many tokens.
        data_sha256: Hash of all prompts, choices and right answers, in order.
    """

    name: str
    letters: bool
    complete: bool
    available: int
    shots: int
    shots_from: ShotsFrom
    truncated: int
    data_sha256: str


@dataclass(frozen=True, kw_only=True)
class Counts:
    """The table of right answers of both models."""

    both_right: int
    baseline_only: int
    candidate_only: int
    both_wrong: int


@dataclass(frozen=True, kw_only=True)
class Interval:
    """Two-sided interval of the difference in points; each bound alone is one-sided at 95 %."""

    confidence: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class SubjectResult:
    """Accuracies of one subject, 0 to 1; information only."""

    name: str
    questions: int
    baseline_accuracy: float
    candidate_accuracy: float


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """What one task says.

    Attributes:
        setup: What was asked.
        status: This task's own verdict.
        reasons: Why, in plain sentences.
        questions: Number of questions asked.
        chance: Expected accuracy of a guesser, 0 to 1.
        counts: Right and wrong answers of the pair.
        baseline_accuracy: Accuracy over all questions of the baseline, 0 to 1.
        candidate_accuracy: Accuracy over all questions of the candidate, 0 to 1.
        difference: Candidate minus baseline, in points.
        interval: Tango score interval of the difference.
        mcnemar_p: Two-sided exact p-value of McNemar's test.
        flips: Share of questions that changed between right and wrong, 0 to 1.
        changed: Share of questions whose choice changed, 0 to 1.
        divergence: Mean KL divergence over the choices' probabilities in nats, baseline to
            candidate; None if a score is not finite.
        gated: Share of cells that the candidate's gate switched off; None if the graph does not
            tell.
        subjects: Accuracies per subject, sorted by name.
    """

    setup: TaskSetup
    status: Status
    reasons: tuple[str, ...]
    questions: int
    chance: float
    counts: Counts
    baseline_accuracy: float
    candidate_accuracy: float
    difference: float
    interval: Interval
    mcnemar_p: float
    flips: float
    changed: float
    divergence: float | None
    gated: float | None
    subjects: tuple[SubjectResult, ...]


@dataclass(frozen=True, kw_only=True)
class FileHash:
    """SHA-256 of a file as its directory's manifest has it, and as it is."""

    expected: str
    actual: str


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """Identity of an exported directory.

    Attributes:
        files: Hashes of the graph and its external data, by file name.
        weights_sha256: Identity of the model the graph was exported from.
        tokenizer: Hash of the tokenizer in the manifest and in the directory.
    """

    files: dict[str, FileHash]
    weights_sha256: str
    tokenizer: FileHash


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether the gated model is still as good, and everything that the answer rests on.

    Attributes:
        status: The verdict; the worst of the tasks'.
        reasons: Why, in plain sentences.
        model: Name of the model.
        margin: Points of accuracy that the candidate may lose.
        samples: Questions drawn per task, or None for all.
        seed: Seed of that draw and of drawn few-shot examples.
        batch_size: Prompts per forward.
        provider: Execution provider that ran both models, `cpu` or `cuda`.
        versions: Versions of the packages that the figures depend on.
        gate: The candidate's gate.
        baseline_kind: Where the baseline came from.
        baseline: Identity of the baseline.
        candidate: Identity of the candidate.
        tasks: One result per task, in the order asked for.
        rows: Every question with both answers, from which the rest can be computed again.
        tool_version: Version of headprune.
        schema_version: Version of the file format.
    """

    status: Status
    reasons: tuple[str, ...]
    model: str
    margin: float
    samples: int | None
    seed: int
    batch_size: int
    provider: str
    versions: dict[str, str]
    gate: Gate | None
    baseline_kind: BaselineKind
    baseline: Fingerprint
    candidate: Fingerprint
    tasks: tuple[TaskResult, ...]
    rows: tuple[Row, ...]
    tool_version: str = field(default=__version__)
    schema_version: str = field(default=SCHEMA_VERSION)

    @property
    def exit_code(self) -> ExitCode:
        """Exit code of the command that reached this verdict."""
        return EXIT_CODES[self.status]
