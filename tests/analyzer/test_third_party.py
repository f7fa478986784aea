"""A score of another package, in one file: profiled, thresholded and exported like ours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from headprune.manifests import read_manifest

SCORE = '''
from headprune.analyzer.scores import score


@score("peak", title="Largest Output Norm", inactive_when="below", layer_normalised=True,
       reference="tests")
def peak(c):
    """Largest output norm over the sequence's real tokens. [batch, head]"""
    return c.output_norm.masked_fill(~c.mask[..., None], 0).amax(dim=1)
'''


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Where a package with one score and its entry point is installed."""
    site = tmp_path / "site"
    info = site / "peak_score-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "peak_score.py").write_text(SCORE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: peak-score\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[headprune.scores]\npeak = peak_score\n")
    paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def test_a_score_of_another_package(
    environment: dict[str, str], llama_directory: Path, text_file: Path, tmp_path: Path
) -> None:
    def headprune(*arguments: object) -> str:
        command = [sys.executable, "-m", "headprune", *map(str, arguments)]
        return subprocess.run(
            command, env=environment, check=True, capture_output=True, text=True, cwd=tmp_path
        ).stdout

    headprune("analyze", "--model", llama_directory, "--calibration", text_file, "--length",
              "10:60", "--scores", "peak,peak_ln,thon")  # fmt: skip
    manifest = read_manifest(tmp_path / "manifest.json")
    assert set(manifest.scores) == {"peak", "peak_ln", "thon"}
    assert manifest.raw_scores is not None
    raw = load_file(tmp_path / manifest.raw_scores.file)["sequence.peak"]
    wanted = np.quantile(raw.astype(np.float64), 0.2)
    (threshold,) = [t.threshold for t in manifest.scores["peak"].thresholds if t.fraction == 0.2]
    assert threshold == pytest.approx(wanted, rel=1e-6)
    said = headprune("export", "--manifest", "manifest.json", "--gate", "static", "--score",
                     "peak", "--fraction", "0.3", "--share", "0.5", "-o", "static")  # fmt: skip
    gate = read_manifest(tmp_path / "static" / "manifest.json").gate
    assert gate is not None
    off = (raw < np.float32(gate.threshold)).mean(axis=0) >= 0.5
    assert gate.heads == tuple((int(a), int(b)) for a, b in np.argwhere(off))
    assert f"static: {off.sum()} of {off.size} heads always off (peak)" in said
