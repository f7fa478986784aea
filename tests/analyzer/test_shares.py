"""One analysis in pieces gives the manifest of one piece: shards, ranks, layers, interruptions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from headprune.analyzer import journal, run
from headprune.analyzer.run import AnalyzeRequest, analyze
from headprune.cli import run as command
from headprune.errors import HeadpruneError
from headprune.manifests.files import read_manifest
from headprune.manifests.merge import merge
from headprune.manifests.model import Shard
from tests.conftest import FAMILIES, save_model


def request(model: Path, text: Path, output: Path, **options: object) -> AnalyzeRequest:
    settings = {"calibration": (str(text),), "lengths": (10, 200), "batch_size": 2, **options}
    return AnalyzeRequest(model=str(model), output=output, **settings)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def whole(llama_directory: Path, text_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "manifest.json"
    analyze(request(llama_directory, text_file, path))
    return path


def assert_same(got: Path, wanted: Path) -> None:
    """The same manifest and, named in it by hash, the same raw scores."""
    assert got.read_bytes() == wanted.read_bytes()
    raw = read_manifest(got).raw_scores
    assert raw is not None
    assert (got.parent / raw.file).read_bytes() == (wanted.parent / raw.file).read_bytes()


@pytest.fixture(scope="module")
def shards(
    llama_directory: Path, text_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> list[Path]:
    folder = tmp_path_factory.mktemp("shards")
    paths = [folder / f"shard-{index}.json" for index in range(3)]
    for index, path in enumerate(paths):
        shard = Shard(index=index, count=3)
        analyze(request(llama_directory, text_file, path, shard=shard))
    return paths


def test_merged_shards_are_the_single_run(shards: list[Path], whole: Path, tmp_path: Path) -> None:
    output = tmp_path / "merged.json"
    names = [str(path) for path in reversed(shards)]
    assert command(["manifest", "merge", *names, "-o", str(output)]) == 0
    assert_same(output, whole)


def test_each_shard_has_its_own_sequences_and_no_others(shards: list[Path], whole: Path) -> None:
    raw = [read_raw(path) for path in shards]
    known = np.stack([~np.isnan(tensors["sequence.ahon"][:, 0, 0]) for tensors in raw])
    assert (known.sum(axis=0) == 1).all()
    assert (known.sum(axis=1) > 0).all()
    assert not np.isnan(read_raw(whole)["sequence.ahon"]).any()


def read_raw(path: Path) -> dict[str, np.ndarray]:
    raw = read_manifest(path, shards=True).raw_scores
    assert raw is not None
    return load_file(path.parent / raw.file)


def test_shards_that_do_not_belong_together_are_refused(
    shards: list[Path], whole: Path, tmp_path: Path
) -> None:
    other = json.loads(shards[1].read_text())
    other["calibration"]["seed"] = 7
    edited = tmp_path / "edited.json"
    edited.write_text(json.dumps(other))
    cases = {
        "2 of 3 shards are missing: 2, 3": [shards[0]],
        "given more than once": [shards[0], shards[1], shards[1]],
        "whole analysis": [shards[0], whole, shards[2]],
        "calibration differ": [shards[0], edited, shards[2]],
    }
    for message, paths in cases.items():
        with pytest.raises(HeadpruneError, match=message):
            merge(paths, tmp_path / "merged.json")
    assert not (tmp_path / "merged.json").exists()


def test_a_shard_is_not_taken_for_the_whole(
    shards: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gated = str(tmp_path / "gated")
    assert command(["export", "--manifest", str(shards[0]), "-o", gated]) == 2
    assert "shard 1 of 3" in capsys.readouterr().err
    assert command(["manifest", "show", str(shards[0])]) == 0
    assert "shard 1 of 3" in capsys.readouterr().out


@pytest.mark.slow
def test_launched_processes_are_the_single_run(
    llama_directory: Path, text_file: Path, tmp_path: Path
) -> None:
    """`torchrun` with two processes; it gives each one thread, and so does the single run."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    outputs = [tmp_path / name / "manifest.json" for name in ("ranks", "single")]
    launchers = [["-m", "torch.distributed.run", "--nproc-per-node", "2"], []]
    for launcher, output in zip(launchers, outputs, strict=True):
        subprocess.run(
            [sys.executable, *launcher, "-m", "headprune", "analyze", "--model", llama_directory,
             "--calibration", text_file, "--length", "10:200", "-o", output],
            check=True, env=environment, capture_output=True,
        )  # fmt: skip
    assert_same(*outputs)
    assert sorted(path.name for path in outputs[0].parent.iterdir()) == sorted(
        path.name for path in outputs[1].parent.iterdir()
    )


def test_a_launcher_and_shards_do_not_go_together(
    llama_directory: Path, text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    shard = Shard(index=0, count=2)
    with pytest.raises(HeadpruneError, match="--shard"):
        analyze(request(llama_directory, text_file, tmp_path / "m.json", shard=shard))


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_streaming_is_the_single_run(family: str, text_file: Path, tmp_path: Path) -> None:
    model = save_model(family, tmp_path / "model")
    outputs = [tmp_path / name / "manifest.json" for name in ("whole", "streamed")]
    for output, stream in zip(outputs, (False, True), strict=True):
        analyze(request(model, text_file, output, sequences=5, stream=stream))
    assert_same(outputs[1], outputs[0])
    assert [path.name for path in outputs[1].parent.iterdir() if "partial" in path.name] == []


def test_weights_over_the_memory_budget_are_streamed(
    llama_directory: Path, text_file: Path, tmp_path: Path, whole: Path
) -> None:
    said: list[str] = []
    output = tmp_path / "manifest.json"
    analyze(request(llama_directory, text_file, output, memory=1000, progress=said.append))
    assert any(line.startswith("streaming the weights") for line in said)
    assert_same(output, whole)
    said.clear()
    roomy = tmp_path / "roomy.json"
    analyze(request(llama_directory, text_file, roomy, memory=10**9, progress=said.append))
    assert not any(line.startswith("streaming") for line in said)


def test_streaming_says_which_weight_is_missing(text_file: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file as load
    from safetensors.torch import save_file

    model = save_model("llama", tmp_path / "model")
    tensors = load(model / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    output = tmp_path / "manifest.json"
    with pytest.raises(HeadpruneError, match=r"layer 1 has no mlp.up_proj.weight"):
        analyze(request(model, text_file, output, stream=True))
    assert not output.exists()


def test_killed_analyses_resume_to_the_same_manifest(
    llama_directory: Path, text_file: Path, tmp_path: Path
) -> None:
    """Twenty kills at random moments, in memory and streamed by turns, with many snapshots."""
    root = Path(__file__).parents[2]
    result = subprocess.run(
        [sys.executable, "-m", "tests.analyzer.killed", llama_directory, text_file, tmp_path, "20"],
        capture_output=True, text=True, check=False, cwd=root,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HEADPRUNE_TRACEBACK": "1"},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert int(result.stdout.split()[-1]) >= 3, "hardly any kill hit the work itself"


class Interrupted(KeyboardInterrupt):
    """Ctrl-C after so many units."""


def interrupt_after(monkeypatch: pytest.MonkeyPatch, units: int) -> None:
    record = journal.Journal.record

    def stop(self: journal.Journal, *arguments: object) -> None:
        if len(self.done) == units:
            raise Interrupted
        record(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(run.Journal, "record", stop)


@pytest.fixture
def interrupted(
    llama_directory: Path, text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AnalyzeRequest:
    """An analysis stopped by Ctrl-C after three batches of six."""
    asked = request(llama_directory, text_file, tmp_path / "manifest.json")
    with monkeypatch.context() as patched:
        interrupt_after(patched, 3)
        with pytest.raises(Interrupted):
            analyze(asked)
    return asked


def test_an_interrupted_analysis_goes_on(interrupted: AnalyzeRequest, whole: Path) -> None:
    with pytest.raises(HeadpruneError, match="interrupted") as caught:
        analyze(interrupted)
    assert "--resume" in (caught.value.hint or "")
    said: list[str] = []
    analyze(replace(interrupted, resume=True, progress=said.append))
    assert sum(line.startswith("profiled") for line in said) == 3
    assert_same(interrupted.output, whole)


def test_an_interrupted_analysis_can_be_thrown_away(
    interrupted: AnalyzeRequest, whole: Path
) -> None:
    said: list[str] = []
    analyze(replace(interrupted, restart=True, progress=said.append))
    assert sum(line.startswith("profiled") for line in said) == 6
    assert_same(interrupted.output, whole)


@pytest.mark.parametrize("change", [{"seed": 1}, {"batch_size": 1}, {"scores": ("ahon",)}])
def test_another_analysis_is_not_resumed(
    interrupted: AnalyzeRequest, change: dict[str, object]
) -> None:
    with pytest.raises(HeadpruneError, match="differ"):
        analyze(replace(interrupted, resume=True, **change))  # type: ignore[arg-type]


def test_nothing_to_resume_is_an_error(
    llama_directory: Path, text_file: Path, tmp_path: Path
) -> None:
    with pytest.raises(HeadpruneError, match="nothing to resume"):
        analyze(request(llama_directory, text_file, tmp_path / "m.json", resume=True))
    assert list(tmp_path.iterdir()) == []


def test_two_analyses_of_one_output_are_refused(
    llama_directory: Path, text_file: Path, tmp_path: Path
) -> None:
    import fcntl

    partial = tmp_path / "manifest.json.partial"
    partial.mkdir()
    (partial / "plan.json").write_text("{}")
    for options in ({}, {"resume": True}, {"restart": True}):
        with (partial / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with pytest.raises(HeadpruneError, match="another analysis"):
                analyze(request(llama_directory, text_file, tmp_path / "manifest.json", **options))
        assert (partial / "plan.json").read_text() == "{}"
