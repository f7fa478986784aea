"""SOURCE[=WEIGHT] as it is typed, and the shares that weights give."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from headprune.analyzer.calibration import load_documents, parse_source, share_out
from headprune.errors import HeadpruneError
from tests.analyzer.calibration.corpus import write_texts


@pytest.mark.parametrize(
    ("given", "kind", "name", "weight"),
    [("a/b/text.jsonl", "jsonl", "text.jsonl", 1), ("text.JSON=2", "jsonl", "text.JSON", 2),
     ("t.ndjson=0.5", "jsonl", "t.ndjson", 0.5), ("notes.TXT", "text", "notes.TXT", 1),
     ("/x/README.md=1e2", "text", "README.md", 100), ("t.parquet", "parquet", "t.parquet", 1),
     ("unknown", "jsonl", "unknown", 1), ("a=b.jsonl", "jsonl", "a=b.jsonl", 1),
     ("a=2=3", "jsonl", "a=2", 3), ("builtin", "builtin", "builtin", 1),
     ("builtin=4", "builtin", "builtin", 4), ("hub:o/n", "hub", "o/n", 1),
     ("hub:o/n:conf:test=3", "hub", "o/n:conf:test", 3)],
)  # fmt: skip
def test_sources_are_read_as_typed(given: str, kind: str, name: str, weight: float) -> None:
    source = parse_source(given)
    assert (source.kind, source.name, source.weight) == (kind, name, weight)


def test_a_file_that_has_the_whole_name_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_texts(tmp_path / "lr=3", ["of the file lr=3"])
    write_texts(tmp_path / "lr", ["of the file lr"])
    for given, text, weight in (
        ("lr=3", "of the file lr=3", 1.0),
        ("lr=3=2", "of the file lr=3", 2.0),
        ("lr=4", "of the file lr", 4.0),
    ):
        (loaded,) = load_documents((given,), 1)
        assert loaded.documents[0].content == text
        assert loaded.source.weight == weight


@pytest.mark.parametrize("weight", ["0", "-1", "nan", "inf", "-inf", "1e999", "0.0"])
def test_weights_are_positive_and_finite(weight: str) -> None:
    with pytest.raises(HeadpruneError, match="expected a positive number") as caught:
        parse_source(f"text.jsonl={weight}")
    assert weight in caught.value.message
    assert "--calibration text.jsonl=1" in str(caught.value.hint)


@pytest.mark.parametrize("given", ["", "=3", "hub:", "hub:name", "hub:o/n:a:b:c", "hub:o/n/m",
                                   "hub:o/../n", "hub:o/n:c:"])  # fmt: skip
def test_what_names_no_source_is_refused(given: str) -> None:
    with pytest.raises(HeadpruneError) as caught:
        parse_source(given)
    assert "\n" not in caught.value.message
    assert "--calibration" in str(caught.value.hint)


def test_an_unknown_home_is_refused() -> None:
    with pytest.raises(HeadpruneError, match="no calibration file at ~nobody-here/x"):
        parse_source("~nobody-here/x.jsonl")


def test_a_name_that_is_not_utf8_can_be_written_into_a_manifest() -> None:
    name = parse_source(os.fsdecode(b"caf\xe9.jsonl")).name
    assert name.encode("utf-8").decode() == "caf\ufffd.jsonl"


@pytest.mark.parametrize(
    ("total", "weights", "shares"),
    [(10, [1], (10,)), (10, [7.5], (10,)), (100, [3, 1], (75, 25)), (10, [1, 1, 1], (4, 3, 3)),
     (11, [1, 1, 1], (4, 4, 3)), (1, [1, 5], (0, 1)), (1, [1, 1], (1, 0)),
     (10, [0.1, 0.2, 0.7], (1, 2, 7)), (4, [0.1, 0.4, 0.7], (1, 1, 2)),
     (5, [1e-300, 1e300], (0, 5)), (7, [0.3, 0.1, 0.1], (4, 2, 1))],
)  # fmt: skip
def test_shares(total: int, weights: list[float], shares: tuple[int, ...]) -> None:
    assert share_out(total, weights) == shares


def test_shares_add_up_and_lie_within_one_of_the_quota() -> None:
    draw = random.Random(5)  # noqa: S311  weights, not secrets
    for _ in range(300):
        weights = [draw.uniform(0.01, 5) for _ in range(draw.randint(1, 6))]
        total = draw.randint(1, 200)
        shares = share_out(total, weights)
        assert sum(shares) == total
        for share, weight in zip(shares, weights, strict=True):
            assert abs(share - total * weight / sum(weights)) < 1


def test_no_sequences_are_refused() -> None:
    with pytest.raises(HeadpruneError, match="cannot take 0 sequences"):
        load_documents(("builtin",), 0)
