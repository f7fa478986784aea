"""The demo as a newcomer runs it, and its negative control."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from headprune import cli
from headprune.demo.assets import questions_directory
from headprune.errors import ExitCode
from headprune.manifests import read_manifest
from headprune.schemas.validation import validate


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


def run(folder: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str]:
    code = cli.run(["demo", "-o", str(folder), *options])
    return code, capsys.readouterr().out


@pytest.mark.slow
def test_the_gated_model_passes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(folder, capsys)
    assert code == ExitCode.OK, out
    assert "PASS" in out
    verdict = json.loads((folder / "gated-verdict.json").read_text())
    validate(verdict, "verdict-v1", where="verdict", hint="-")
    (task,) = verdict["tasks"]
    questions = (questions_directory() / "demo" / "test.jsonl").read_text().splitlines()
    assert task["questions"] == len(questions)
    assert task["baseline_accuracy"] > 0.8
    assert 0.03 < task["gated"] < 0.3
    for path in (folder / "manifest.json", folder / "gated", folder / "gated-verdict.json"):
        assert path.exists()
        assert str(path) in out
    layers = len(read_manifest(folder / "manifest.json").model.layers)
    assert len(re.findall(r"^\d+ +\d+\.\d%", out, re.MULTILINE)) == layers


@pytest.mark.slow
def test_silencing_three_layers_fails(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(folder, capsys, "--negative-control")
    assert code == ExitCode.FAIL, out
    assert "FAIL" in out
    gate = read_manifest(folder / "negative-control" / "manifest.json").gate
    assert gate is not None
    assert len({layer for layer, _ in gate.heads}) == 3
    (task,) = json.loads((folder / "negative-control-verdict.json").read_text())["tasks"]
    assert task["difference"] < -5
