"""Manifests survive writing and reading; files appear whole or not at all."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from headprune.errors import HeadpruneError
from headprune.files import staged_directory, staged_file, write_text_whole
from headprune.manifests import Artefact, Gate, OperatingPoint, read_manifest, write_manifest
from headprune.manifests.files import dumps
from headprune.schemas.validation import parse_json, validator


def full(path: Path) -> object:
    return replace(
        read_manifest(path),
        gate=Gate(
            score="ahon_ln", granularity="sequence", inactive_when="below", mode="dynamic",
            threshold=0.5, fraction=0.1, decode="running", heads=((0, 1), (2, 3)),
        ),
        operating_points=(
            OperatingPoint(
                score="ahon_ln", fraction=0.1, threshold=0.5, task="mmlu", accuracy=0.5,
                baseline=0.51, verdict="PASS",
            ),
        ),
        artefact=Artefact(format="onnx", graph="model.onnx", opset=23, files={"a": "0" * 64}),
    )  # fmt: skip


def test_what_is_written_is_read(llama_manifest: Path, tmp_path: Path) -> None:
    manifest = full(llama_manifest)
    write_manifest(manifest, tmp_path / "m.json")  # type: ignore[arg-type]
    assert read_manifest(tmp_path / "m.json") == manifest


def test_a_manifest_against_its_schema_is_not_written(llama_manifest: Path, tmp_path: Path) -> None:
    manifest = read_manifest(llama_manifest)
    broken = replace(manifest, model=replace(manifest.model, weights_sha256="x"))
    with pytest.raises(HeadpruneError, match="weights_sha256"):
        write_manifest(broken, tmp_path / "m.json")
    assert not list(tmp_path.iterdir())


def test_rows_of_numbers_stand_on_one_line() -> None:
    document = {"a": [[1.5, 2], [3, 4]], "b": {}, "c": [], "d": [{"e": None}], "f": "é"}
    text = dumps(document)
    assert json.loads(text) == document
    assert "[1.5, 2]" in text


@pytest.mark.parametrize("name", ["manifest-v1", "verdict-v1"])
def test_schemas_are_strict(name: str) -> None:
    """Every object of a schema says which properties it has, or of which kind they are."""

    def objects(schema: object) -> list[dict[str, object]]:
        if isinstance(schema, list):
            return [found for item in schema for found in objects(item)]
        if not isinstance(schema, dict):
            return []
        own = [schema] if schema.get("type") == "object" else []
        return own + [found for value in schema.values() for found in objects(value)]

    found = objects(validator(name).schema)
    assert found
    assert all("additionalProperties" in schema for schema in found)


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", "[-Infinity]", "1e999", "{", "'a'"])
def test_json_is_strict(text: str) -> None:
    with pytest.raises(HeadpruneError, match="here is not JSON"):
        parse_json(text, where="here", hint="-")


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_text_whole(path, "old")

    def fail() -> None:
        with staged_file(path) as staging:
            staging.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_failed_directory_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with staged_directory(tmp_path / "out") as staging:
            (staging / "half").write_text("x")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("force", [False, True])
def test_a_folder_of_the_users_is_never_replaced(force: bool, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "letter.txt").write_text("dear")
    with pytest.raises(HeadpruneError), staged_directory(tmp_path / "out", force=force):
        pass
    assert (tmp_path / "out" / "letter.txt").read_text() == "dear"


def test_force_replaces_an_earlier_artefact(tmp_path: Path) -> None:
    for content in ("one", "two"):
        with staged_directory(tmp_path / "out", force=True) as staging:
            manifest = {"tool_version": "1", "artefact": {"graph": content}}
            (staging / "manifest.json").write_text(json.dumps(manifest))
    assert "two" in (tmp_path / "out" / "manifest.json").read_text()
    with pytest.raises(HeadpruneError, match="not empty"), staged_directory(tmp_path / "out"):
        pass


def test_unwritable_places_are_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(HeadpruneError, match="cannot write"):
        write_text_whole(tmp_path / "file" / "below", "x")
    (tmp_path / "folder").mkdir()
    with pytest.raises(HeadpruneError, match="it is a directory"):
        write_text_whole(tmp_path / "folder", "x")
    assert {entry.name for entry in tmp_path.iterdir()} == {"file", "folder"}
