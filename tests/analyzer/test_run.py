"""`analyze` as a whole: the manifest's content against the raw definitions, and its bytes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from headprune.analyzer.gating import Decision, gated
from headprune.analyzer.loading import load_model
from headprune.analyzer.run import AnalyzeRequest, analyze
from headprune.analyzer.scores import find_scores
from headprune.analyzer.sources import recall_directory
from headprune.errors import HeadpruneError
from headprune.files import sha256_file
from headprune.manifests import read_manifest
from headprune.manifests.gates import choose_gate
from headprune.manifests.raw import inactive_shares
from tests.analyzer import families
from tests.conftest import save_model


def folder_bytes(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def request(model: Path, text: Path, output: Path, **options: object) -> AnalyzeRequest:
    return AnalyzeRequest(
        model=str(model),
        output=output,
        calibration=(str(text),),
        lengths=(10, 200),
        **options,  # type: ignore[arg-type]
    )


def test_same_inputs_give_the_same_bytes_wherever_they_are_written(
    llama_directory: Path, text_file: Path, llama_manifest: Path, tmp_path: Path
) -> None:
    analyze(request(llama_directory, text_file, tmp_path / "deep" / "manifest.json"))
    assert folder_bytes(tmp_path / "deep") == folder_bytes(llama_manifest.parent)
    text = llama_manifest.read_text()
    for path in (llama_directory, text_file, tmp_path, Path.home()):
        assert str(path) not in text


def test_the_manifest_holds_every_score(llama_manifest: Path) -> None:
    manifest = read_manifest(llama_manifest)
    assert list(manifest.scores) == [score.id for score in find_scores(["all"])]
    assert [t.fraction for t in manifest.scores["ahon"].thresholds] == [
        0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3,
    ]  # fmt: skip


def test_batches_change_the_speed_not_the_scores(
    llama_directory: Path, text_file: Path, llama_manifest: Path, tmp_path: Path
) -> None:
    output = tmp_path / "manifest.json"
    analyze(request(llama_directory, text_file, output, batch_size=5))
    alone, together = read_manifest(llama_manifest), read_manifest(output)
    for name, score in alone.scores.items():
        absolute = 2e-4 if name in {"aeqd_ln", "teqd_ln"} else 5e-6
        # Values at a bucket's edge may fall into its neighbour.
        relative = 2e-3 if score.granularity == "token" else 2e-5
        np.testing.assert_allclose(
            together.scores[name].quantiles, score.quantiles, rtol=relative, atol=absolute
        )


@pytest.mark.parametrize("stream", [False, True])
def test_weights_without_a_place_are_told(
    llama_directory: Path, text_file: Path, tmp_path: Path, stream: bool
) -> None:
    model = shutil.copytree(llama_directory, tmp_path / "model")
    settings = json.loads((model / "config.json").read_text())
    settings["num_hidden_layers"] -= 1
    (model / "config.json").write_text(json.dumps(settings))
    last = f"model.layers.{settings['num_hidden_layers']}."
    lines: list[str] = []
    analyze(request(model, text_file, tmp_path / "m.json", stream=stream, progress=lines.append))
    (told,) = [line for line in lines if line.startswith("warning")]
    assert last in told
    lines.clear()
    analyze(
        request(
            llama_directory, text_file, tmp_path / "n.json", stream=stream, progress=lines.append
        )
    )
    assert not [line for line in lines if line.startswith("warning")]


def test_a_model_is_its_weights_and_its_configuration(
    llama_directory: Path, text_file: Path, llama_manifest: Path, tmp_path: Path
) -> None:
    """What only says who saved it, or in which order, is no other model."""
    known = read_manifest(llama_manifest).model
    settings = json.loads((llama_directory / "config.json").read_text())
    for name, changes in (
        ("same", {"transformers_version": "4.0"}),
        ("other", {"hidden_act": "relu"}),
    ):
        model = shutil.copytree(llama_directory, tmp_path / name)
        turned = dict(reversed((settings | changes).items()))
        (model / "config.json").write_text(json.dumps(turned))
        analyze(request(model, text_file, tmp_path / f"{name}.json", scores=("ahon",)))
        found = read_manifest(tmp_path / f"{name}.json").model
        assert found.weights_sha256 == known.weights_sha256
        assert (found.config_sha256 == known.config_sha256) == (name == "same")
        assert recall_directory(found) == model
    assert recall_directory(known) == tmp_path / "same"


def test_replacing_a_manifest_removes_its_raw_scores(
    llama_directory: Path, text_file: Path, tmp_path: Path
) -> None:
    def raw() -> set[str]:
        return {path.name for path in tmp_path.glob("scores-*")}

    def run(name: str, seed: int) -> str:
        analyze(request(llama_directory, text_file, tmp_path / name, scores=("ahon",), seed=seed))
        scores = read_manifest(tmp_path / name).raw_scores
        assert scores is not None
        return scores.file

    first, again = run("a.json", 0), run("a.json", 0)
    assert first == again
    assert raw() == {first}
    second = run("a.json", 1)
    assert raw() == {second}
    assert run("b.json", 1) == second
    third = run("a.json", 2)
    assert raw() == {second, third}, "the other manifest names it still"


def test_raw_scores_give_the_manifests_thresholds_and_shares(llama_manifest: Path) -> None:
    manifest = read_manifest(llama_manifest)
    assert manifest.raw_scores is not None
    path = llama_manifest.parent / manifest.raw_scores.file
    assert sha256_file(path) == manifest.raw_scores.sha256
    raw = load_file(path)
    for name, score in manifest.scores.items():
        if score.granularity == "token":
            continue
        cells = raw[f"sequence.{name}"].astype(np.float64)
        for index, entry in enumerate(score.thresholds):
            above = score.inactive_when == "above"
            level = 1 - entry.fraction if above else entry.fraction
            wanted = np.float32(np.quantile(cells, level))
            assert np.float32(entry.threshold) == pytest.approx(wanted, rel=1e-6)
            inactive = cells > entry.threshold if above else cells < entry.threshold
            np.testing.assert_allclose(
                score.heads.inactive_share[index], inactive.mean(axis=0), rtol=1e-6
            )
            # The query heads of a KV group tie in the scores of values.
            tied = inactive | (cells == entry.threshold)
            slack = 1.5 / cells.size
            assert inactive.mean() - slack <= entry.fraction <= tied.mean() + slack, name
        np.testing.assert_allclose(score.heads.std, cells.std(axis=0), rtol=1e-5, atol=1e-7)


def test_token_thresholds_gate_their_share_of_the_calibration_tokens(
    llama_directory: Path, text_file: Path, llama_manifest: Path
) -> None:
    """In layer 0 no earlier gate interferes, so PyTorch's gate must find the manifest's shares."""
    manifest = read_manifest(llama_manifest)
    gate = choose_gate(manifest, llama_manifest.parent, score="thon_ln", fraction=0.2)
    shares = inactive_shares(manifest, llama_manifest.parent, "thon_ln", gate.threshold)
    model = load_model(str(llama_directory))
    kept: list[torch.Tensor] = []

    def observe(decision: Decision) -> None:
        if decision.layer == 0:
            kept.append(decision.keep[decision.mask])

    from headprune.analyzer.calibration import choose_sequences, load_documents

    sources = load_documents((str(text_file),))
    chosen = choose_sequences(sources, model.tokenizer, lengths=(10, 200))
    with torch.inference_mode(), gated(model.model, gate, observe=observe):
        for ids in chosen.sequences:
            model.model(input_ids=torch.tensor([ids]))
    inactive = 1 - torch.cat(kept).float().mean(dim=0)
    np.testing.assert_allclose(inactive.numpy(), shares[0], atol=2e-3)


def test_a_threshold_beyond_the_manifests_reads_the_raw_scores(llama_manifest: Path) -> None:
    manifest = read_manifest(llama_manifest)
    assert manifest.raw_scores is not None
    raw = load_file(llama_manifest.parent / manifest.raw_scores.file)
    cells = raw["sequence.ahon_ln"]
    got = inactive_shares(manifest, llama_manifest.parent, "ahon_ln", 0.876)
    np.testing.assert_allclose(got, (cells < 0.876).mean(axis=0))
    token = inactive_shares(manifest, llama_manifest.parent, "thon_ln", 1e9)
    assert np.min(token) == 1


def test_missing_or_changed_raw_scores_are_refused(llama_manifest: Path, tmp_path: Path) -> None:
    manifest = read_manifest(llama_manifest)
    assert manifest.raw_scores is not None
    with pytest.raises(HeadpruneError, match="there is no"):
        inactive_shares(manifest, tmp_path, "ahon", 0.123)
    (tmp_path / manifest.raw_scores.file).write_bytes(b"other")
    with pytest.raises(HeadpruneError, match="is not the file"):
        inactive_shares(manifest, tmp_path, "ahon", 0.123)


@pytest.mark.parametrize("family", ["gpt2", "mistral", "qwen2", "gemma2", "gpt-oss"])
def test_other_families_are_profiled_without_code_of_their_own(
    family: str, text_file: Path, tmp_path: Path
) -> None:
    model = save_model(family, tmp_path / family, model=families.build_model(family))
    manifest = analyze(request(model, text_file, tmp_path / "m.json", sequences=3))
    assert manifest.model.model_type == family.replace("-", "_")
    assert manifest.model.left_out_layers == ()
    assert json.loads((tmp_path / "m.json").read_text())["model"]["name"] == family


def test_a_family_without_sdpa_attention_is_streamed_too(text_file: Path, tmp_path: Path) -> None:
    model = save_model("gemma2", tmp_path / "gemma2", model=families.build_model("gemma2"))
    whole = analyze(request(model, text_file, tmp_path / "a" / "m.json", sequences=3))
    streamed = analyze(
        request(model, text_file, tmp_path / "b" / "m.json", sequences=3, stream=True)
    )
    assert whole is not None
    assert streamed is not None
    assert streamed.scores == whole.scores


def test_a_failed_run_leaves_no_file(llama_directory: Path, tmp_path: Path) -> None:
    with pytest.raises(HeadpruneError):
        analyze(request(llama_directory, tmp_path / "nothing.jsonl", tmp_path / "m.json"))
    assert not list(tmp_path.iterdir())
