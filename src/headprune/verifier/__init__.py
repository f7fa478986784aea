"""Baseline and candidate answer the same questions: is the gated model still as good?"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headprune.errors import HeadpruneError
from headprune.manifests import Manifest
from headprune.progress import silent
from headprune.verifier.model import Verdict

__all__ = ["Verdict", "VerifyRequest", "read_verdict", "recheck", "summary", "verify"]


@dataclass(frozen=True, kw_only=True)
class VerifyRequest:
    """What to verify, on which questions, and where to write the verdict.

    Attributes:
        manifest: Manifest of the model; the candidate must come from the same weights.
        candidate: Exported directory: graph, manifest.json, config.json, tokenizer.
        baseline: Exported directory of the ungated model; None for the candidate's own graph with
            thresholds that gate nothing.
        tasks: Task names.
        data: Folder of local files; None for the hub.
        shots: Few-shot examples in front of every question.
        margin: Points of accuracy that the candidate may lose.
        samples: Questions to draw from each task; None for all.
        seed: Seed of that draw and of drawn few-shot examples.
        provider: `auto`, `cpu` or `cuda`.
        batch_size: Prompts per forward.
        report: Where to write the verdict as JSON.
        junit: Where to write it as JUnit XML.
        allow_truncation: Cut prompts that the model cannot read whole, instead of refusing them.
        progress: Told in one line what goes on.
    """

    manifest: Manifest
    candidate: Path
    baseline: Path | None = None
    tasks: tuple[str, ...] = ("mmlu",)
    data: Path | None = None
    shots: int = 5
    margin: float = 1.0
    samples: int | None = None
    seed: int = 0
    provider: str = "auto"
    batch_size: int = 1
    report: Path | None = None
    junit: Path | None = None
    allow_truncation: bool = False
    progress: Callable[[str], None] = silent

    def __post_init__(self) -> None:
        if not (math.isfinite(self.margin) and self.margin >= 0):
            raise HeadpruneError(
                f"the margin is {self.margin}, expected points of accuracy, 0 or more",
                hint="for one point pass --margin 1",
            )
        for name, value, least in (
            ("number of shots", self.shots, 0),
            ("number of samples", self.samples, 1),
            ("batch size", self.batch_size, 1),
            ("seed", self.seed, 0),
        ):
            if value is not None and value < least:
                raise HeadpruneError(
                    f"the {name} is {value}, expected {least} or more", hint=f"pass {least} or more"
                )


def verify(request: VerifyRequest) -> Verdict:
    """Run baseline and candidate, decide, and write the reports asked for.

    Raises:
        HeadpruneError: The input cannot be used; a bad candidate is a verdict, not an error.
    """
    from headprune.verifier.run import run  # noqa: PLC0415 - loads torch and onnxruntime

    return run(request)


def read_verdict(report: Path) -> Verdict:
    """Read a stored report as it is.

    Raises:
        HeadpruneError: The file is missing or is not a verdict.
    """
    from headprune.verifier.recheck import read_verdict as read  # noqa: PLC0415 - loads scipy

    return read(report)


def recheck(report: Path) -> Verdict:
    """Decide again from the rows of a stored report.

    Raises:
        HeadpruneError: The file is missing or is not a verdict.
    """
    from headprune.verifier.recheck import recheck as run  # noqa: PLC0415 - loads scipy

    return run(report)


def summary(verdict: Verdict) -> str:
    """The verdict in a few lines for a terminal."""
    from headprune.verifier.reports import to_text  # noqa: PLC0415 - not needed for `--help`

    return to_text(verdict)
