"""Files of every kind: what a document is, and what is refused in one line."""

from __future__ import annotations

import codecs
import json
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from headprune.analyzer.calibration import load_documents, read_documents
from headprune.errors import ExitCode, HeadpruneError
from tests.analyzer.calibration.corpus import write_texts

CHAT = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]


def texts(path: Path) -> list[str]:
    return [document.content for document in read_documents(path)]


def refusal(path: Path, message: str) -> HeadpruneError:
    with pytest.raises(HeadpruneError, match=message) as caught:
        read_documents(path)
    assert caught.value.exit_code == ExitCode.USAGE
    assert "\n" not in caught.value.message
    assert str(path) in caught.value.message
    assert caught.value.hint
    return caught.value


BAD_JSONL = {
    "missing": (None, "no calibration file"),
    "empty": (b"", "is empty"),
    "blank": (b"\n \n", "is empty"),
    "only a byte order mark": (codecs.BOM_UTF8, "is empty"),
    "not UTF-8": (b'{"text": "\xff"}\n', r"is not UTF-8 \(byte 10\)"),
    "not UTF-8 after a byte order mark": (codecs.BOM_UTF8 + b"a\xff", r"is not UTF-8 \(byte 4\)"),
    "UTF-16": ('{"text": "a"}'.encode("utf-16"), r"is not UTF-8 \(byte 0\)"),
    "not JSON": (b'{"text": "a"}\nhello\n', "line 2 is not JSON"),
    "nested without end": (b'{"text": "a"}\n' + b"[" * 100_000, "line 2 is not JSON"),
    "no text": (b'{"content": "a"}\n', 'line 1 has no string field "text"'),
    "a number": (b'{"text": 3}\n', 'line 1 has no string field "text"'),
    "a list": (b"[1]\n", 'line 1 has no string field "text"'),
    "null": (b'{"text": null}\n', 'line 1: "text" is null'),
    "half a surrogate": (b'{"text": "\\ud800"}\n', "line 1 has half a surrogate"),
    "messages and null": (b'\n{"messages": null}\n', 'line 2: "messages" is null'),
    "messages as text": (b'{"messages": "hi"}\n', 'line 1: "messages" is not a list'),
    "no messages": (b'{"messages": []}\n', 'line 1: "messages" is not a list'),
    "a message as text": (b'{"messages": ["hi"]}\n', 'message 1 has no string "role"'),
    "no role": (b'{"messages": [{"content": "a"}]}\n', 'message 1 has no string "role"'),
    "no content": (
        b'{"messages": [{"role": "a", "content": "b"}, {"role": "a", "content": null}]}\n',
        'line 1: message 2 has no string "content"',
    ),
    "half a surrogate in a message": (
        b'{"messages": [{"role": "a", "content": "\\udc00"}]}\n',
        "line 1 has half a surrogate",
    ),
}


@pytest.mark.parametrize("case", BAD_JSONL)
def test_unusable_jsonl_is_refused_with_a_hint(case: str, tmp_path: Path) -> None:
    content, message = BAD_JSONL[case]
    path = tmp_path / "text.jsonl"
    if content is not None:
        path.write_bytes(content)
    assert "JSONL" in str(refusal(path, message).hint)


def test_a_row_with_text_and_messages_says_which_to_keep(tmp_path: Path) -> None:
    path = tmp_path / "text.jsonl"
    path.write_text(json.dumps({"text": "a", "messages": CHAT}))
    error = refusal(path, 'line 1 has both "text" and "messages"')
    assert str(error.hint).startswith('keep "messages"')


@pytest.mark.parametrize("suffix", [".jsonl", ".txt", ".parquet", ""])
def test_a_directory_is_refused(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"folder{suffix}"
    path.mkdir()
    refusal(path, "it is a directory, expected a file")


@pytest.mark.parametrize("suffix", [".jsonl", ".txt", ".parquet", ""])
def test_a_missing_file_is_refused(suffix: str, tmp_path: Path) -> None:
    refusal(tmp_path / f"nothing{suffix}", "no calibration file at")
    refusal(tmp_path / f"{'n' * 300}{suffix}", "cannot read .*: File name too long")


def test_line_separators_inside_strings_do_not_end_a_line(tmp_path: Path) -> None:
    path = tmp_path / "text.jsonl"
    text = "one\u2028two\x85three"
    path.write_text(json.dumps({"text": text}, ensure_ascii=False) + "\n", "utf-8")
    assert texts(path) == [text]


@pytest.mark.parametrize("name", ["t.jsonl", "t.ndjson", "t.json", "t.unknown", "t"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_jsonl_under_any_name_with_any_line_end_and_a_byte_order_mark(
    name: str, end: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    rows = [{"text": "é\r\n"}, {"messages": CHAT}]
    path.write_bytes(codecs.BOM_UTF8 + "".join(json.dumps(row) + end for row in rows).encode())
    first, second = read_documents(path)
    assert (first.content, first.chat, first.where) == ("é\r\n", False, f"{path}, line 1")
    assert (json.loads(second.content), second.chat) == (CHAT, True)
    assert second.where == f"{path}, line 2"


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("name", ["book.txt", "book.md"])
def test_text_is_cut_at_blank_lines(name: str, end: str, tmp_path: Path) -> None:
    paragraphs = [f"    {n:03} {'word ' * (100 + n)}\nand a line" for n in range(200)]
    content = " \n\n" + "\n \t\n\n".join(paragraphs) + "\n\n"
    path = tmp_path / name
    path.write_bytes(codecs.BOM_UTF8 + content.replace("\n", end).encode())
    found = texts(path)
    assert "\n\n".join(found) == "\n\n".join(paragraphs)
    assert len(found) > 3
    for text in found[:-1]:
        assert len(text) >= 16_000
        assert len(text.rpartition("\n\n")[0]) < 16_000
    assert len(found[-1]) < 16_000


def test_a_text_reaches_its_length_exactly(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_text(f"{'a' * 7_999}\n\n{'b' * 7_999}\n\nc")
    assert [len(text) for text in texts(path)] == [16_000, 1]
    path.write_text(f"{'a' * 7_999}\n\n{'b' * 7_998}\n\nc")
    assert [len(text) for text in texts(path)] == [16_002]


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "is empty"), (b" \n\r\n\t", "is empty"), (b"caf\xe9", r"is not UTF-8 \(byte 3\)"),
     ("text".encode("utf-16"), r"is not UTF-8 \(byte 0\)")],
)  # fmt: skip
def test_unusable_text_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_bytes(content)
    assert "UTF-8" in str(refusal(path, message).hint)


def write_parquet(path: Path, columns: dict[str, object], **options: object) -> Path:
    parquet.write_table(pa.table(columns), path, **options)
    return path


def test_parquet_texts(tmp_path: Path) -> None:
    wanted = [f"text {number}" for number in range(1000)]
    columns = {"id": list(range(1000)), "text": wanted, "score": [0.5] * 1000}
    path = write_parquet(tmp_path / "t.parquet", columns, row_group_size=300)
    assert texts(path) == wanted
    assert read_documents(path)[999].where == f"{path}, row 1000"


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view(), "dictionary"])
def test_parquet_holds_strings_in_several_ways(kind: object, tmp_path: Path) -> None:
    wanted = ["a", "b", "é"]
    column = (
        pa.array(wanted).dictionary_encode() if kind == "dictionary" else pa.array(wanted, kind)
    )
    assert texts(write_parquet(tmp_path / "t.parquet", {"text": column})) == wanted


def test_a_chat_is_the_same_document_in_parquet_and_jsonl(tmp_path: Path) -> None:
    named = [{"content": "hi", "role": "user"}, {"role": "assistant", "content": "a", "name": "x"}]
    jsonl = tmp_path / "a.jsonl"
    jsonl.write_text(json.dumps({"messages": named}))
    path = write_parquet(tmp_path / "b.parquet", {"messages": [named, CHAT]})
    first, second = load_documents((str(jsonl), str(path)), 2)
    assert [document.chat for document in first.documents] == [True]
    assert [json.loads(document.content) for document in second.documents] == [CHAT]
    assert second.read == 2


BAD_COLUMNS: dict[str, tuple[dict[str, object], str]] = {
    "no column": ({"body": ["a"]}, 'has no column "text" or "messages"'),
    "numbers": ({"text": [1, 2]}, 'row 1 has no string field "text"'),
    "bytes": ({"text": [b"a"]}, 'row 1 has no string field "text"'),
    "null": ({"text": ["a", None, "b"]}, 'row 2: "text" is null'),
    "null chat": ({"messages": [CHAT, None]}, 'row 2: "messages" is null'),
    "both": ({"text": ["a"], "messages": [CHAT]}, 'row 1 has both "text" and "messages"'),
    "no rows": ({"text": pa.array([], pa.string())}, "is empty"),
    "no content": ({"messages": [[{"role": "a"}]]}, 'message 1 has no string "content"'),
    "bytes in a message": (
        {"messages": [[{"role": "a", "content": "b", "blob": b"x"}]]},
        'row 1: "messages" holds a value that JSON cannot hold',
    ),
    "not UTF-8": (
        {"text": pa.array([b"\xff"]).cast(pa.string(), safe=False)},
        "cannot be read as Parquet",
    ),
}


@pytest.mark.parametrize("case", BAD_COLUMNS)
def test_unusable_parquet_is_refused(case: str, tmp_path: Path) -> None:
    columns, message = BAD_COLUMNS[case]
    refusal(write_parquet(tmp_path / "t.parquet", columns), message)


@pytest.mark.parametrize("keep", [0, 3, 40, 0.5])
def test_a_broken_parquet_file_is_refused(keep: float, tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "t.parquet", {"text": ["a"] * 100})
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep) if keep < 1 else int(keep)])
    refusal(path, "cannot be read as Parquet")


def test_a_damaged_page_of_parquet_is_refused(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "t.parquet", {"text": [f"text {n}" for n in range(500)]})
    data = bytearray(path.read_bytes())
    data[4:200] = b"\xff" * 196
    path.write_bytes(data)
    refusal(path, "cannot")


def test_without_pyarrow_parquet_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_parquet(tmp_path / "t.parquet", {"text": ["a"]})
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert str(refusal(path, "needs the package pyarrow").hint) == "pip install pyarrow"


def test_the_manifest_names_the_file_not_its_folder(tmp_path: Path) -> None:
    (loaded,) = load_documents((str(write_texts(tmp_path / "text.jsonl", ["a"])),), 1)
    assert loaded.source.name == "text.jsonl"
