"""The verdict for machines and people: JSON, JUnit XML, a job summary, a terminal."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from xml.etree import ElementTree as ET

from headprune.errors import REPORT_BUG, WRITABLE, HeadpruneError
from headprune.files import write_text_whole
from headprune.schemas.validation import validate
from headprune.verifier.model import TaskResult, Verdict

SCHEMA = "verdict-v1"
NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write_reports(
    verdict: Verdict,
    *,
    report: Path | None,
    junit: Path | None,
    environment: Mapping[str, str] = os.environ,
) -> None:
    """Write the reports asked for, and what a GitHub job shows if this runs in one.

    Args:
        verdict: What to report.
        report: Where to write the JSON.
        junit: Where to write the JUnit XML.
        environment: Variables; `GITHUB_ACTIONS` and `GITHUB_STEP_SUMMARY` are looked at.
    """
    if report is not None:
        write_text_whole(report, to_json(verdict))
    if junit is not None:
        write_text_whole(junit, to_junit(verdict))
    if environment.get("GITHUB_ACTIONS") == "true":
        if verdict.status != "PASS":
            sys.stderr.write(to_annotation(verdict) + "\n")
        if name := environment.get("GITHUB_STEP_SUMMARY"):
            _append(Path(name), to_markdown(verdict))


def to_json(verdict: Verdict) -> str:
    """JSON by the schema, one row a line; the same verdict gives the same text."""
    document = json.loads(json.dumps(asdict(verdict)))
    document = {"schema_version": document.pop("schema_version"), **document}
    validate(document, SCHEMA, where="the verdict to be written", hint=REPORT_BUG)
    rows = document.pop("rows")
    head = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    lines = ",\n".join(f"    {json.dumps(row, ensure_ascii=False)}" for row in rows)
    table = f"[\n{lines}\n  ]" if rows else "[]"
    return f'{head.removesuffix("}").rstrip()},\n  "rows": {table}\n}}\n'


def to_junit(verdict: Verdict) -> str:
    """JUnit XML with the one test case that decides; accuracies are its output."""
    failed = verdict.status in ("FAIL", "INCONCLUSIVE")
    counts = {
        "tests": "1",
        "failures": str(int(failed)),
        "errors": str(int(verdict.status == "INVALID")),
        "skipped": "0",
    }
    root = ET.Element("testsuites", counts)
    suite = ET.SubElement(root, "testsuite", {"name": "headprune verify", **counts})
    case = ET.SubElement(suite, "testcase", {"classname": "headprune", "name": "verdict"})
    if verdict.status != "PASS":
        attributes = {"type": verdict.status, "message": _xml("; ".join(verdict.reasons))}
        element = ET.SubElement(case, "failure" if failed else "error", attributes)
        element.text = _xml("\n".join(verdict.reasons))
    ET.SubElement(case, "system-out").text = _xml(to_text(verdict) + "\n" + _subject_lines(verdict))
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, "unicode") + "\n"


def to_annotation(verdict: Verdict) -> str:
    """One `::error` line for GitHub Actions."""
    text = f"{verdict.status}: {'; '.join(verdict.reasons)}"
    escaped = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return f"::error title=headprune verify::{escaped}"


def to_markdown(verdict: Verdict) -> str:
    """A section for the summary page of a GitHub job."""
    lines = [f"## headprune verify: {verdict.status}", ""]
    lines += [f"- {reason}" for reason in verdict.reasons]
    if verdict.tasks:
        columns = "task verdict questions baseline candidate points interval flips gated"
        lines += ["", f"| {columns.replace(' ', ' | ')} |", "|---|---|" + "---:|" * 7]
    for task in verdict.tasks:
        cells = [
            task.setup.name,
            task.status,
            f"{task.questions:,}",
            f"{task.baseline_accuracy:.2%}",
            f"{task.candidate_accuracy:.2%}",
            f"{task.difference:+.2f}",
            f"{task.interval.low:+.2f} … {task.interval.high:+.2f}",
            f"{task.flips:.2%}",
            _gated(task),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def to_text(verdict: Verdict) -> str:
    """A few lines for a terminal."""
    lines = [f"{verdict.status}  {verdict.model}, margin {verdict.margin:g} points"]
    lines += [f"  {reason}" for reason in verdict.reasons]
    for task in verdict.tasks:
        lines += _task_lines(task)
    return "\n".join(lines)


def _task_lines(task: TaskResult) -> list[str]:
    counts, interval, kl = task.counts, task.interval, task.divergence
    accuracies = f"{task.baseline_accuracy:.2%} -> {task.candidate_accuracy:.2%}"
    bounds = f"90 % interval {interval.low:+.2f} to {interval.high:+.2f}"
    flips = f"{counts.baseline_only:,} lost, {counts.candidate_only:,} won"
    divergence = "not finite" if kl is None else f"{kl:.3g} nats over the choices"
    lines = [
        f"  {task.setup.name}, {task.setup.shots}-shot, {task.questions:,} questions",
        f"    accuracy   {accuracies} ({task.difference:+.2f} points, {bounds})",
        f"    flips      {task.flips:.2%}: {flips} (McNemar p = {task.mcnemar_p:.3g})",
        f"    changed    {task.changed:.2%} of the choices",
        f"    divergence {divergence}",
        f"    gated      {_gated(task)} of all heads",
    ]
    if task.setup.truncated:
        lines.append(f"    truncated  {task.setup.truncated:,} prompts")
    return lines


def _gated(task: TaskResult) -> str:
    return "unknown share" if task.gated is None else f"{task.gated:.1%}"


def _subject_lines(verdict: Verdict) -> str:
    return "\n".join(
        f"  {task.setup.name} {subject.name}: {subject.questions} questions, "
        f"{subject.baseline_accuracy:.2%} -> {subject.candidate_accuracy:.2%}"
        for task in verdict.tasks
        for subject in task.subjects
    )


def _xml(text: str) -> str:
    return NOT_IN_XML.sub("\ufffd", text)


def _append(path: Path, text: str) -> None:
    try:
        with path.open("a", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        raise HeadpruneError(f"cannot write {path}: {error.strerror}", hint=WRITABLE) from error
