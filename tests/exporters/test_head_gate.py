"""HeadGate beyond what small transformers models show: unequal layers, half precision, zeros."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from headprune.errors import HeadpruneError
from headprune.exporters import DYNAMIC_SCORES
from headprune.exporters.insert_gate import insert_gate
from headprune.manifests import Gate

from .conftest import gate_of
from .graph_runner import open_graph
from .synthetic import LAYERS, two_layers, weights

IDS = np.array([[1, 2, 3, 4, 5], [6, 5, 4, 3, 2]])
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])


def gated_session(path: Path, arrays: list[np.ndarray], gate: Gate) -> ort.InferenceSession:
    model = two_layers(arrays)
    insert_gate(model, gate, LAYERS)
    ir.save(model, path)
    onnx.checker.check_model(str(path), full_check=True)
    return open_graph(path)


def run(session: ort.InferenceSession, **feeds: np.ndarray) -> dict[str, np.ndarray]:
    names = [value.name for value in session.get_outputs()]
    feeds = {"input_ids": IDS, "attention_mask": MASK, **feeds}
    return dict(zip(names, session.run(names, feeds), strict=True))


def by_hand(
    arrays: list[np.ndarray], threshold: float, *, tokenwise: bool, layer_mean: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Logits and `active` in float64, for the mean or each token."""
    x = arrays[0].astype(np.float64)[IDS]
    active = np.ones((2, 2, 4))
    for layer, (heads, weight) in enumerate(zip(LAYERS, arrays[1:], strict=True)):
        outputs = x.reshape(2, 5, heads.query_heads, heads.head_dim)
        values = np.linalg.norm(outputs, axis=-1)
        if not tokenwise:
            values = np.stack([v[m == 1].mean(axis=0) for v, m in zip(values, MASK, strict=True)])
            values = values[:, None]
        if layer_mean:
            values = values / values.mean(axis=-1, keepdims=True)
        keep = np.broadcast_to(~(values < threshold), outputs.shape[:3])
        for row in range(2):
            active[row, layer, : heads.query_heads] = keep[row, MASK[row] == 1].mean(axis=0)
        x = (outputs * keep[..., None]).reshape(2, 5, -1) @ weight.astype(np.float64)
    return x, active


@pytest.mark.parametrize("score", ["ahon", "ahon_ln", "thon", "thon_ln"])
def test_layers_with_different_head_counts(tmp_path: Path, score: str) -> None:
    gate = gate_of(score, decode="running" if score.startswith("ahon") else None, threshold=0.9)
    results = run(gated_session(tmp_path / "m.onnx", weights(), gate))
    logits, active = by_hand(
        weights(), 0.9, tokenwise=score.startswith("thon"), layer_mean=score.endswith("_ln")
    )
    real = MASK.astype(bool)
    np.testing.assert_allclose(results["logits"][real], logits[real], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(results["headprune.active"], active, atol=1e-6)
    assert (results["headprune.active"][:, 1, 3] == 1).all(), "no fourth head in layer 1"
    if score.startswith("ahon"):
        assert results["headprune.present.sum"].shape == (2, 2, 4)
        np.testing.assert_array_equal(results["headprune.present.count"], [5, 3])


def test_half_precision_is_scored_in_float32(tmp_path: Path) -> None:
    """Norms of about 2000: their squares are beyond float16, so a score in it would be infinite."""
    arrays = weights(np.float16, scale=1000)
    arrays[1] /= 100
    gate = gate_of("ahon_ln", decode="new", threshold=0.9)
    results = run(gated_session(tmp_path / "m.onnx", arrays, gate))
    _, active = by_hand(arrays, 0.9, tokenwise=False, layer_mean=True)
    assert results["logits"].dtype == np.float16
    np.testing.assert_array_equal(results["headprune.active"], active)
    assert 0 < active[:, 0].mean() < 1


@pytest.mark.parametrize("score", sorted(DYNAMIC_SCORES))
def test_all_zero_heads_score_zero(tmp_path: Path, score: str) -> None:
    """0 / 0 counts as 0: inactive below any positive threshold, kept at 0 and below."""
    arrays = weights()
    arrays[0][:] = 0
    decode = "new" if DYNAMIC_SCORES[score].granularity == "sequence" else None
    session = gated_session(tmp_path / "m.onnx", arrays, gate_of(score, decode=decode))
    for threshold, active in ((0.1, 0), (np.inf, 0), (0, 1), (-0.1, 1), (-np.inf, 1)):
        table = np.full((2, 4), threshold, np.float32)
        results = run(session, **{"headprune.threshold": table})
        assert (results["headprune.active"][:, 0] == active).all()
        assert (results["logits"] == 0).all()


@pytest.mark.parametrize("score", sorted(DYNAMIC_SCORES))
def test_nan_keeps_its_head(tmp_path: Path, score: str) -> None:
    arrays = weights()
    arrays[0][IDS[0], 2:4] = np.nan  # Head 1 of layer 0.
    arrays[1][:] = 1
    decode = "new" if DYNAMIC_SCORES[score].granularity == "sequence" else None
    session = gated_session(tmp_path / "m.onnx", arrays, gate_of(score, decode=decode))
    table = np.full((2, 4), 1e6, np.float32)
    assert (run(session, **{"headprune.threshold": table})["headprune.active"][0, 0, 1] == 1).all()


def test_nan_at_padding_stays_out_of_the_score(tmp_path: Path) -> None:
    arrays = weights()
    arrays[0][0] = np.nan
    ids = IDS.copy()
    ids[1, 3:] = 0
    for score in ("ahon_ln", "lthon_ln"):
        session = gated_session(tmp_path / "m.onnx", arrays, gate_of(score, decode="new"))
        clean = run(session)
        results = run(session, input_ids=ids)
        for name in ("headprune.active",):
            np.testing.assert_array_equal(results[name], clean[name])
        assert np.isfinite(results["logits"][1, :3]).all()


def test_old_opset_is_refused() -> None:
    with pytest.raises(HeadpruneError, match="opset 17, expected 18 or later"):
        insert_gate(two_layers(weights(), opset=17), gate_of("thon"), LAYERS)


def test_graph_without_a_mask_is_refused() -> None:
    model = two_layers(weights())
    del model.graph.inputs[1]
    with pytest.raises(HeadpruneError, match="no input attention_mask"):
        insert_gate(model, gate_of("thon"), LAYERS)
