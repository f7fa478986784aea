"""What cannot be exported is told before any long work, with the way out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnx_ir as ir
import pytest

from headprune.errors import ExitCode, HeadpruneError
from headprune.exporters import DYNAMIC_SCORES, ExportRequest, ExportResult, export_onnx
from headprune.exporters.score_table import resolve_gate
from headprune.manifests import Gate, LayerHeads

from .conftest import Family, gate_of

Gated = Callable[[Family, Gate], ExportResult]


@pytest.fixture
def llama(families: Callable[[str], Family]) -> Family:
    return families("llama")


@pytest.mark.parametrize("score", ["aeqd", "fhon_ln", "avvn", "lthon_hn", "random"])
def test_unsupported_dynamic_score(score: str) -> None:
    gate = replace(gate_of("ahon", decode="new"), score=score)
    with pytest.raises(HeadpruneError) as caught:
        resolve_gate(gate)
    assert caught.value.exit_code == ExitCode.USAGE
    for name in DYNAMIC_SCORES:
        assert name in caught.value.message
    assert "--gate static" in (caught.value.hint or "")


def test_above_is_not_supported() -> None:
    gate = replace(gate_of("ahon", decode="new"), score="awft", inactive_when="above")
    with pytest.raises(HeadpruneError, match="inactive above the threshold"):
        resolve_gate(gate)
    assert resolve_gate(replace(gate, mode="static", decode=None)) is not None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"granularity": "token"}, "expected sequence"),
        ({"decode": None}, "expected running or new"),
        ({"score": "thon", "granularity": "token"}, "decode rule new, expected none"),
    ],
)
def test_gate_at_odds_with_its_score(changes: dict[str, str], message: str) -> None:
    with pytest.raises(HeadpruneError, match=message):
        resolve_gate(replace(gate_of("ahon", decode="new"), **changes))


def test_no_source() -> None:
    with pytest.raises(HeadpruneError, match="neither a model nor an ONNX file"):
        ExportRequest(manifest=None, output=Path("out"), gate=None)


def test_other_model(llama: Family, families: Callable[[str], Family], tmp_path: Path) -> None:
    other = families("gpt2")
    for source in (
        {"model": str(other.directory)},
        {"from_onnx": other.baseline.directory / "model.onnx"},
    ):
        request = ExportRequest(
            manifest=llama.manifest, output=tmp_path / "out", gate=None, **source
        )
        with pytest.raises(HeadpruneError, match="is another model than the manifest's") as caught:
            export_onnx(request)
        assert caught.value.exit_code == ExitCode.USAGE
        assert llama.manifest.model.weights_sha256[:12] in caught.value.message
        assert list(tmp_path.iterdir()) == []


def test_other_configuration(llama: Family, tmp_path: Path) -> None:
    """The same weights under another configuration compute something else."""
    graph, model = tmp_path / "graph", tmp_path / "model"
    shutil.copytree(llama.baseline.directory, graph)
    shutil.copytree(llama.directory, model)
    for settings in (model / "config.json", graph / "manifest.json"):
        document = json.loads(settings.read_text())
        if settings.parent == model:
            document["rms_norm_eps"] = 0.1
        else:
            document["model"]["config_sha256"] = "0" * 64
        settings.write_text(json.dumps(document))
    for source in ({"model": str(model)}, {"from_onnx": graph / "model.onnx"}):
        request = ExportRequest(
            manifest=llama.manifest, output=tmp_path / "out", gate=None, **source
        )
        with pytest.raises(HeadpruneError, match=r"hash of config\.json"):
            export_onnx(request)


def test_gated_graph_is_not_gated_again(llama: Family, gated: Gated, tmp_path: Path) -> None:
    sources = [
        gated(llama, gate_of("thon")),
        gated(llama, gate_of("awft", mode="static", heads=[(0, 0)])),
    ]
    for source in sources:
        for keep_manifest in (True, False):
            copy = tmp_path / f"{source.directory.parent.name}-{keep_manifest}"
            shutil.copytree(source.directory, copy)
            if not keep_manifest:
                (copy / "manifest.json").unlink()
                if source.gated_layers == (0,):
                    continue  # Folded weights look like any others.
            request = ExportRequest(
                manifest=llama.manifest,
                output=tmp_path / "out",
                gate=gate_of("thon"),
                from_onnx=copy / "model.onnx",
            )
            with pytest.raises(HeadpruneError, match="gate already"):
                export_onnx(request)


def test_graph_of_another_shape(llama: Family, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(llama.baseline.directory, copy)
    (copy / "manifest.json").unlink()
    three = llama.manifest.model.layers
    wrong = {
        "should have 6 heads of 8, got 2 heads of 8": (replace(three[0], kv_heads=6), *three[1:]),
        "no such input": (*three, three[0]),
        "more layers than the manifest's 2": three[:2],
    }
    for message, layers in wrong.items():
        manifest = replace(llama.manifest, model=replace(llama.manifest.model, layers=layers))
        request = ExportRequest(
            manifest=manifest, output=tmp_path / "out", gate=None, from_onnx=copy / "model.onnx"
        )
        with pytest.raises(HeadpruneError, match=message):
            export_onnx(request)


def test_unreadable_onnx(llama: Family, tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"not a graph")
    for name in ("bad.onnx", "absent.onnx"):
        request = ExportRequest(
            manifest=llama.manifest, output=tmp_path / "out", gate=None, from_onnx=tmp_path / name
        )
        with pytest.raises(HeadpruneError, match="cannot read the ONNX file"):
            export_onnx(request)


def test_data_file_left_behind(llama: Family, tmp_path: Path) -> None:
    shutil.copy(llama.baseline.directory / "model.onnx", tmp_path / "model.onnx")
    request = ExportRequest(
        manifest=llama.manifest,
        output=tmp_path / "out",
        gate=None,
        from_onnx=tmp_path / "model.onnx",
    )
    with pytest.raises(HeadpruneError, match=r"tensors in model.onnx.data, which is not beside it"):
        export_onnx(request)


def test_other_input_names(llama: Family, tmp_path: Path) -> None:
    shutil.copytree(llama.baseline.directory, tmp_path / "copy")
    model = ir.load(tmp_path / "copy" / "model.onnx")
    model.graph.outputs[0].name = "scores"
    ir.save(model, tmp_path / "copy" / "model.onnx")
    request = ExportRequest(
        manifest=llama.manifest,
        output=tmp_path / "out",
        gate=None,
        from_onnx=tmp_path / "copy" / "model.onnx",
    )
    with pytest.raises(HeadpruneError, match="no input or output logits"):
        export_onnx(request)


def test_no_tokenizer_beside_the_graph(llama: Family, tmp_path: Path) -> None:
    for name in ("model.onnx", "model.onnx.data"):
        shutil.copy(llama.baseline.directory / name, tmp_path / name)
    request = ExportRequest(
        manifest=llama.manifest,
        output=tmp_path / "out",
        gate=None,
        from_onnx=tmp_path / "model.onnx",
    )
    with pytest.raises(HeadpruneError, match=r"no config.json or no tokenizer files"):
        export_onnx(request)
    assert not (tmp_path / "out").exists()


def test_head_that_does_not_exist(llama: Family, tmp_path: Path) -> None:
    assert llama.manifest.model.layers[0] == LayerHeads(query_heads=6, kv_heads=2, head_dim=8)
    request = ExportRequest(
        manifest=llama.manifest,
        output=tmp_path / "out",
        gate=gate_of("awft", mode="static", heads=[(0, 6)]),
        model="does-not-matter",
    )
    with pytest.raises(HeadpruneError, match="layer 0 head 6: no such head"):
        export_onnx(request)
