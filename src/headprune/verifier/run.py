"""The whole way: fingerprints, tasks, baseline, candidate, pairing, decision, reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from importlib.metadata import version
from typing import TYPE_CHECKING

import onnxruntime

from headprune.errors import EXPORT_AGAIN, HeadpruneError
from headprune.verifier.announce import announce
from headprune.verifier.answers import SUFFIX, Answers
from headprune.verifier.artefact import Exported, check_same_model, open_exported
from headprune.verifier.asking import Asked, ask, pair, set_up, sha256_json
from headprune.verifier.backend import OnnxLM
from headprune.verifier.decision import combine, decide_task, mismatches, terms_of
from headprune.verifier.model import Row, Verdict
from headprune.verifier.quiet import aloud
from headprune.verifier.reports import write_reports
from headprune.verifier.sampling import draw
from headprune.verifier.session import GraphSession, provider_order
from headprune.verifier.tasks import check_names, load_tasks

if TYPE_CHECKING:
    from headprune.verifier import VerifyRequest

PACKAGES = ("lm_eval", "transformers")


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
        verdict = _measure(
            request, verdict, candidate, baseline, answers=answers, progress=progress
        )
        write_reports(verdict, report=request.report, junit=request.junit)
        finished = True
    finally:
        answers.close(remove=finished or not len(answers))
    return verdict


def _measure(
    request: VerifyRequest,
    verdict: Verdict,
    candidate: Exported,
    baseline: Exported,
    *,
    answers: Answers,
    progress: Callable[[str], None],
) -> Verdict:
    """Run both models over all tasks and decide."""
    own = request.baseline is None
    terms = terms_of(verdict)
    gate = candidate.manifest.gate
    with load_tasks(request.tasks, request.data, request.shots) as tasks:
        draws = {task.name: draw(task.sizes, request.samples, request.seed) for task in tasks}
        for task in tasks:
            progress(announce(task, sum(map(len, draws[task.name].values())), request.margin))
        asked: dict[str, dict[str, list[Asked]]] = {"baseline": {}, "candidate": {}}
        truncated: dict[str, int] = {}
        provider = request.provider
        for role, exported in (("baseline", baseline), ("candidate", candidate)):
            session = GraphSession(
                exported.graph,
                provider,
                open_gate=gate if own and role == "baseline" else None,
            )
            if role == "candidate" and terms.dynamic_gate and not session.tells_gated:
                raise HeadpruneError(
                    f"{exported.graph.name} has a dynamic gate but no output headprune.active",
                    hint=EXPORT_AGAIN,
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
                token_cells=terms.token_cells,
                allow_truncation=request.allow_truncation,
                answers=answers,
                progress=progress,
            )
            for task in tasks:
                asked[role][task.name] = ask(lm, task, draws[task.name], request.seed)
                truncated[task.name] = lm.truncated
            del session, lm  # two models need not fit into memory at once
        rows: list[Row] = []
        results = []
        for task in tasks:
            pairs = pair(task.name, asked["baseline"][task.name], asked["candidate"][task.name])
            setup = set_up(task, asked["baseline"][task.name], request.shots, truncated[task.name])
            results.append(decide_task(pairs, setup, terms))
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


def _check_baseline(request: VerifyRequest, candidate: Exported) -> None:
    """Raise early if there is no gate to open for a baseline."""
    gate = candidate.manifest.gate
    if request.baseline is not None or (gate is not None and gate.mode == "dynamic"):
        return
    what = "has no gate" if gate is None else f"has a {gate.mode} gate, which cannot be opened"
    raise HeadpruneError(
        f"the candidate {what}, and no --baseline was given: there is nothing to compare with",
        hint="headprune export --gate none -o DIR, then verify with --baseline DIR",
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
        versions={n: version(n) for n in PACKAGES} | {"onnxruntime": onnxruntime.__version__},
        gate=candidate.manifest.gate,
        baseline_kind="own graph, gate open" if request.baseline is None else "directory",
        baseline=baseline.fingerprint,
        candidate=candidate.fingerprint,
        tasks=(),
        rows=(),
    )


def _key(verdict: Verdict) -> str:
    """Hash of everything but the token ids that answers depend on."""
    content = {n: getattr(verdict, n) for n in ("batch_size", "versions", "baseline_kind")}
    content["providers"] = provider_order(verdict.provider, onnxruntime.get_available_providers())
    content["gate"] = verdict.gate and asdict(verdict.gate)
    content["baseline"] = asdict(verdict.baseline)
    content["candidate"] = asdict(verdict.candidate)
    return sha256_json(content)
