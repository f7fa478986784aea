"""What an analysis keeps of a long sequence is its scores, not its layers' tensors."""

from __future__ import annotations

import subprocess
import sys

import pytest

ALLOWED = 200e6  # the scores of that run are 25 MB; a heap full of holes took 500 MB


def peak(what: str) -> int:
    run = subprocess.run(
        [sys.executable, "-m", "tests.analyzer.peak", what],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return int(run.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="other C libraries keep their heaps otherwise")
def test_layers_leave_nothing_behind_but_scores() -> None:
    assert peak("analyzed") - peak("plain") < ALLOWED
