"""Hybrid models: the softmax-attention layers are profiled, the others are named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM, BambaConfig, JambaConfig, PretrainedConfig

from headprune.analyzer.calibration import choose_sequences, load_documents
from headprune.analyzer.geometry import probe_layers
from headprune.analyzer.loading import load_model
from headprune.analyzer.run import AnalyzeRequest, analyze
from headprune.errors import ExitCode, HeadpruneError
from headprune.exporters import ExportRequest, export_onnx
from headprune.manifests import Manifest, read_manifest, write_manifest
from headprune.manifests.model import describe_layers
from headprune.manifests.show import describe
from tests.analyzer import families
from tests.analyzer.forwards import computed, run
from tests.conftest import save_model

LEFT_OUT = "layers 0, 2: no softmax attention"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random LFM2 of four layers, the second and the last with softmax attention."""
    path = tmp_path_factory.mktemp("lfm2")
    return save_model("lfm2", path, model=families.build_model("lfm2"))


@pytest.fixture(scope="module")
def analyzed(
    directory: Path, text_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[str]]:
    """Its manifest, and what the analyzer said meanwhile."""
    path = tmp_path_factory.mktemp("manifest") / "manifest.json"
    said: list[str] = []
    request = AnalyzeRequest(
        model=str(directory), output=path, calibration=(str(text_file),), lengths=(10, 60),
        sequences=4, batch_size=3, progress=said.append,
    )  # fmt: skip
    analyze(request)
    return path, said


@pytest.fixture(scope="module")
def manifest(analyzed: tuple[Path, list[str]]) -> Manifest:
    return read_manifest(analyzed[0])


def test_the_manifest_holds_the_attention_layers_and_names_the_others(
    analyzed: tuple[Path, list[str]], manifest: Manifest
) -> None:
    assert len(manifest.model.layers) == 2
    assert manifest.model.left_out_layers == (0, 2)
    assert manifest.model.layer_indices == (1, 3)
    assert f"leaving out {LEFT_OUT}" in analyzed[1]
    assert f"left out     {LEFT_OUT}" in describe(manifest).splitlines()


def test_a_manifest_of_every_layer_says_nothing(llama_manifest: Path) -> None:
    manifest = read_manifest(llama_manifest)
    assert manifest.model.left_out_layers == ()
    assert manifest.model.layer_indices == (0, 1, 2)
    assert "softmax attention" not in describe(manifest)


def test_scores_stand_at_the_place_of_their_layer(
    analyzed: tuple[Path, list[str]], manifest: Manifest, directory: Path, text_file: Path
) -> None:
    assert manifest.raw_scores is not None
    raw = load_file(analyzed[0].parent / manifest.raw_scores.file)
    loaded = load_model(str(directory))
    sources = load_documents((str(text_file),), 4)
    chosen = choose_sequences(sources, loaded.tokenizer, lengths=(10, 60))
    for number, ids in enumerate(chosen.sequences):
        for place, capture in enumerate(run(loaded.model, [list(ids)])):
            assert capture.layer == manifest.model.layer_indices[place]
            for name, wanted in computed(capture, 0):
                if wanted.ndim == 1:
                    got = raw[f"sequence.{name}"][number, place]
                    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=5e-6)


def test_streamed_by_layer_it_is_the_same(
    manifest: Manifest, directory: Path, text_file: Path, tmp_path: Path
) -> None:
    said: list[str] = []
    request = AnalyzeRequest(
        model=str(directory), output=tmp_path / "m.json", calibration=(str(text_file),),
        lengths=(10, 60), sequences=4, batch_size=3, stream=True, progress=said.append,
    )  # fmt: skip
    streamed = analyze(request)
    assert streamed is not None
    assert streamed.model.layers == manifest.model.layers
    assert streamed.model.left_out_layers == (0, 2)
    assert streamed.scores == manifest.scores
    assert f"leaving out {LEFT_OUT}" in said


def test_its_export_is_refused(manifest: Manifest, directory: Path, tmp_path: Path) -> None:
    request = ExportRequest(
        manifest=manifest, output=tmp_path / "out", gate=None, model=str(directory)
    )
    with pytest.raises(HeadpruneError, match=f"cannot be exported: {LEFT_OUT}") as caught:
        export_onnx(request)
    assert caught.value.exit_code == ExitCode.USAGE
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("layers", [(-1,), (1, 1), None])
def test_left_out_layers_are_validated(manifest: Manifest, layers: object, tmp_path: Path) -> None:
    broken = replace(manifest, model=replace(manifest.model, left_out_layers=layers))
    with pytest.raises(HeadpruneError, match="left_out_layers"):
        write_manifest(broken, tmp_path / "m.json")


SMALL = {
    "vocab_size": 50, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 2, "intermediate_size": 64, "mamba_d_state": 4,
}  # fmt: skip


@pytest.mark.parametrize(
    "config",
    [
        JambaConfig(
            **SMALL, num_experts=2, attn_layer_offset=1, attn_layer_period=3, mamba_dt_rank=4
        ),
        BambaConfig(
            **SMALL, attn_layer_indices=[1], mamba_n_heads=8, mamba_n_groups=1, mamba_d_head=12
        ),
    ],
    ids=["jamba", "bamba"],
)
def test_state_space_layers_are_left_out(config: PretrainedConfig) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    geometry = probe_layers(model, "it")
    assert geometry.left_out == (0, 2)
    assert [(h.query_heads, h.kv_heads, h.head_dim) for h in geometry.layers] == [(6, 2, 8)]


@pytest.mark.parametrize(
    ("layers", "words"),
    [((), ""), ((3,), "3"), ((0, 1, 2, 4, 6, 7), "0-2, 4, 6-7"), ((0, 2), "0, 2")],
)
def test_layers_in_words(layers: tuple[int, ...], words: str) -> None:
    assert describe_layers(layers) == words
