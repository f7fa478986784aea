"""Choosing a gate: thresholds, static heads, decode rules, head lists."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from headprune.errors import HeadpruneError
from headprune.manifests import Gate, Manifest, read_manifest
from headprune.manifests.gates import choose_gate, parse_heads, threshold_for


@pytest.fixture(scope="module")
def folder(llama_manifest: Path) -> Path:
    return llama_manifest.parent


@pytest.fixture(scope="module")
def manifest(llama_manifest: Path) -> Manifest:
    return read_manifest(llama_manifest)


def raw(manifest: Manifest, folder: Path, score: str) -> np.ndarray:
    assert manifest.raw_scores is not None
    return load_file(folder / manifest.raw_scores.file)[f"sequence.{score}"].astype(np.float64)


def test_the_default_gates_a_tenth_of_the_tokens(manifest: Manifest, folder: Path) -> None:
    gate = choose_gate(manifest, folder)
    assert (gate.score, gate.fraction, gate.mode) == ("thon_ln", 0.1, "dynamic")
    assert gate.threshold == manifest.scores["thon_ln"].thresholds[2].threshold
    assert (gate.heads, gate.decode, gate.share) == ((), None, None)


@pytest.mark.parametrize("score", ["ahon_ln", "awft"])
@pytest.mark.parametrize("percent", [0, 1, 37, 99, 100])
def test_any_whole_percent_is_the_exact_quantile(
    score: str, percent: int, manifest: Manifest, folder: Path
) -> None:
    cells = raw(manifest, folder, score)
    level = percent / 100 if score == "ahon_ln" else 1 - percent / 100
    wanted = np.quantile(cells, level)
    assert threshold_for(manifest.scores[score], percent / 100) == pytest.approx(wanted, rel=1e-6)


def test_fractions_between_lie_between(manifest: Manifest) -> None:
    summary = manifest.scores["ahon_ln"]
    at = [threshold_for(summary, fraction) for fraction in (0.12, 0.125, 0.13)]
    assert at == sorted(at)
    assert at[0] < at[1] < at[2]


@pytest.mark.parametrize("score", ["ahon_ln", "awft"])
@pytest.mark.parametrize("fraction", [0.2, 0.37])
def test_static_heads_are_those_inactive_in_the_share(
    score: str, fraction: float, manifest: Manifest, folder: Path
) -> None:
    gate = choose_gate(manifest, folder, mode="static", score=score, fraction=fraction, share=0.5)
    cells = raw(manifest, folder, score)
    inactive = cells > gate.threshold if score == "awft" else cells < gate.threshold
    wanted = [tuple(cell) for cell in np.argwhere(inactive.mean(axis=0) >= 0.5).tolist()]
    assert list(gate.heads) == wanted
    assert gate.heads


def test_a_static_gate_takes_given_heads_in_place_of_the_share(
    manifest: Manifest, folder: Path
) -> None:
    gate = choose_gate(manifest, folder, mode="static", heads=((1, 2), (0, 3)))
    assert gate.heads == ((0, 3), (1, 2))
    assert gate.share is None


@pytest.mark.parametrize(
    ("score", "decode"),
    [("ahon", "running"), ("ahon_ln", "running"), ("lthon", "new"), ("thon_ln", None)],
)
def test_decode_rules(score: str, decode: str | None, manifest: Manifest, folder: Path) -> None:
    gate = choose_gate(manifest, folder, score=score)
    assert gate.decode == decode
    assert gate.has_state is (decode == "running")


@pytest.mark.parametrize(
    ("text", "heads"),
    [("1", [(1, h) for h in range(8)]), ("0.3", [(0, 3)]), ("2.1-3", [(2, 1), (2, 2), (2, 3)]),
     ("0-1.7,0.0", [(0, 0), (0, 7), (1, 7)]), (" 0.1 , 0.1 ", [(0, 1)])],
)  # fmt: skip
def test_lists_of_heads(text: str, heads: list[tuple[int, int]], manifest: Manifest) -> None:
    assert list(parse_heads(text, manifest)) == heads


@pytest.mark.parametrize("text", ["", ",", "a", "1.", ".1", "1.2.3", "-1", "3", "0.8", "9-10"])
def test_other_lists_are_refused(text: str, manifest: Manifest) -> None:
    with pytest.raises(HeadpruneError) as caught:
        parse_heads(text, manifest)
    assert caught.value.hint


@pytest.mark.parametrize("threshold", [float("nan"), float("inf"), 1e39])
def test_thresholds_that_float32_cannot_hold(
    threshold: float, manifest: Manifest, folder: Path
) -> None:
    with pytest.raises(HeadpruneError, match="finite"):
        choose_gate(manifest, folder, threshold=threshold)


def test_a_gate_is_checked_wherever_it_is_made() -> None:
    base = {"score": "ahon", "granularity": "sequence", "inactive_when": "below", "mode": "dynamic"}
    with pytest.raises(HeadpruneError, match="finite"):
        Gate(**base, threshold=float("nan"))  # type: ignore[arg-type]
    with pytest.raises(HeadpruneError, match="fraction"):
        Gate(**base, threshold=0.1, fraction=1.5)  # type: ignore[arg-type]
