"""Let a model answer a task's questions through lm-evaluation-harness, and pair two models."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import lm_eval
import lm_eval.utils

from headprune.errors import REPORT_BUG, ExitCode, HeadpruneError
from headprune.verifier.backend import OnnxLM
from headprune.verifier.model import Answer, Row, TaskSetup, make_answer
from headprune.verifier.quiet import quiet
from headprune.verifier.tasks import LoadedTask


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One question of a run with the answer it got."""

    subject: str
    doc: int
    gold: int
    prompts: tuple[tuple[str, str], ...]
    tokens: int
    answer: Answer


def ask(lm: OnnxLM, task: LoadedTask, draws: dict[str, list[int]], seed: int) -> list[Asked]:
    """Let one model answer the drawn questions, in order of subject and index.

    `lm_eval.evaluate` rather than `simple_evaluate`: the latter does the same after loading the
    tasks a second time, and spends seconds on collecting facts about the machine.
    """
    parts = {subject: task.parts[subject] for subject in draws}
    for part in parts.values():
        part.set_fewshot_seed(seed)
    samples = {parts[subject].task_name: indices for subject, indices in draws.items()}
    with quiet(), templates_compiled_once():
        results = lm_eval.evaluate(
            lm=lm,
            task_dict={"tasks": {part.task_name: part for part in parts.values()}},
            samples=samples,
            bootstrap_iters=0,
        )
    asked = []
    for subject, part in parts.items():
        for position, sample in enumerate(results["samples"][part.task_name]):
            usage = lm.usage[part.task_name, position]
            loglikelihoods = [value for value, _ in sample["filtered_resps"]]
            answer = make_answer(loglikelihoods, usage.gated)
            gold = part.doc_to_text(sample["doc"]) if part.multiple_input else sample["target"]
            if answer.choice is not None and bool(sample["acc"]) != (answer.choice == gold):
                raise HeadpruneError(
                    f"lm-evaluation-harness scores question {sample['doc_id']} of {subject} "
                    "otherwise than headprune",
                    exit_code=ExitCode.INTERNAL,
                    hint=REPORT_BUG,
                )
            asked.append(
                Asked(
                    subject=subject,
                    doc=sample["doc_id"],
                    gold=int(gold),
                    prompts=tuple((context, end) for context, end in sample["arguments"]),
                    tokens=usage.tokens,
                    answer=answer,
                )
            )
    return asked


@contextmanager
def templates_compiled_once() -> Iterator[None]:
    """Keep compiled prompt templates while the block runs.

    The harness compiles the same template anew for every example of every prompt: minutes over
    the whole of MMLU. The rendered texts are the same.
    """
    environment = lm_eval.utils.env
    environment.from_string = cache(environment.from_string)
    try:
        yield
    finally:
        del environment.from_string


def pair(name: str, baseline: list[Asked], candidate: list[Asked]) -> list[Row]:
    """Both models' answers side by side.

    Raises:
        HeadpruneError: The two were not asked the same.
    """
    rows = []
    for before, after in zip(baseline, candidate, strict=True):
        if replace(before, answer=after.answer) != after:
            raise HeadpruneError(
                f"{name}: baseline and candidate were asked different questions",
                exit_code=ExitCode.INTERNAL,
                hint=REPORT_BUG,
            )
        rows.append(
            Row(
                task=name,
                subject=before.subject,
                doc=before.doc,
                gold=before.gold,
                tokens=before.tokens,
                baseline=before.answer,
                candidate=after.answer,
            )
        )
    return rows


def set_up(task: LoadedTask, asked: list[Asked], shots: int, truncated: int) -> TaskSetup:
    """What was asked, for the verdict."""
    available = sum(task.sizes.values())
    content = [[a.subject, a.doc, a.gold, a.prompts] for a in asked]
    return TaskSetup(
        name=task.name,
        letters=task.kind.letters,
        complete=task.is_complete(len(asked)),
        available=available,
        shots=shots,
        shots_from=task.shots_from,
        truncated=truncated,
        data_sha256=sha256_json(content),
    )


def sha256_json(content: Any) -> str:
    """SHA-256 of JSON content."""
    text = json.dumps(content, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
