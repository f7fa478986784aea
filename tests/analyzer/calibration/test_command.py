"""`headprune analyze --calibration` as a user types it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from headprune import cli
from headprune.errors import ExitCode
from headprune.manifests import CalibrationSource, read_manifest
from tests.analyzer.calibration.corpus import write_rows, write_texts

TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
OPTIONS = ("--scores", "thon_ln", "--length", "10:40")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def analyze(model: Path, *options: str) -> int:
    return cli.run(["analyze", "--model", str(model), *OPTIONS, *options])


def write_sources(folder: Path) -> list[str]:
    """A file of each kind; the chats are twice in the Parquet file."""
    write_texts(folder / "a.jsonl", [f"a document with the number {n}" for n in range(20)])
    (folder / "b.txt").write_text("\n\n".join(f"{n} " + "word " * 2000 for n in range(8)))
    chats = [[{"role": "user", "content": f"question {n}"}] for n in range(6)]
    rows = [{"messages": chat} for chat in [*chats, *chats]]
    parquet.write_table(pa.Table.from_pylist(rows), folder / "c.parquet")
    sources = ["a.jsonl=2", "b.txt", "c.parquet", "builtin=0.5"]
    return [word for source in sources for word in ("--calibration", source)]


def test_all_kinds_in_one_manifest(
    here: Path, llama_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(llama_directory, here / "model")
    (here / "model" / "chat_template.jinja").write_text(TEMPLATE)
    options = [*write_sources(here), "--sequences", "36"]
    assert analyze(here / "model", *options, "-o", "one/m.json") == ExitCode.OK
    captured = capsys.readouterr()
    assert analyze(here / "model", *options, "-o", "two/m.json") == ExitCode.OK
    first, second = (
        {path.name: path.read_bytes() for path in (here / name).iterdir()}
        for name in ("one", "two")
    )
    assert first == second
    info = read_manifest(here / "one" / "m.json").calibration
    assert info.sources == (
        CalibrationSource(name="a.jsonl", kind="jsonl", weight=2.0, documents=20, sequences=16),
        CalibrationSource(name="b.txt", kind="text", weight=1.0, documents=4, sequences=4),
        CalibrationSource(name="c.parquet", kind="parquet", weight=1.0, documents=12, sequences=6),
        CalibrationSource(name="builtin", kind="builtin", weight=0.5, documents=120, sequences=4),
    )
    assert (info.sequences, info.duplicates) == (30, 6)
    for line in (
        "a.jsonl: 16 of 20 documents, weight 2",
        "builtin: 4 of 120 documents, weight 0.5",
        f"{info.cut} cut to the length drawn; documents left out: 0 too short, 6 duplicates",
    ):
        assert line in captured.out
    assert "BOS added" in captured.out
    (line,) = (line for line in captured.err.splitlines() if line.startswith("calibration: "))
    assert "a.jsonl 16, b.txt 4 of 8 asked for, c.parquet 6 of 8 asked for, builtin 4" in line
    assert "6 duplicates dropped" in line


def test_show_leaves_a_single_weight_out(
    llama_manifest: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["manifest", "show", str(llama_manifest)]) == ExitCode.OK
    assert "text.jsonl: 12 of 12 documents\n" in capsys.readouterr().out


def chat_file(folder: Path) -> str:
    return write_rows(
        folder / "chat.jsonl", [{"messages": [{"role": "user", "content": "hello there"}]}]
    ).name


def null_column(folder: Path) -> str:
    parquet.write_table(pa.table({"text": ["a", None]}), folder / "null.parquet")
    return "null.parquet"


def latin(folder: Path) -> str:
    (folder / "latin.txt").write_bytes(b"caf\xe9")
    return "latin.txt"


def both_fields(folder: Path) -> str:
    return write_rows(folder / "both.jsonl", [{"text": "a", "messages": []}]).name


BAD_SOURCES = {
    "chats without a template": (chat_file, "chat.jsonl, line 1 has"),
    "null in a column": (null_column, "null.parquet, row 2"),
    "not UTF-8": (latin, "latin.txt is not UTF-8"),
    "both fields": (both_fields, "both.jsonl, line 1 has both"),
    "directory": (lambda _: ".", "is a directory"),
    "weight": (lambda _: "builtin=0", "weight of 'builtin' is 0"),
    "no such file": (lambda _: "nothing.parquet=2", "no calibration file at nothing.parquet"),
    "hub": (lambda _: "hub:org/name", "cannot read the calibration text org/name"),
    "hub address": (lambda _: "hub:name", "hub:name is not hub:ORG/NAME"),
    "too short": (lambda folder: write_texts(folder / "x.jsonl", ["x"]).name, "has 10 tokens"),
}


@pytest.mark.parametrize("case", BAD_SOURCES)
def test_unusable_sources_end_in_one_line_and_leave_nothing(
    case: str, here: Path, llama_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make, message = BAD_SOURCES[case]
    source = make(here)
    before = sorted(here.iterdir())
    # A usable source before it does not help.
    usable = () if case == "too short" else ("--calibration", "builtin")
    code = analyze(llama_directory, *usable, "--calibration", source)
    captured = capsys.readouterr()
    assert code == ExitCode.USAGE
    lines = [line for line in captured.err.splitlines() if not line.startswith("loading ")]
    assert [line.split(":")[0] for line in lines] == ["Error", "Hint"]
    assert message in lines[0]
    assert captured.out == ""
    assert sorted(here.iterdir()) == before


@pytest.mark.parametrize(
    ("change", "place"),
    [({"sources": []}, "calibration.sources"), ({"duplicates": -1}, "calibration.duplicates"),
     ({"sources": [{"name": "/a/b", "kind": "jsonl", "weight": 1, "documents": 1,
                    "sequences": 1}]}, "calibration.sources[0].name"),
     ({"sources": [{"name": "b", "kind": "csv", "weight": 1, "documents": 1, "sequences": 1}]},
      "calibration.sources[0].kind"),
     ({"sources": [{"name": "b", "kind": "jsonl", "weight": 0, "documents": 1,
                    "sequences": 1}]}, "calibration.sources[0].weight"),
     ({"sources": [{"name": "b"}]}, "calibration.sources[0]")],
)  # fmt: skip
def test_edited_calibrations_are_refused_in_one_line(
    change: dict[str, object],
    place: str,
    here: Path,
    llama_manifest: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    document = json.loads(llama_manifest.read_text())
    document["calibration"] |= change
    (here / "m.json").write_text(json.dumps(document))
    assert cli.run(["manifest", "validate", "m.json"]) == ExitCode.USAGE
    first = capsys.readouterr().err.splitlines()[0]
    assert first.startswith(f"Error: m.json does not follow manifest-v1: {place}: ")
