"""The gate in the graph decides and computes as the definition says."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from headprune.exporters import ExportResult
from headprune.manifests import Gate

from .batches import decode_steps, padded_batch, prompt
from .conftest import Family, gate_of, runner_of
from .oracle import Oracle

CLOSE = {"rtol": 0, "atol": 5e-4}
SCORES = [
    ("ahon", "running"),
    ("ahon", "new"),
    ("ahon_ln", "running"),
    ("ahon_ln", "new"),
    ("lthon", "new"),
    ("lthon_ln", "new"),
    ("thon", None),
    ("thon_ln", None),
]
CASES = [
    *(("llama", *score) for score in SCORES),
    *(("gpt2", *score) for score in SCORES),
    ("mistral", "ahon_ln", "running"),
    ("mistral", "thon_ln", None),
    ("qwen2", "ahon_ln", "running"),
    ("qwen2", "thon_ln", None),
]
Gated = Callable[[Family, Gate], ExportResult]


def thresholds_for(family: Family, score: str, seed: int = 0) -> np.ndarray:
    """A threshold per head that some cells fall below and some do not: `[layer, head]`."""
    shape = (len(family.heads), max(family.heads))
    spread = np.random.default_rng(seed).uniform(0.6, 1.3, shape)
    if not score.endswith("_ln"):
        ids, mask = prompt(20)
        oracle = family.oracle(score="thon", thresholds=np.full(shape, -np.inf))
        norms: dict[int, np.ndarray] = {}
        decide = oracle.decide

        def record(layer: int, outputs: np.ndarray, *rest: np.ndarray) -> np.ndarray:
            norms[layer] = np.sqrt((outputs**2).sum(axis=-1)).mean()
            return decide(layer, outputs, *rest)

        oracle.decide = record  # type: ignore[method-assign]
        oracle.run(ids, mask)
        spread *= np.array([norms[layer] for layer in range(shape[0])])[:, None]
    return spread.astype(np.float32)


@pytest.fixture(params=CASES, ids=lambda case: "-".join(filter(None, case)))
def case(
    request: pytest.FixtureRequest, families: Callable[[str], Family], gated: Gated
) -> tuple[Oracle, ExportResult, np.ndarray]:
    name, score, decode = request.param
    family = families(name)
    thresholds = thresholds_for(family, score)
    result = gated(family, gate_of(score, decode=decode))
    oracle = family.oracle(score=score, decode=decode, thresholds=thresholds)
    return oracle, result, thresholds


def agree(oracle: Oracle, runner: object, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Run both, compare logits of real tokens and decisions; returns `active`."""
    expected, expected_active = oracle.run(ids, mask)
    actual, active = runner.run(ids, mask)
    np.testing.assert_allclose(active, expected_active, rtol=0, atol=1e-6)
    real = mask.astype(bool)
    np.testing.assert_allclose(actual[real], expected[real], **CLOSE)
    return active


def test_one_prompt(case: tuple[Oracle, ExportResult, np.ndarray]) -> None:
    oracle, result, thresholds = case
    active = agree(oracle, runner_of(result, thresholds=thresholds), *prompt(9))
    assert 0.1 < active.mean() < 0.9


@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_batch_then_decode(case: tuple[Oracle, ExportResult, np.ndarray], side: str) -> None:
    oracle, result, thresholds = case
    runner = runner_of(result, thresholds=thresholds)
    agree(oracle, runner, *padded_batch(side))
    for ids, mask in decode_steps(batch=3, steps=4):
        agree(oracle, runner, ids, mask)
    assert result.manifest.gate is not None
    if result.manifest.gate.has_state:
        assert oracle.counts is not None
        np.testing.assert_array_equal(runner.state["headprune.past.count"], oracle.counts)
        sums = np.stack([oracle.sums[layer] for layer in range(len(oracle.heads))], axis=1)
        np.testing.assert_allclose(runner.state["headprune.past.sum"], sums, rtol=1e-5)


@pytest.mark.parametrize(("score", "decode"), [("ahon_ln", "running"), ("thon", None)])
def test_beam_search_may_reorder_the_batch(
    families: Callable[[str], Family], gated: Gated, score: str, decode: str | None
) -> None:
    family = families("llama")
    thresholds = thresholds_for(family, score)
    oracle = family.oracle(score=score, decode=decode, thresholds=thresholds)
    runner = runner_of(gated(family, gate_of(score, decode=decode)), thresholds=thresholds)
    agree(oracle, runner, *padded_batch("left"))
    for ids, mask in decode_steps(batch=3, steps=3):
        oracle.reorder([2, 0, 0])
        runner.reorder([2, 0, 0])
        agree(oracle, runner, ids, mask)


@pytest.mark.parametrize("score", ["thon", "thon_ln"])
def test_token_gate_is_the_same_in_chunks(
    families: Callable[[str], Family], gated: Gated, score: str
) -> None:
    family = families("llama")
    thresholds = thresholds_for(family, score)
    result = gated(family, gate_of(score))
    ids, mask = prompt(21)
    whole, active = runner_of(result, thresholds=thresholds).run(ids, mask)
    for size in (1, 7):
        runner = runner_of(result, thresholds=thresholds)
        parts = [
            runner.run(ids[:, at : at + size], mask[:, at : at + size]) for at in range(0, 21, size)
        ]
        logits = np.concatenate([part[0] for part in parts], axis=1)
        np.testing.assert_allclose(logits, whole, **CLOSE)
        mean = np.mean([part[1] for part in parts], axis=0)
        np.testing.assert_allclose(mean, active, atol=1e-6)


def test_running_state_makes_chunks_see_the_whole_sequence(
    families: Callable[[str], Family], gated: Gated
) -> None:
    """Without the state a later chunk is scored as if it were a sequence of its own."""
    family = families("llama")
    thresholds = thresholds_for(family, "ahon_ln")
    result = gated(family, gate_of("ahon_ln", decode="running"))
    ids, mask = prompt(20)
    actives = []
    for keep_state in (True, False):
        runner = runner_of(result, thresholds=thresholds, keep_state=keep_state)
        runner.run(ids[:, :17], mask[:, :17])
        actives.append(runner.run(ids[:, 17:], mask[:, 17:])[1])
    fresh = runner_of(gated(family, gate_of("ahon_ln", decode="new")), thresholds=thresholds)
    fresh.run(ids[:, :17], mask[:, :17])
    assert (actives[0] != actives[1]).any()
    np.testing.assert_array_equal(fresh.run(ids[:, 17:], mask[:, 17:])[1].shape, actives[1].shape)
