"""The whole way: fingerprints, tasks, baseline, candidate, pairing, decision, reports."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import lm_eval

from headprune.errors import ExitCode, HeadpruneError
from headprune.verifier import statistics
from headprune.verifier.answers import SUFFIX, Answers
from headprune.verifier.artefact import Exported, check_same_model, open_exported
from headprune.verifier.backend import OnnxLM
from headprune.verifier.decision import combine, decide_task, mismatches, terms_of
from headprune.verifier.model import Answer, Row, TaskSetup, Verdict, make_answer
from headprune.verifier.quiet import aloud, quiet
from headprune.verifier.reports import write_reports
from headprune.verifier.sampling import draw
from headprune.verifier.session import GraphSession
from headprune.verifier.tasks import LoadedTask, check_names, load_tasks

if TYPE_CHECKING:
    from headprune.verifier import VerifyRequest

PACKAGES = ("lm_eval", "onnxruntime", "transformers")
COMMON_FLIP_RATE = 0.02


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One question of a run with the answer it got."""

    subject: str
    doc: int
    gold: int
    prompts: tuple[tuple[str, str], ...]
    tokens: int
    answer: Answer


def run(request: VerifyRequest) -> Verdict:
    """See `headprune.verifier.verify`."""
    check_names(request.tasks)
    progress = aloud(request.progress)
    candidate = open_exported(request.candidate)
    check_same_model(request.manifest, candidate)
    baseline = candidate if request.baseline is None else open_exported(request.baseline)
    verdict = _blank(request, candidate, baseline)
    reasons = mismatches(candidate.fingerprint, baseline.fingerprint, verdict.baseline_kind)
    if reasons:
        verdict = replace(verdict, reasons=reasons)
        write_reports(verdict, report=request.report, junit=request.junit)
        return verdict
    _check_baseline(request, candidate)
    path = request.report and request.report.with_name(request.report.name + SUFFIX)
    answers = Answers(path, _key(verdict))
    finished = False
    try:
        if answers.other_inputs:
            progress(f"{SUFFIX} beside the report is of other inputs: starting anew")
        elif len(answers):
            progress(f"resuming: {len(answers):,} forwards are answered already")
        verdict = _measure(request, verdict, candidate, baseline, answers, progress)
        write_reports(verdict, report=request.report, junit=request.junit)
        finished = True
    finally:
        answers.close(remove=finished)
    return verdict


def _measure(
    request: VerifyRequest,
    verdict: Verdict,
    candidate: Exported,
    baseline: Exported,
    answers: Answers,
    progress: Callable[[str], None],
) -> Verdict:
    """Run both models over all tasks and decide."""
    own = request.baseline is None
    gate = candidate.manifest.gate
    with load_tasks(request.tasks, request.data, request.shots) as tasks:
        draws = {task.name: draw(task.sizes, request.samples, request.seed) for task in tasks}
        for task in tasks:
            _announce(task, draws[task.name], request.margin, progress)
        asked: dict[str, dict[str, list[Asked]]] = {"baseline": {}, "candidate": {}}
        truncated: dict[str, int] = {}
        provider = request.provider
        for role, exported in (("baseline", baseline), ("candidate", candidate)):
            session = GraphSession(
                exported.graph,
                provider,
                open_gate=gate if own and role == "baseline" else None,
            )
            if session.provider != provider:
                provider = session.provider
                progress(f"running on {provider}")
            lm = OnnxLM(
                session,
                candidate.tokenizer,
                name=role,
                max_length=candidate.max_length,
                batch_size=request.batch_size,
                token_cells=terms_of(verdict).token_cells,
                allow_truncation=request.allow_truncation,
                answers=answers,
                progress=progress,
            )
            for task in tasks:
                asked[role][task.name] = _ask(lm, task, draws[task.name], request.seed)
                truncated[task.name] = lm.truncated
            del session, lm  # two models need not fit into memory at once
    rows: list[Row] = []
    results = []
    for task in tasks:
        pairs = _pair(task.name, asked["baseline"][task.name], asked["candidate"][task.name])
        setup = _setup(task, asked["baseline"][task.name], request.shots, truncated[task.name])
        results.append(decide_task(pairs, setup, terms_of(verdict)))
        rows += pairs
    status, reasons = combine(results, ())
    return replace(
        verdict,
        status=status,
        reasons=reasons,
        provider=provider,
        tasks=tuple(results),
        rows=tuple(rows),
    )


def _ask(lm: OnnxLM, task: LoadedTask, draws: dict[str, list[int]], seed: int) -> list[Asked]:
    """Let one model answer the drawn questions, in order of subject and index.

    `lm_eval.evaluate` rather than `simple_evaluate`: the latter does the same after loading the
    tasks a second time, and spends seconds on collecting facts about the machine.
    """
    parts = {subject: task.parts[subject] for subject in draws}
    for part in parts.values():
        part.set_fewshot_seed(seed)
    samples = {parts[subject].task_name: indices for subject, indices in draws.items()}
    with quiet():
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


def _pair(name: str, baseline: list[Asked], candidate: list[Asked]) -> list[Row]:
    rows = []
    for before, after in zip(baseline, candidate, strict=True):
        if replace(before, answer=after.answer) != after:
            raise HeadpruneError(
                f"{name}: baseline and candidate were asked different questions",
                exit_code=ExitCode.INTERNAL,
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


def _setup(task: LoadedTask, asked: list[Asked], shots: int, truncated: int) -> TaskSetup:
    available = sum(task.sizes.values())
    content = [[a.subject, a.doc, a.gold, a.prompts] for a in asked]
    return TaskSetup(
        name=task.name,
        letters=task.kind.letters,
        complete=_is_complete(task, len(asked)),
        available=available,
        shots=shots,
        shots_from=task.shots_from,
        truncated=truncated,
        data_sha256=_sha256(content),
    )


def _is_complete(task: LoadedTask, questions: int) -> bool:
    whole = task.kind.questions
    return questions == (sum(task.sizes.values()) if whole is None else whole)


def _announce(
    task: LoadedTask, draws: dict[str, list[int]], margin: float, progress: Callable[[str], None]
) -> None:
    """Say before the run what it can and cannot show."""
    n, name = sum(map(len, draws.values())), task.name
    if task.shots_from == "validation":
        progress(f"{name}: no train.jsonl, the shots are drawn from the other questions")
    if _is_complete(task, n):
        progress(f"{name}: all {n:,} questions, the observed difference decides")
        return
    whole = task.kind.questions or sum(task.sizes.values())
    progress(f"{name}: {n:,} of {whole:,} questions, a confidence bound decides")
    if margin == 0:
        progress(f"{name}: no sample can certify a margin of 0; leave out --samples")
        return
    least = statistics.smallest_certifying(margin / 100)
    if n < least:
        progress(
            f"{name}: {n:,} questions cannot certify a margin of {margin:g} points: at least "
            f"{least:,} are needed even if no answer changes"
        )
        return
    needed = statistics.questions_needed(COMMON_FLIP_RATE, margin / 100)
    if n < needed:
        progress(
            f"{name}: {n:,} questions certify a margin of {margin:g} points only if few answers "
            f"change; about {needed:,} are needed where {COMMON_FLIP_RATE:.0%} flip"
        )


def _check_baseline(request: VerifyRequest, candidate: Exported) -> None:
    """Raise early if there is no gate to open for a baseline."""
    gate = candidate.manifest.gate
    if request.baseline is None and gate is None:
        raise HeadpruneError(
            "the candidate has no gate and no --baseline was given: there is nothing to compare",
            hint="pass --baseline DIR",
        )


def _blank(request: VerifyRequest, candidate: Exported, baseline: Exported) -> Verdict:
    """The verdict before anything ran."""
    return Verdict(
        status="INVALID",
        reasons=(),
        model=candidate.manifest.model.name,
        margin=request.margin,
        samples=request.samples,
        seed=request.seed,
        batch_size=request.batch_size,
        provider=request.provider,
        versions={name: version(name) for name in PACKAGES},
        gate=candidate.manifest.gate,
        baseline_kind="own graph, gate open" if request.baseline is None else "directory",
        baseline=baseline.fingerprint,
        candidate=candidate.fingerprint,
        tasks=(),
        rows=(),
    )


def _key(verdict: Verdict) -> str:
    """Hash of everything but the token ids that answers depend on."""
    fields = ("batch_size", "provider", "versions", "gate", "baseline_kind")
    content = {name: getattr(verdict, name) for name in fields}
    content["gate"] = verdict.gate and asdict(verdict.gate)
    content["baseline"] = asdict(verdict.baseline)
    content["candidate"] = asdict(verdict.candidate)
    return _sha256(content)


def _sha256(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
