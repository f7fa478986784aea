"""Reports: by the schema, the same bytes, decided again from their rows."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from headprune.errors import ExitCode, HeadpruneError
from headprune.schemas.validation import validate
from headprune.verifier import recheck, summary
from headprune.verifier.recheck import read_verdict
from headprune.verifier.reports import (
    to_annotation,
    to_json,
    to_junit,
    to_markdown,
    write_reports,
)

from .verdicts import CASES, make_verdict

EXIT_CODES = {
    "PASS": ExitCode.OK,
    "FAIL": ExitCode.FAIL,
    "INCONCLUSIVE": ExitCode.INCONCLUSIVE,
    "INVALID": ExitCode.INVALID,
}


@pytest.mark.parametrize("status", CASES)
def test_json_is_by_the_schema_and_decided_again(status: str, tmp_path: Path) -> None:
    verdict = make_verdict(status)
    assert verdict.status == status
    assert verdict.exit_code is EXIT_CODES[status]
    path = tmp_path / "verdict.json"
    write_reports(verdict, report=path, junit=None, environment={})
    text = path.read_text("utf-8")
    validate(json.loads(text), "verdict-v1", where="verdict", hint="-")
    assert text == to_json(make_verdict(status))
    assert sum(line.startswith('    {"task"') for line in text.splitlines()) == len(verdict.rows)
    assert read_verdict(path) == verdict
    assert recheck(path) == verdict
    assert recheck(path).exit_code is EXIT_CODES[status]


def test_recheck_believes_the_rows_not_the_figures(tmp_path: Path) -> None:
    document = json.loads(to_json(make_verdict("FAIL")))
    document["status"] = document["tasks"][0]["status"] = "PASS"
    document["tasks"][0]["candidate_accuracy"] = 1.0
    document["rows"][0]["candidate"]["choice"] = 3
    path = tmp_path / "verdict.json"
    path.write_text(json.dumps(document), "utf-8")
    assert read_verdict(path).status == "PASS"
    assert recheck(path) == make_verdict("FAIL")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(surprise=1), "surprise"),
        (lambda d: d["rows"][0].pop("gold"), "gold"),
        (lambda d: d["rows"][0].update(tokens=0), "tokens"),
        (lambda d: d.update(status="FINE"), "status"),
        (lambda d: d.update(rows=[]), "the rows are not those of its tasks demo"),
        (lambda d: d["rows"][0].update(task="other"), "the rows are not those of its tasks demo"),
        (lambda d: d.update(rows=[], tasks=[]), "has no rows to decide from"),
        (lambda d: d.update(model="/a/path"), "model"),
    ],
)
def test_changed_reports_are_refused(change: Any, message: str, tmp_path: Path) -> None:
    document = json.loads(to_json(make_verdict("PASS")))
    change(document)
    path = tmp_path / "verdict.json"
    path.write_text(json.dumps(document), "utf-8")
    with pytest.raises(HeadpruneError) as caught:
        recheck(path)
    assert message in caught.value.message


def test_unreadable_reports_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "verdict.json"
    with pytest.raises(HeadpruneError, match="no report at"):
        recheck(path)
    path.write_text('{"rows": [NaN]}', "utf-8")
    with pytest.raises(HeadpruneError, match="is not JSON"):
        recheck(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(HeadpruneError, match="cannot read the report"):
        recheck(path)


@pytest.mark.parametrize("status", CASES)
def test_junit_has_one_deciding_case(status: str) -> None:
    root = ET.fromstring(to_junit(make_verdict(status)))  # noqa: S314 - written a line above
    (case,) = root.iter("testcase")
    kinds = {"PASS": [], "FAIL": ["failure"], "INCONCLUSIVE": ["failure"], "INVALID": ["error"]}
    assert [e.tag for e in case if e.tag != "system-out"] == kinds[status]
    assert root.get("tests") == "1"
    assert int(root.get("failures", 0)) + int(root.get("errors", 0)) == (status != "PASS")
    assert "subject 1" in (case.findtext("system-out") or "")


def test_junit_survives_characters_that_xml_has_not() -> None:
    verdict = replace(make_verdict("FAIL"), reasons=("bell \x07 <&> \ud800",))
    root = ET.fromstring(to_junit(verdict))  # noqa: S314 - written a line above
    assert root.find(".//failure").get("message") == "bell \ufffd <&> \ufffd"  # type: ignore[union-attr]


@pytest.mark.parametrize("status", CASES)
def test_github_gets_one_error_line_and_a_summary(
    status: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "summary.md"
    page.write_text("before\n", "utf-8")
    environment = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(page)}
    write_reports(make_verdict(status), report=None, junit=None, environment=environment)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("::error") == (status != "PASS")
    assert err.count("\n") == (status != "PASS")
    text = page.read_text("utf-8")
    assert text.startswith(f"before\n## headprune verify: {status}\n")
    widths = {line.count("|") for line in text.splitlines() if line.startswith("|")}
    assert widths == {10}


def test_outside_of_github_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    write_reports(make_verdict("FAIL"), report=None, junit=None, environment={})
    assert capfd.readouterr() == ("", "")


def test_annotation_is_escaped() -> None:
    verdict = replace(make_verdict("FAIL"), reasons=("50 %\nmore",))
    assert to_annotation(verdict) == "::error title=headprune verify::FAIL: 50 %25%0Amore"


@pytest.mark.parametrize("status", CASES)
def test_text_names_status_reason_and_figures(status: str) -> None:
    verdict = make_verdict(status)
    text = summary(verdict)
    assert text.startswith(f"{status}  a model, margin 1 points\n  {verdict.reasons[0]}\n")
    assert "accuracy" in text
    assert "McNemar p" in text
    assert status in to_markdown(verdict)


def test_a_report_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(HeadpruneError, match="cannot write"):
        write_reports(make_verdict("PASS"), report=tmp_path, junit=None, environment={})
    environment = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(tmp_path)}
    with pytest.raises(HeadpruneError, match="cannot write"):
        write_reports(make_verdict("PASS"), report=None, junit=None, environment=environment)
