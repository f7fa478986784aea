"""The exported directory: whole, self-sufficient, the same every time, and free of local paths."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from transformers import AutoConfig, AutoTokenizer

from headprune.errors import ExitCode, HeadpruneError
from headprune.exporters import ExportRequest, ExportResult, export_onnx
from headprune.files import sha256_file
from headprune.manifests import Gate, read_manifest

from .batches import prompt
from .conftest import Family, gate_of, runner_of
from .graph_runner import open_graph

Gated = Callable[[Family, Gate], ExportResult]
GATE = gate_of("ahon_ln", decode="running", threshold=0.9, heads=[(1, 2)])


@pytest.fixture
def llama(families: Callable[[str], Family]) -> Family:
    return families("llama")


def request_of(family: Family, output: Path, **options: object) -> ExportRequest:
    options = {
        "manifest": family.manifest,
        "gate": GATE,
        "from_onnx": family.baseline.directory / "model.onnx",
        **options,
    }
    return ExportRequest(output=output, **options)


EXPORT_AGAIN = """
import sys
from dataclasses import replace
from pathlib import Path
from headprune.exporters import ExportRequest, export_onnx
from headprune.manifests import read_manifest

first, model, output = map(Path, sys.argv[1:])
manifest = read_manifest(first / "manifest.json")
result = export_onnx(
    ExportRequest(
        manifest=replace(manifest, gate=None, artefact=None),
        output=output,
        gate=manifest.gate,
        model=str(model),
        progress=lambda message: print(message, file=sys.stderr),
    )
)
print(result.export_error)
"""


def test_same_input_same_bytes(llama: Family, gated: Gated, tmp_path: Path) -> None:
    """Another process, another place, from the model itself: every file equals the first."""
    first = gated(llama, GATE)
    assert first.export_error is None, "there was no model to compare with"
    model = tmp_path / "elsewhere" / "model"
    shutil.copytree(llama.directory, model)
    arguments = [str(first.directory), str(model), str(tmp_path / "again")]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", EXPORT_AGAIN, *arguments],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert 0 <= float(done.stdout) < 2e-4, "nothing but our own line on stdout"
    assert "comparing ONNX Runtime with PyTorch" in done.stderr
    names = sorted(path.name for path in first.directory.iterdir())
    assert sorted(path.name for path in (tmp_path / "again").iterdir()) == names
    for name in names:
        again = (tmp_path / "again" / name).read_bytes()
        assert again == (first.directory / name).read_bytes(), name


def test_files(llama: Family, gated: Gated) -> None:
    result = gated(llama, GATE)
    assert sorted(path.name for path in result.directory.iterdir()) == [
        "config.json",
        "generation_config.json",
        "manifest.json",
        "model.onnx",
        "model.onnx.data",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert AutoConfig.from_pretrained(result.directory).num_attention_heads == 6
    assert AutoTokenizer.from_pretrained(result.directory)("The cat").input_ids == [3, 4]
    onnx.checker.check_model(str(result.directory / "model.onnx"), full_check=True)


def test_manifest(llama: Family, gated: Gated) -> None:
    result = gated(llama, GATE)
    manifest = read_manifest(result.directory / "manifest.json")
    assert manifest == result.manifest
    assert manifest.gate == GATE
    assert manifest.raw_scores is None
    assert manifest.artefact is not None
    assert manifest.artefact.opset == 23
    assert manifest.artefact.files == {
        name: sha256_file(result.directory / name) for name in ("model.onnx", "model.onnx.data")
    }
    assert replace(manifest, gate=None, artefact=None) == llama.manifest
    assert result.gated_layers == (0, 1, 2)


def test_dynamic_gate_leaves_the_weights_alone(llama: Family, gated: Gated) -> None:
    for result in (gated(llama, GATE), gated(llama, gate_of("thon"))):
        ours = result.directory / "model.onnx.data"
        assert ours.read_bytes() == (llama.baseline.directory / "model.onnx.data").read_bytes()


def test_last_token_scores_need_no_state(llama: Family, gated: Gated) -> None:
    result = gated(llama, gate_of("lthon", decode="running"))
    assert result.manifest.gate is not None
    assert result.manifest.gate.decode == "new"
    session = runner_of(result).session
    assert [v.name for v in session.get_overridable_initializers()] == ["headprune.threshold"]


def test_gate_inputs_and_outputs(llama: Family, gated: Gated) -> None:
    session = runner_of(gated(llama, GATE)).session
    inputs = {v.name: v.shape for v in session.get_overridable_initializers()}
    assert inputs == {
        "headprune.threshold": [3, 6],
        "headprune.past.sum": ["batch_size", 3, 6],
        "headprune.past.count": ["batch_size"],
    }
    outputs = {v.name: v.shape for v in session.get_outputs() if v.name.startswith("headprune")}
    assert outputs == {
        "headprune.active": ["batch_size", 3, 6],
        "headprune.present.sum": ["batch_size", 3, 6],
        "headprune.present.count": ["batch_size"],
    }
    model = ir.load(gated(llama, GATE).directory / "model.onnx")
    calls = [node for node in model.graph if node.domain == "ai.headprune"]
    assert [node.op_type for node in calls] == ["HeadGate"] * 3
    assert list(model.functions) == [("ai.headprune", "HeadGate", "")]


def test_no_local_path_and_no_stack_trace(family: Family, gated: Gated) -> None:
    needles = [str(Path.home()), str(Path.cwd()), str(family.directory), "stack_trace", ".py"]
    results = [family.baseline, gated(family, gate_of("thon_ln"))]
    for path in [path for result in results for path in result.directory.iterdir()]:
        content = path.read_bytes()
        for needle in needles:
            assert needle.encode() not in content, f"{needle} in {path.name}"


def test_notes_of_a_path_are_dropped(llama: Family, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(llama.baseline.directory, source)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({"_name_or_path": "/some/where", **config}))
    result = export_onnx(request_of(llama, tmp_path / "out", from_onnx=source / "model.onnx"))
    assert json.loads((result.directory / "config.json").read_text()) == config


def test_works_from_any_directory(llama: Family, gated: Gated, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(gated(llama, GATE).directory, moved)
    here = Path.cwd()
    os.chdir(tmp_path)
    try:
        open_graph(Path("moved/model.onnx"))
    finally:
        os.chdir(here)


@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_ALL"])
def test_optimisation_level_changes_nothing(llama: Family, gated: Gated, level: str) -> None:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    result = gated(llama, GATE)
    runner = runner_of(result)
    expected, active = runner.run(*prompt(9))
    runner = runner_of(result)
    runner.session = ort.InferenceSession(result.directory / "model.onnx", options)
    actual, actual_active = runner.run(*prompt(9))
    np.testing.assert_allclose(actual, expected, atol=1e-4)
    np.testing.assert_array_equal(actual_active, active)


def test_force_replaces_an_export_and_nothing_else(llama: Family, tmp_path: Path) -> None:
    output = tmp_path / "out"
    export_onnx(request_of(llama, output))
    (output / "stale").write_text("x")
    with pytest.raises(HeadpruneError, match="is not empty"):
        export_onnx(request_of(llama, output))
    export_onnx(request_of(llama, output, force=True))
    assert not (output / "stale").exists()

    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("x")
    shutil.copy(llama.baseline.directory / "manifest.json", mine / "manifest.json")
    analysis = json.loads((mine / "manifest.json").read_text()) | {"artefact": None}
    (mine / "manifest.json").write_text(json.dumps(analysis))
    with pytest.raises(HeadpruneError, match="--force replaces nothing else"):
        export_onnx(request_of(llama, mine, force=True))
    assert (mine / "thesis.txt").exists()


def test_output_may_not_hold_the_input(llama: Family, tmp_path: Path) -> None:
    shutil.copytree(llama.baseline.directory, tmp_path / "base")
    request = request_of(
        llama, tmp_path / "base", from_onnx=tmp_path / "base" / "model.onnx", force=True
    )
    with pytest.raises(HeadpruneError, match="holds the model to be exported"):
        export_onnx(request)
    assert (tmp_path / "base" / "model.onnx").exists()


def broken_graph(family: Family, directory: Path) -> Path:
    """A copy of the baseline whose layer 2 has lost its names."""
    shutil.copytree(family.baseline.directory, directory)
    (directory / "manifest.json").unlink()
    model = ir.load(directory / "model.onnx")
    for node in model.graph:
        if "layers.2.self_attn.o_proj" in node.metadata_props.get("pkg.torch.onnx.name_scopes", ""):
            node.metadata_props.clear()
            weight = node.inputs[1]
            assert weight is not None
            weight.name = "anonymous"
    ir.save(model, directory / "model.onnx")
    return directory / "model.onnx"


@pytest.mark.parametrize("mode", ["dynamic", "static"])
def test_failed_export_leaves_nothing_behind(llama: Family, tmp_path: Path, mode: str) -> None:
    graph = broken_graph(llama, tmp_path / "broken")
    gate = GATE if mode == "dynamic" else gate_of("awft", mode="static", heads=[(0, 0)])
    with pytest.raises(HeadpruneError, match="layer 2") as caught:
        export_onnx(request_of(llama, tmp_path / "out", from_onnx=graph, gate=gate))
    assert caught.value.exit_code == ExitCode.USAGE
    assert [path.name for path in tmp_path.iterdir()] == ["broken"]


def test_graph_that_differs_from_the_model_is_refused(llama: Family, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(llama.baseline.directory, source)
    data = bytearray((source / "model.onnx.data").read_bytes())
    middle = len(data) // 2 // 4 * 4
    data[middle : middle + 400] = bytes(400)
    (source / "model.onnx.data").write_bytes(data)
    request = request_of(
        llama, tmp_path / "out", from_onnx=source / "model.onnx", model=str(llama.directory)
    )
    with pytest.raises(HeadpruneError, match="differs from PyTorch") as caught:
        export_onnx(request)
    assert caught.value.exit_code == ExitCode.INVALID
    assert not (tmp_path / "out").exists()
