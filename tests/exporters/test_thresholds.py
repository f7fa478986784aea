"""Thresholds: defaults, infinities, heads that are always off, empty rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from headprune.exporters import ExportResult
from headprune.manifests import Gate

from .batches import padded_batch, prompt
from .conftest import Family, gate_of, runner_of

Gated = Callable[[Family, Gate], ExportResult]
SCORES = [
    ("ahon", "running"),
    ("ahon_ln", "new"),
    ("lthon_ln", "new"),
    ("thon", None),
    ("thon_ln", None),
]


@pytest.mark.parametrize(("score", "decode"), SCORES)
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_infinite_thresholds(
    families: Callable[[str], Family], gated: Gated, name: str, score: str, decode: str | None
) -> None:
    family = families(name)
    result = gated(family, gate_of(score, decode=decode))
    ids, mask = padded_batch("left")
    baseline, _ = runner_of(family.baseline).run(ids, mask)
    shape = (len(family.heads), max(family.heads))

    never = np.full(shape, -np.inf, np.float32)
    logits, active = runner_of(result, thresholds=never).run(ids, mask)
    np.testing.assert_allclose(logits, baseline, rtol=0, atol=1e-6)
    assert (active == 1).all()

    one_layer = never.copy()
    one_layer[1] = np.inf
    logits, active = runner_of(result, thresholds=one_layer).run(ids, mask)
    assert (active[:, 1] == 0).all()
    assert (active[:, [0, 2]] == 1).all()
    silent = family.oracle(score="thon", thresholds=one_layer)
    expected, _ = silent.run(ids, mask)
    real = mask.astype(bool)
    np.testing.assert_allclose(logits[real], expected[real], rtol=0, atol=5e-4)


@pytest.mark.parametrize(("score", "decode"), SCORES)
def test_defaults_serve_a_runtime_that_knows_nothing_of_the_gate(
    families: Callable[[str], Family], gated: Gated, score: str, decode: str | None
) -> None:
    family = families("llama")
    gate = gate_of(score, decode=decode, threshold=0.9)
    ids, mask = padded_batch("right")
    logits, active = runner_of(gated(family, gate)).run(ids, mask)
    table = np.full((len(family.heads), max(family.heads)), 0.9, np.float32)
    fed, fed_active = runner_of(gated(family, gate), thresholds=table).run(ids, mask)
    np.testing.assert_array_equal(logits, fed)
    np.testing.assert_array_equal(active, fed_active)
    assert active.shape == (3, len(family.heads), max(family.heads))


def test_heads_of_a_mixed_gate_are_always_off(
    families: Callable[[str], Family], gated: Gated
) -> None:
    family = families("llama")
    gate = gate_of("thon_ln", threshold=0.5, heads=[(0, 3), (2, 5)])
    _, active = runner_of(gated(family, gate)).run(*prompt(12))
    assert active[0, 0, 3] == active[0, 2, 5] == 0
    others = np.ones(active.shape[1:], bool)
    others[[0, 2], [3, 5]] = False
    assert (active[0, others] > 0).all()


@pytest.mark.parametrize(("score", "decode"), SCORES)
def test_row_without_real_tokens_harms_no_other(
    families: Callable[[str], Family], gated: Gated, score: str, decode: str | None
) -> None:
    family = families("gpt2")
    result = gated(family, gate_of(score, decode=decode))
    ids, mask = padded_batch("left")
    expected, expected_active = runner_of(result).run(ids[:2], mask[:2])
    mask[2] = 0
    logits, active = runner_of(result).run(ids, mask)
    np.testing.assert_allclose(logits[:2], expected, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(active[:2], expected_active)
    assert (active[2] == 1).all()
