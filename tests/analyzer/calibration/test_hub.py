"""Datasets of the hub, read by `datasets` from a folder that stands in for the hub."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import datasets
import pytest

from headprune.analyzer.calibration import load_documents
from headprune.errors import HeadpruneError
from tests.analyzer.calibration.corpus import write_rows, write_texts

CHAT = [{"role": "user", "content": "hi"}]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of datasets: org/name is read from its folder of that name."""
    load = datasets.load_dataset

    def from_folder(path: str, **options: Any) -> Any:
        return load(str(tmp_path / "hub" / path), **options)

    monkeypatch.setattr(datasets, "load_dataset", from_folder)
    folder = tmp_path / "hub" / "org" / "name"
    folder.mkdir(parents=True)
    return folder


def test_the_first_documents_of_the_split_are_taken(hub: Path) -> None:
    write_texts(hub / "train.jsonl", (f"train {n}" for n in range(9)))
    write_texts(hub / "test.jsonl", (f"test {n}" for n in range(9)))
    (train,) = load_documents(("hub:org/name",), 3)
    assert [d.content for d in train.documents] == ["train 0", "train 1", "train 2"]
    assert (train.read, train.source.kind, train.source.name) == (3, "hub", "org/name")
    (test,) = load_documents(("hub:org/name:default:test",), 20)
    assert [d.content for d in test.documents] == [f"test {n}" for n in range(9)]
    assert test.source.name == "org/name:default:test"


def test_a_configuration_is_chosen(hub: Path) -> None:
    for name in ("one", "two"):
        (hub / name).mkdir()
        write_texts(hub / name / "train.jsonl", [f"text of {name}"])
    (hub / "README.md").write_text(
        "---\nconfigs:\n- config_name: one\n  data_files: one/*.jsonl\n"
        "- config_name: two\n  data_files: two/*.jsonl\n---\n"
    )
    (loaded,) = load_documents(("hub:org/name:two",), 5)
    assert [d.content for d in loaded.documents] == ["text of two"]


def test_each_source_is_asked_for_its_share(hub: Path) -> None:
    write_texts(hub / "train.jsonl", (f"train {n}" for n in range(50)))
    loaded = load_documents(("hub:org/name=1", "builtin=3"), 20)
    assert [source.read for source in loaded] == [5, 120]


def test_chats_are_read(hub: Path) -> None:
    write_rows(hub / "train.jsonl", [{"messages": CHAT}] * 2)
    (loaded,) = load_documents(("hub:org/name",), 2)
    assert (len(loaded.documents), loaded.documents[0].chat, loaded.read) == (1, True, 2)


@pytest.mark.parametrize(
    ("row", "message"),
    [({"body": "a"}, 'org/name, row 1 has no string field "text"'),
     ({"text": None}, 'org/name, row 1: "text" is null'),
     ({"text": "a", "messages": CHAT}, 'row 1 has both "text" and "messages"')],
)  # fmt: skip
def test_unusable_rows_are_refused(row: dict[str, object], message: str, hub: Path) -> None:
    write_rows(hub / "train.jsonl", [row])
    with pytest.raises(HeadpruneError, match=message):
        load_documents(("hub:org/name",), 1)


@pytest.mark.parametrize("given", ["hub:org/name:default:nosuch", "hub:org/name:nosuch"])
def test_unknown_splits_and_configurations_are_named(given: str, hub: Path) -> None:
    write_texts(hub / "train.jsonl", ["a"])
    with pytest.raises(HeadpruneError, match=r"cannot read .* from the hub: .*nosuch"):
        load_documents((given,), 1)


@pytest.mark.parametrize("calibration", [(), ("hub:org/name",)])
def test_offline_the_ways_out_are_named(calibration: tuple[str, ...]) -> None:
    with pytest.raises(HeadpruneError) as caught:
        load_documents(calibration, 1)
    name = "org/name" if calibration else "HuggingFaceFW/fineweb-edu"
    assert f"cannot read the calibration text {name}" in caught.value.message
    assert "\n" not in caught.value.message
    assert "--calibration FILE" in str(caught.value.hint)
    assert "--calibration builtin" in str(caught.value.hint)


def test_without_datasets_the_ways_out_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(HeadpruneError, match="needs the package datasets") as caught:
        load_documents((), 1)
    assert "--calibration builtin" in str(caught.value.hint)


def test_a_folder_is_not_taken_for_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "org" / "name"
    folder.mkdir(parents=True)
    write_texts(folder / "train.jsonl", ["a"])
    with pytest.raises(HeadpruneError, match="there is also a folder org/name here"):
        load_documents(("hub:org/name",), 1)
