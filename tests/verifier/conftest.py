"""Exported once per test session: the tiny model ungated, with a dynamic and a static gate."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from headprune.exporters import ExportRequest, export_onnx
from headprune.manifests import Manifest
from headprune.verifier import Verdict, VerifyRequest, verify

from .tiny import GATE, STATIC, make_manifest, make_question, save_checkpoint, write_jsonl

QUESTIONS = 60


@dataclass(frozen=True)
class World:
    """Directories of the tiny model."""

    checkpoint: Path
    manifest: Manifest
    dynamic: Path
    ungated: Path
    static: Path
    data: Path


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> World:
    root = tmp_path_factory.mktemp("verifier")
    save_checkpoint(root / "checkpoint")
    manifest = make_manifest(root / "checkpoint")
    ungated = root / "ungated"
    export_onnx(
        ExportRequest(manifest=manifest, output=ungated, gate=None, model=str(root / "checkpoint"))
    )
    for name, gate in (("dynamic", GATE), ("static", STATIC)):
        request = ExportRequest(
            manifest=manifest, output=root / name, gate=gate, from_onnx=ungated / "model.onnx"
        )
        export_onnx(request)
    return World(
        checkpoint=root / "checkpoint",
        manifest=manifest,
        dynamic=root / "dynamic",
        ungated=ungated,
        static=root / "static",
        data=root / "data",
    )


@pytest.fixture(scope="session")
def world(exported: World) -> World:
    """The same, with questions whose key is what the ungated model answers: it is always right."""
    test, dev = exported.data / "demo" / "test.jsonl", exported.data / "demo" / "dev.jsonl"
    rows = [make_question(number) for number in range(QUESTIONS)]
    write_jsonl(test, rows)
    write_jsonl(dev, [make_question(1000 + number) for number in range(9)])
    verdict = verify_demo(exported, baseline=exported.ungated, candidate=exported.ungated)
    keys = {(row.subject, row.doc): row.baseline.choice for row in verdict.rows}
    seen: dict[object, int] = {}
    for row in rows:
        index = seen.setdefault(row["subject"], 0)
        seen[row["subject"]] += 1
        row["answer"] = keys[str(row["subject"]), index]
    write_jsonl(test, rows)
    return exported


def verify_demo(world: World, **options: object) -> Verdict:
    """Verify on the tiny questions, without shots."""
    settings = {
        "manifest": world.manifest, "candidate": world.dynamic, "tasks": ("demo",),
        "data": world.data, "shots": 0, "provider": "cpu", **options,
    }  # fmt: skip
    return verify(VerifyRequest(**settings))  # type: ignore[arg-type]


def read_json(path: Path) -> dict[str, object]:
    """A report as plain JSON."""
    document: dict[str, object] = json.loads(path.read_text("utf-8"))
    return document
