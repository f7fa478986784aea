"""What every score must say of itself, and what the registry refuses."""

from __future__ import annotations

import pytest
import torch

from headprune.analyzer.scores import Score, find_scores, score
from headprune.analyzer.scores.registry import at_first, at_last, layer_normalise, masked_mean
from headprune.errors import HeadpruneError

PAPERS_TWELVE = {
    f"{name}{suffix}"
    for name in ("awft", "aeqd", "avvn", "ftvvn", "ahon", "lthon")
    for suffix in ("", "_ln")
}


@pytest.mark.parametrize("entry", find_scores(["all"]), ids=lambda entry: entry.id)
def test_every_score_says_what_it_is(entry: Score) -> None:
    assert entry.summary.endswith(
        "[batch, position, head]" if entry.granularity == "token" else "[batch, head]"
    )
    assert len(entry.title) > len(entry.id)
    assert "arXiv" in entry.reference
    assert entry.inactive_when == ("above" if entry.id[1:4] == "wft" else "below")
    assert entry.reads_weights == (entry.id[1:4] in {"wft", "eqd"})


def test_the_papers_twelve_are_there() -> None:
    found = {entry.id: entry for entry in find_scores(["all"])}
    assert found.keys() >= PAPERS_TWELVE
    assert all(found[name].granularity == "sequence" for name in PAPERS_TWELVE)


def test_a_score_without_docstring_or_with_a_taken_id_is_refused() -> None:
    with pytest.raises(ValueError, match="no docstring"):
        score("mine", title="Mine", inactive_when="below")(lambda c: c.output_norm)

    def documented(c: object) -> torch.Tensor:
        """Something. [batch, head]"""
        raise AssertionError

    with pytest.raises(ValueError, match="two scores with the id ahon"):
        score("ahon", title="Another", inactive_when="below")(documented)


def test_names_are_found_in_the_registrys_order_and_others_refused() -> None:
    assert [entry.id for entry in find_scores(["thon_ln", "ahon"])] == ["ahon", "thon_ln"]
    with pytest.raises(HeadpruneError, match="Did you mean thon_ln") as caught:
        find_scores(["thonln"])
    assert "awft" in str(caught.value.hint)


@pytest.mark.parametrize("fill", [0.0, 1e30, float("nan"), float("inf")])
def test_padding_never_enters_an_aggregate(fill: float) -> None:
    quantity = torch.tensor([[[1.0], [2.0], [6.0], [fill]], [[fill], [fill], [4.0], [5.0]]])
    mask = torch.tensor([[True, True, True, False], [False, False, True, True]])
    assert masked_mean(quantity, mask).flatten().tolist() == [3.0, 4.5]
    assert at_first(quantity, mask).flatten().tolist() == [1.0, 4.0]
    assert at_last(quantity, mask).flatten().tolist() == [6.0, 5.0]


def test_a_layer_of_zeros_scores_zero() -> None:
    assert layer_normalise(torch.zeros(2, 3)).tolist() == [[0.0] * 3] * 2
    assert layer_normalise(torch.tensor([1.0, 3.0])).tolist() == [0.5, 1.5]
