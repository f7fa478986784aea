"""Read a stored verdict, and decide again from its rows."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import cattrs

from headprune.errors import HeadpruneError
from headprune.schemas.validation import make_one, read_document
from headprune.verifier.decision import combine, decide_task, mismatches, terms_of
from headprune.verifier.model import Answer, Verdict, make_answer

SCHEMA = "verdict-v1"
VERIFY = "headprune verify --manifest manifest.json --candidate DIR"


def read_verdict(path: Path) -> Verdict:
    """Read and validate a verdict.

    Raises:
        HeadpruneError: The file is missing, not JSON, or does not follow the schema.
    """
    hint = make_one(f"{VERIFY} --report", path, default="verdict.json")
    document = read_document(path, SCHEMA, what="report", hint=hint)
    return cattrs.structure(document, Verdict)


def recheck(path: Path) -> Verdict:
    """The stored verdict with everything that follows from its rows computed again.

    Raises:
        HeadpruneError: The file is no verdict, or its rows do not belong to its tasks.
    """
    verdict = read_verdict(path)
    rows = tuple(
        replace(row, baseline=_again(row.baseline), candidate=_again(row.candidate))
        for row in verdict.rows
    )
    reasons = mismatches(verdict.candidate, verdict.baseline, verdict.baseline_kind)
    names = [task.setup.name for task in verdict.tasks]
    hint = f"verify again: {VERIFY} --report FILE"
    if {row.task for row in rows} != set(names) or len(set(names)) < len(names):
        raise HeadpruneError(
            f"{path}: the rows are not those of its tasks {', '.join(names)}", hint=hint
        )
    if not names and not reasons:
        raise HeadpruneError(f"{path} has no rows to decide from", hint=hint)
    tasks = tuple(
        decide_task(
            [row for row in rows if row.task == task.setup.name], task.setup, terms_of(verdict)
        )
        for task in verdict.tasks
    )
    status, reasons = combine(tasks, reasons)
    return replace(verdict, status=status, reasons=reasons, tasks=tasks, rows=rows)


def _again(answer: Answer) -> Answer:
    values = [math.nan if value is None else value for value in answer.loglikelihoods]
    return make_answer(values, answer.gated)
