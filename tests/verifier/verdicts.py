"""Verdicts of every status, made from synthetic rows."""

from __future__ import annotations

from headprune.manifests import Gate
from headprune.verifier.decision import combine, decide_task, terms_of
from headprune.verifier.model import FileHash, Fingerprint, Row, TaskSetup, Verdict

from .rows import SETUP, SUBSET, broken, make_rows

SHA = FileHash(expected="a" * 64, actual="a" * 64)
PRINT = Fingerprint(
    files={"model.onnx": SHA, "model.onnx.data": SHA}, weights_sha256="b" * 64, tokenizer=SHA
)
GATE = Gate(
    score="thon_ln", granularity="token", inactive_when="below", mode="dynamic", threshold=0.25,
    fraction=0.1,
)  # fmt: skip
CASES: dict[str, tuple[list[Row], TaskSetup]] = {
    "PASS": (make_rows(both=300, losses=1, neither=99), SETUP),
    "FAIL": (make_rows(both=300, losses=20, neither=80), SETUP),
    "INCONCLUSIVE": (make_rows(both=80, losses=1, neither=19), SUBSET),
    "INVALID": (broken(make_rows(both=30, neither=9), "candidate"), SETUP),
}


def make_verdict(status: str) -> Verdict:
    rows, setup = CASES[status]
    blank = {
        "model": "a model", "margin": 1.0, "samples": None, "seed": 0, "batch_size": 1,
        "provider": "cpu", "versions": {"lm_eval": "0.4.13"}, "gate": GATE,
        "baseline_kind": "own graph, gate open", "baseline": PRINT, "candidate": PRINT,
        "rows": tuple(rows),
    }  # fmt: skip
    empty = Verdict(status="INVALID", reasons=(), tasks=(), **blank)  # type: ignore[arg-type]
    task = decide_task(rows, setup, terms_of(empty))
    decided, reasons = combine([task], ())
    return Verdict(status=decided, reasons=reasons, tasks=(task,), **blank)  # type: ignore[arg-type]
