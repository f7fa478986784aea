"""Kill analyses at random moments and resume them.

`python -m tests.analyzer.killed MODEL TEXT OUT TRIES`

One process imports everything and forks a child for each analysis, so that a try takes no longer
than the analysis itself. The parent runs nothing, hence forking is safe. Prints how many units of
work were found done at each resumption.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

from headprune.analyzer import journal
from headprune.analyzer.run import AnalyzeRequest, analyze


def child(model: str, text: str, output: Path, *, stream: bool, resume: bool) -> int:
    """Fork a process that analyzes; returns its id."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        request = AnalyzeRequest(
            model=model,
            output=output,
            calibration=(text,),
            lengths=(10, 200),
            stream=stream,
            resume=resume,
        )
        analyze(request)
        code = 0
    finally:
        os._exit(code)


def main(model: str, text: str, folder: Path, tries: int) -> None:
    """Compare `tries` killed and resumed analyses with whole ones."""
    journal.SMALL = 1 << 14  # Snapshots after every few parts.
    draw = np.random.default_rng(0)
    resumed = 0
    for number in range(tries):
        stream = number % 2 == 1
        whole = folder / f"whole-{stream}" / "manifest.json"
        if not whole.is_file():
            started = time.monotonic()
            pid = child(model, text, whole, stream=stream, resume=False)
            assert os.waitpid(pid, 0)[1] == 0
            seconds = time.monotonic() - started
        output = folder / f"try-{number}" / "manifest.json"
        pid = child(model, text, output, stream=stream, resume=False)
        time.sleep(draw.uniform(0, seconds))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        partial = output.with_name("manifest.json.partial")
        left = (partial / "plan.json").is_file()
        resumed += left and any(partial.glob("*.safetensors"))
        if left or not output.is_file():
            pid = child(model, text, output, stream=stream, resume=left)
            assert os.waitpid(pid, 0)[1] == 0
        assert output.read_bytes() == whole.read_bytes(), f"try {number} differs"
        assert not partial.exists()
        left_behind = {path.name for path in output.parent.iterdir()}
        assert left_behind == {path.name for path in whole.parent.iterdir()}
    sys.stdout.write(f"resumed {resumed}\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
