"""Reading calibration text: what is refused, and what the seed decides."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headprune.analyzer.calibration import (
    CalibrationSet,
    choose_sequences,
    load_documents,
    read_documents,
)
from headprune.errors import ExitCode, HeadpruneError


class Characters:
    """A tokenizer that gives one id per character, after a BOS of 1."""

    def __call__(self, text: str, *, verbose: bool) -> dict[str, list[int]]:
        return {"input_ids": [1, *(ord(character) for character in text)]}


DOCUMENTS = [f"document {number} " * (1 + number % 7) for number in range(40)]


def choose(**options: object) -> CalibrationSet:
    settings = {"source": "test", "sequences": 10, "lengths": (5, 50), "seed": 3, **options}
    return choose_sequences(DOCUMENTS, Characters(), **settings)  # type: ignore[arg-type]


def test_the_seed_decides_documents_and_lengths() -> None:
    assert choose() == choose()
    assert choose().sequences != choose(seed=4).sequences
    assert choose().info.sha256 != choose(seed=4).info.sha256


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


def test_the_models_positions_cap_the_range() -> None:
    assert choose(max_positions=20).info.length_range == (5, 20)


@pytest.mark.parametrize(
    "options",
    [{"lengths": (9, 8)}, {"lengths": (0, 8)}, {"sequences": 0}, {"max_positions": 4},
     {"lengths": (5000, 6000)}],
)  # fmt: skip
def test_ranges_without_a_sequence_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(HeadpruneError) as caught:
        choose(**options)
    assert caught.value.exit_code == ExitCode.USAGE
    assert caught.value.hint


BAD_FILES = {
    "missing": (None, "no calibration file"),
    "empty": (b"", "is empty"),
    "blank": (b"\n \n", "is empty"),
    "not UTF-8": (b'{"text": "\xff"}\n', "is not UTF-8"),
    "not JSON": (b'{"text": "a"}\nhello\n', "line 2 is not JSON"),
    "no text": (b'{"content": "a"}\n', 'line 1 has no string field "text"'),
    "a number": (b'{"text": 3}\n', 'line 1 has no string field "text"'),
    "a list": (b"[1]\n", 'line 1 has no string field "text"'),
    "half a surrogate": (b'{"text": "\\ud800"}\n', "line 1 has half a surrogate"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_unusable_files_are_refused_with_a_hint(case: str, tmp_path: Path) -> None:
    content, message = BAD_FILES[case]
    path = tmp_path / "text.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(HeadpruneError, match=message) as caught:
        read_documents(path)
    assert "\n" not in caught.value.message
    assert "JSONL" in str(caught.value.hint)


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HeadpruneError, match="cannot read"):
        read_documents(tmp_path)


def test_line_separators_inside_strings_do_not_end_a_line(tmp_path: Path) -> None:
    path = tmp_path / "text.jsonl"
    text = "one\u2028two\x85three"
    path.write_text(json.dumps({"text": text}, ensure_ascii=False) + "\n", "utf-8")
    assert read_documents(path) == [text]


def test_the_manifest_names_the_file_not_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "text.jsonl"
    path.write_text('{"text": "a"}\n')
    assert load_documents(str(path), 1) == ("text.jsonl", ["a"])


def test_offline_the_default_text_names_the_ways_out() -> None:
    with pytest.raises(HeadpruneError) as caught:
        load_documents(None, 1)
    assert "--calibration FILE.jsonl" in str(caught.value.hint)
    assert "--calibration builtin" in str(caught.value.hint)
