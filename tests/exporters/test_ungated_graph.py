"""The ungated graph is the PyTorch model: any length, padding, chunks, decoding with a cache."""

from __future__ import annotations

import numpy as np
import pytest

from .batches import decode_steps, padded_batch, prompt
from .conftest import Family, runner_of

CLOSE = {"rtol": 0, "atol": 2e-4}


@pytest.mark.parametrize("length", [1, 7, 33])
def test_prompt(family: Family, length: int) -> None:
    ids, mask = prompt(length)
    expected, _ = family.oracle().run(ids, mask)
    actual, active = runner_of(family.baseline).run(ids, mask)
    np.testing.assert_allclose(actual, expected, **CLOSE)
    assert active is None


@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_batch_and_decode(family: Family, side: str) -> None:
    ids, mask = padded_batch(side)
    oracle, runner = family.oracle(), runner_of(family.baseline)
    expected, _ = oracle.run(ids, mask)
    actual, _ = runner.run(ids, mask)
    real = mask.astype(bool)
    np.testing.assert_allclose(actual[real], expected[real], **CLOSE)
    assert np.isfinite(actual).all()
    for new_ids, new_mask in decode_steps(batch=3, steps=8):
        expected, _ = oracle.run(new_ids, new_mask)
        actual, _ = runner.run(new_ids, new_mask)
        np.testing.assert_allclose(actual, expected, **CLOSE)


def test_padding_changes_nothing(family: Family) -> None:
    """A row gives the same logits alone and padded in a batch."""
    for side in ("left", "right"):
        ids, mask = padded_batch(side)
        batch, _ = runner_of(family.baseline).run(ids, mask)
        for row in range(3):
            real = mask[row].astype(bool)
            alone_ids = ids[row : row + 1, real]
            alone, _ = runner_of(family.baseline).run(alone_ids, np.ones_like(alone_ids))
            np.testing.assert_allclose(batch[row, real], alone[0], **CLOSE)


def test_chunks_equal_one_piece(family: Family) -> None:
    ids, mask = prompt(33)
    whole, _ = runner_of(family.baseline).run(ids, mask)
    runner = runner_of(family.baseline)
    parts = [runner.run(ids[:, a:b], mask[:, a:b])[0] for a, b in ((0, 7), (7, 8), (8, 33))]
    np.testing.assert_allclose(np.concatenate(parts, axis=1), whole, **CLOSE)


def test_export_error_is_measured_and_small(family: Family) -> None:
    assert family.baseline.export_error is not None
    assert 0 <= family.baseline.export_error < 2e-4


def test_input_and_output_names(family: Family) -> None:
    session = runner_of(family.baseline).session
    layers = range(len(family.heads))
    kinds = ("key", "value")
    assert [v.name for v in session.get_inputs()] == [
        "input_ids",
        "attention_mask",
        "position_ids",
        *(f"past_key_values.{i}.{kind}" for i in layers for kind in kinds),
    ]
    assert [v.name for v in session.get_outputs()] == [
        "logits",
        *(f"present.{i}.{kind}" for i in layers for kind in kinds),
    ]
    assert session.get_overridable_initializers() == []
