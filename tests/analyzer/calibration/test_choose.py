"""The draw: what the seed decides, what each source gives, what is counted."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path

import pytest

from headprune.analyzer.calibration import CalibrationSet, choose_sequences, load_documents
from headprune.errors import ExitCode, HeadpruneError
from tests.analyzer.calibration.corpus import (
    DOCUMENTS,
    Characters,
    source,
    text_of,
    write_texts,
)

OTHERS = [f"other {number} " * (2 + number % 5) for number in range(30)]


def choose(sequences: int = 10, **options: object) -> CalibrationSet:
    settings = {"lengths": (5, 50), "seed": 3, **options}
    return choose_sequences([source(DOCUMENTS, sequences)], Characters(), **settings)  # type: ignore[arg-type]


def choose_files(*calibration: str, sequences: int, lengths: tuple[int, int] = (5, 50)) -> (
    CalibrationSet
):  # fmt: skip
    sources = load_documents(calibration, sequences)
    return choose_sequences(sources, Characters(), lengths=lengths)  # type: ignore[arg-type]


def test_the_seed_decides_documents_and_lengths() -> None:
    assert choose() == choose()
    assert choose().sequences != choose(seed=4).sequences
    assert choose().info.sha256 != choose(seed=4).info.sha256


# Document and length of each sequence, hash, cut and skipped, as the first manifests had them:
# what one source gives must not change, or their scores could not be had again.
PINNED = [
    (
        {"sequences": 10, "lengths": (5, 50), "seed": 3},
        [(6, 49), (25, 25), (21, 13), (5, 18), (37, 28), (38, 22), (15, 21), (39, 31), (9, 31),
         (0, 12)],
        "9910b7d50e243362e85c69665f08b142e7c8239400ac0a1dbd9d715936db896d", 8, 0,
    ),
    (
        {"sequences": 40, "lengths": (60, 70), "seed": 0},
        [(25, 61), (32, 61), (12, 69), (20, 66), (5, 67), (26, 64), (11, 61), (34, 66), (27, 66),
         (39, 61), (13, 64), (6, 64), (33, 66), (18, 61), (19, 65)],
        "5030bd32e8e69b1c03df5a4d9fc6fef8d80c5f03524cbb9560353f1307b9adb1", 9, 25,
    ),
    (
        {"sequences": 10, "lengths": (70, 90), "seed": 11},
        [(26, 73), (12, 73), (20, 85), (6, 78), (34, 85), (27, 78), (19, 72), (33, 73), (13, 74)],
        "4b269059e1bad86f38f00968b98c68b6ba3f9fe17a09419aaaaf15287f7067c7", 3, 31,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("options", "drawn", "sha256", "cut", "skipped"), PINNED)
@pytest.mark.parametrize("weight", ["", "=1", "=0.25"])
def test_one_source_gives_what_it_always_gave(
    options: dict[str, object],
    drawn: list[tuple[int, int]],
    sha256: str,
    cut: int,
    skipped: int,
    weight: str,
    tmp_path: Path,
) -> None:
    path = write_texts(tmp_path / "text.jsonl", DOCUMENTS)
    settings = dict(options)
    sources = load_documents((f"{path}{weight}",), settings.pop("sequences"))  # type: ignore[arg-type]
    chosen = choose_sequences(sources, Characters(), **settings)  # type: ignore[arg-type]
    got = [(int(text_of(ids).split()[1]), len(ids)) for ids in chosen.sequences]
    assert got == drawn
    assert (chosen.info.sha256, chosen.info.cut, chosen.info.skipped) == (sha256, cut, skipped)


def test_the_builtin_text_gives_what_it_always_gave(demo_model: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(demo_model)
    chosen = choose_sequences(load_documents(("builtin",)), tokenizer, max_positions=1024)
    ids = hashlib.sha256(json.dumps(chosen.sequences).encode()).hexdigest()
    assert ids == "9b6493d5b7a175082125240c100f1c14b83258662a2c2e6bdb5e49df1f676e97"
    texts = "862cf9b0909ed14fbbebf2c430542f093f31d881852dd5d57837f20e5f0087f0"
    assert chosen.info.sha256 == texts
    assert (chosen.info.tokens, chosen.info.cut, chosen.info.duplicates) == (24397, 32, 0)


def test_lengths_lie_in_the_range_and_are_counted() -> None:
    chosen = choose(sequences=40)
    lengths = [len(ids) for ids in chosen.sequences]
    assert all(5 <= length <= 50 for length in lengths)
    assert len(set(lengths)) > 10
    assert chosen.info.tokens == sum(lengths)
    whole = {len(text) + 1 for text in DOCUMENTS}
    assert chosen.info.cut >= sum(length not in whole for length in lengths) > 0


def test_short_documents_are_passed_over_and_counted() -> None:
    short = sum(len(text) + 1 < 60 for text in DOCUMENTS)
    chosen = choose(sequences=40, lengths=(60, 70))
    assert chosen.info.skipped == short
    assert chosen.info.sequences == 40 - short
    assert f"{short} documents too short" in chosen.report


def test_the_models_positions_cap_the_range() -> None:
    assert choose(max_positions=20).info.length_range == (5, 20)


@pytest.mark.parametrize(
    "options",
    [{"lengths": (9, 8)}, {"lengths": (0, 8)}, {"max_positions": 4}, {"lengths": (5000, 6000)}],
)
def test_ranges_without_a_sequence_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(HeadpruneError) as caught:
        choose(**options)  # type: ignore[arg-type]
    assert caught.value.exit_code == ExitCode.USAGE
    assert caught.value.hint


def test_sequences_are_shared_out_by_weight_in_the_order_of_the_sources(tmp_path: Path) -> None:
    a = write_texts(tmp_path / "a.jsonl", DOCUMENTS)
    b = write_texts(tmp_path / "b.jsonl", OTHERS)
    chosen = choose_files(f"{a}=3", f"{b}=1", sequences=20)
    words = [text_of(ids).split()[0] for ids in chosen.sequences]
    assert [word.startswith("doc") for word in words] == [True] * 15 + [False] * 5
    assert [(s.name, s.weight, s.documents, s.sequences) for s in chosen.info.sources] == [
        ("a.jsonl", 3.0, 40, 15),
        ("b.jsonl", 1.0, 30, 5),
    ]
    assert chosen.info.sequences == 20
    assert chosen == choose_files(f"{a}=3", f"{b}=1", sequences=20)


def test_another_source_does_not_change_what_the_first_gives(tmp_path: Path) -> None:
    a = write_texts(tmp_path / "a.jsonl", DOCUMENTS)
    b = write_texts(tmp_path / "b.jsonl", OTHERS)
    c = write_texts(tmp_path / "c.jsonl", [f"third {number} " * 3 for number in range(20)])
    alone = choose_files(str(a), sequences=8).sequences
    two = choose_files(str(a), str(b), sequences=16).sequences
    three = choose_files(str(a), str(b), str(c), sequences=24).sequences
    assert two[:8] == alone
    assert three[:16] == two


def test_every_source_has_a_draw_of_its_own() -> None:
    """The same draw twice would pair the sources' documents and lengths."""
    named = [[f"{name} {number:02} " * 9 for number in range(40)] for name in "abc"]
    chosen = choose_sequences(
        [source(texts, 10) for texts in named],
        Characters(),  # type: ignore[arg-type]
        lengths=(5, 50),
    )
    drawn = [(text_of(ids)[2:4], len(ids)) for ids in chosen.sequences]
    assert drawn[:10] != drawn[10:20] != drawn[20:] != drawn[:10]
    numbers = [[number for number, _ in drawn[start : start + 10]] for start in (0, 10, 20)]
    lengths = [[length for _, length in drawn[start : start + 10]] for start in (0, 10, 20)]
    for lists in (numbers, lengths):
        assert lists[0] != lists[1] != lists[2] != lists[0]


def test_no_source_fills_in_for_another(tmp_path: Path) -> None:
    a = write_texts(tmp_path / "a.jsonl", DOCUMENTS)
    b = write_texts(tmp_path / "b.jsonl", OTHERS[:3])
    c = write_texts(tmp_path / "c.jsonl", ["x", "y"])
    chosen = choose_files(str(a), str(b), str(c), sequences=30)
    assert [s.sequences for s in chosen.info.sources] == [10, 3, 0]
    assert (chosen.info.sequences, chosen.info.skipped) == (13, 2)
    assert "a.jsonl 10, b.jsonl 3 of 10 asked for, c.jsonl 0 of 10 asked for" in chosen.report


def test_sources_that_give_nothing_are_named(tmp_path: Path) -> None:
    a, b = (write_texts(tmp_path / f"{name}.jsonl", [name]) for name in "ab")
    with pytest.raises(HeadpruneError, match=r"no document of a\.jsonl, b\.jsonl has 5 tokens"):
        choose_files(str(a), str(b), sequences=4)


def test_duplicates_are_dropped_before_the_draw_and_counted(tmp_path: Path) -> None:
    repeated = [*DOCUMENTS[:20], DOCUMENTS[3], *DOCUMENTS[20:], DOCUMENTS[0], DOCUMENTS[3]]
    plain = write_texts(tmp_path / "plain.jsonl", DOCUMENTS)
    again = write_texts(tmp_path / "again.jsonl", repeated)
    other = write_texts(tmp_path / "other.jsonl", OTHERS)
    mixed = write_texts(tmp_path / "mixed.jsonl", [*DOCUMENTS[:4], *OTHERS])
    without = choose_files(str(plain), str(other), sequences=30)
    chosen = choose_files(str(again), str(mixed), sequences=30)
    assert chosen.sequences == without.sequences
    assert chosen.info.sha256 == without.info.sha256
    assert (without.info.duplicates, chosen.info.duplicates) == (0, 7)
    assert [s.documents for s in chosen.info.sources] == [43, 34]
    assert "7 duplicates dropped" in chosen.report


def test_the_same_file_twice_gives_nothing_the_second_time(tmp_path: Path) -> None:
    path = str(write_texts(tmp_path / "a.jsonl", DOCUMENTS))
    chosen = choose_files(path, path, sequences=20)
    assert [s.sequences for s in chosen.info.sources] == [10, 0]
    assert chosen.info.duplicates == 40


def test_many_documents_are_read_fast_and_only_those_drawn_are_encoded(tmp_path: Path) -> None:
    path = write_texts(tmp_path / "a.jsonl", (f"short document {n}" for n in range(50_000)))
    tokenizer = Characters()
    started = time.monotonic()
    sources = load_documents((str(path),), 100)
    chosen = choose_sequences(sources, tokenizer, lengths=(5, 20))  # type: ignore[arg-type]
    assert time.monotonic() - started < 10
    assert chosen.info.sources[0].documents == 50_000
    assert tokenizer.calls == chosen.info.sequences == 100
